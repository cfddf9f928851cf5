"""Every fixed bound of the contract, with unit, source and what going over it is answered with, in one table.

docs/contract.md is generated from `LIMITS`, and the tests walk it at the limit and one beyond. Bounds that a model or
its runtime sets (context, dimensions, counts) are measured and stand in each descriptor's `option_bounds`.
"""

from __future__ import annotations

from typing import NamedTuple

MIB = 1024 * 1024

CONTRACT_VERSION = 1

MAX_REQUEST_BYTES = 32 * MIB
MAX_RESPONSE_BYTES = 32 * MIB
MAX_EVENT_BYTES = 256 * 1024

MAX_JSON_DEPTH = 128
MAX_JSON_VALUES = 1_048_576
MAX_JSON_MEMBERS = 262_144

MAX_REQUEST_ID = 128
MAX_MODEL_BYTES = 256
MAX_PROFILE = 128

MAX_IMAGE_BYTES = 8 * MIB
MAX_TOTAL_IMAGE_BYTES = 16 * MIB
MAX_IMAGES = 4
MAX_IMAGE_SIDE = 4096
MAX_IMAGE_PIXELS = 4_194_304
MAX_MEDIA_MESSAGES = 128
MAX_MEDIA_PARTS = 128

MAX_CLIPS = 4
MAX_TOTAL_AUDIO_BYTES = 16 * MIB
MAX_AUDIO_SECONDS = 30
MIN_SAMPLE_RATE_HZ = 8_000
MAX_SAMPLE_RATE_HZ = 192_000

MAX_TEMPERATURE = 2.0
MAX_TOP_P = 1.0
MAX_MIN_P = 1.0
MAX_TOP_K = 1_000_000
MIN_REPEAT_PENALTY = 0.1
MAX_REPEAT_PENALTY = 10.0
MAX_SEED = 2**63 - 1
MAX_STOPS = 16
MAX_STOP_BYTES = 512
MAX_GRAMMAR_BYTES = 256 * 1024
TRANSCRIPTION_TOKENS = 512

MAX_INPUT_COUNT = 2048
"""Texts or documents of one request to a local lane; fewer where the answer could not fit (`describe.max_inputs`)."""
MAX_FLOAT_TEXT = 17
"""Bytes of one float32 in JSON, its comma included, at most."""
MAX_PROMPT_CHARACTERS = 4_000
"""Prompt of the image adapter."""
MAX_MESSAGE_CHARACTERS = 8 * 1024
"""An error message, before redaction."""


class Limit(NamedTuple):
    """One row: what is bounded, its maximum, its unit, the code of going over it, and where it comes from."""

    name: str
    maximum: int | float
    unit: str
    code: str
    source: str


_CONTRACT = "contract"

LIMITS: tuple[Limit, ...] = (
    Limit("request body", MAX_REQUEST_BYTES, "bytes", "request_limit", _CONTRACT),
    Limit("response body", MAX_RESPONSE_BYTES, "bytes", "response_limit", _CONTRACT),
    Limit("stream event", MAX_EVENT_BYTES, "bytes", "invalid_provider_result", _CONTRACT),
    Limit("stream, cumulative", MAX_RESPONSE_BYTES, "bytes", "response_limit", _CONTRACT),
    Limit("JSON nesting", MAX_JSON_DEPTH, "levels", "invalid_request", "C2"),
    Limit("JSON values", MAX_JSON_VALUES, "values", "request_limit", "decode safety"),
    Limit("JSON members", MAX_JSON_MEMBERS, "members", "request_limit", "decode safety"),
    Limit("request_id", MAX_REQUEST_ID, "characters", "invalid_request", _CONTRACT),
    Limit("model", MAX_MODEL_BYTES, "bytes", "invalid_request", _CONTRACT),
    Limit("profile", MAX_PROFILE, "characters", "invalid_request", "C11"),
    Limit("image_bytes", MAX_IMAGE_BYTES, "bytes", "request_limit", _CONTRACT),
    Limit("total_image_bytes", MAX_TOTAL_IMAGE_BYTES, "bytes", "request_limit", _CONTRACT),
    Limit("image_count", MAX_IMAGES, "images", "request_limit", _CONTRACT),
    Limit("image_pixels", MAX_IMAGE_PIXELS, "pixels", "request_limit", _CONTRACT),
    Limit("width", MAX_IMAGE_SIDE, "pixels", "request_limit", _CONTRACT),
    Limit("height", MAX_IMAGE_SIDE, "pixels", "request_limit", _CONTRACT),
    Limit("message_count", MAX_MEDIA_MESSAGES, "messages, where one has media", "request_limit", _CONTRACT),
    Limit("content_parts", MAX_MEDIA_PARTS, "parts of all messages, where one is media", "request_limit", _CONTRACT),
    Limit("audio_count", MAX_CLIPS, "clips", "request_limit", _CONTRACT),
    Limit("total_audio_bytes", MAX_TOTAL_AUDIO_BYTES, "bytes", "request_limit", _CONTRACT),
    Limit("audio_seconds", MAX_AUDIO_SECONDS, "seconds of one clip", "request_limit", _CONTRACT),
    Limit("sample_rate", MAX_SAMPLE_RATE_HZ, "Hz, from 8000", "invalid_request", _CONTRACT),
    Limit("temperature", MAX_TEMPERATURE, "from 0", "invalid_request", _CONTRACT),
    Limit("top_p", MAX_TOP_P, "from 0", "invalid_request", _CONTRACT),
    Limit("min_p", MAX_MIN_P, "from 0", "invalid_request", "C11"),
    Limit("top_k", MAX_TOP_K, "from 0", "invalid_request", "C11"),
    Limit("repeat_penalty", MAX_REPEAT_PENALTY, "from 0.1", "invalid_request", "C11"),
    Limit("seed", MAX_SEED, "from 0", "invalid_request", "C11"),
    Limit("stop", MAX_STOPS, "strings", "request_limit", "C11"),
    Limit("stop string", MAX_STOP_BYTES, "bytes", "request_limit", "C11"),
    Limit("grammar", MAX_GRAMMAR_BYTES, "bytes", "request_limit", "D15"),
    Limit("input_count", MAX_INPUT_COUNT, "texts or documents to a local lane", "request_limit", "C11"),
    Limit("input_characters", MAX_PROMPT_CHARACTERS, "characters of an image prompt", "request_limit", _CONTRACT),
    Limit("json_schema", MAX_GRAMMAR_BYTES, "bytes of JSON", "request_limit", "D15"),
)
