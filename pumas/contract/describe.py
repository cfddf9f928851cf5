"""Descriptors from facts: what each capability's protocol can carry, cut down to what a runtime declared or showed.

`option_bounds` are what `resolve` and the providers enforce, nothing else (decision C5, D2, D6, G4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from pumas.contract import limits
from pumas.contract.descriptors import (
    CAPABILITIES,
    SEMANTIC_TASKS,
    Available,
    Capability,
    Modalities,
    OptionBound,
    Unavailable,
)


class Protocol(NamedTuple):
    """What a capability can carry at all (contract, Capability inputs and outputs)."""

    formats: Mapping[str, str]
    """Input format → the modality without which it makes no sense here."""
    inputs: tuple[str, ...]
    output_format: str
    output: str
    options_kind: str


PROTOCOLS: dict[str, Protocol] = {
    "chat_generation": Protocol(
        {"text": "text", "messages_text": "text", "messages_image": "image", "messages_audio": "audio"},
        ("text", "image", "audio"), "text", "text", "text_generation",
    ),
    "text_generation": Protocol({"text": "text"}, ("text",), "text", "text", "text_generation"),
    "text_embedding": Protocol(
        {"text": "text", "text_batch": "text"}, ("text",), "embeddings_float32", "vector", "embeddings"
    ),
    "image_generation": Protocol({"text": "text"}, ("text",), "png_base64", "image", "image_generation"),
    "image_to_text": Protocol(
        {"png_base64": "image", "jpeg_base64": "image", "messages_image": "image"},
        ("text", "image"), "text", "text", "text_generation",
    ),
    "multimodal_embedding": Protocol(
        {"png_base64": "image", "jpeg_base64": "image", "content_batch": "text"},
        ("text", "image", "audio"), "embeddings_float32", "vector", "embeddings",
    ),
    "decision": Protocol({"decision": "text"}, ("text", "image", "audio"), "decisions", "json", "decision"),
    "rerank": Protocol({"rerank": "text"}, ("text",), "relevance_scores", "json", "rerank"),
    "audio_transcription": Protocol({"pcm_s16le": "", "pcm_f32le": ""}, ("audio",), "text", "text", "audio"),
    "audio_classification": Protocol({"pcm_s16le": "", "pcm_f32le": ""}, ("audio",), "labels", "text", "audio"),
}  # fmt: skip

RESERVED = ("audio_transcription", "audio_classification")
UNQUALIFIED = "unqualified_audio_runtime"
MISMATCH = "model_task_mismatch"
STREAMING = ("chat_generation", "text_generation", "image_to_text")

IMAGE_BOUNDS = (
    OptionBound("image_bytes", 1, limits.MAX_IMAGE_BYTES),
    OptionBound("total_image_bytes", 1, limits.MAX_TOTAL_IMAGE_BYTES),
    OptionBound("image_count", 1, limits.MAX_IMAGES),
    OptionBound("image_pixels", 1, limits.MAX_IMAGE_PIXELS),
    OptionBound("width", 1, limits.MAX_IMAGE_SIDE),
    OptionBound("height", 1, limits.MAX_IMAGE_SIDE),
    OptionBound("message_count", 1, limits.MAX_MEDIA_MESSAGES),
    OptionBound("content_parts", 1, limits.MAX_MEDIA_PARTS),
)
AUDIO_BOUNDS = (
    OptionBound("audio_count", 1, limits.MAX_CLIPS),
    OptionBound("total_audio_bytes", 1, limits.MAX_TOTAL_AUDIO_BYTES),
    OptionBound("audio_seconds", 0, limits.MAX_AUDIO_SECONDS),
    OptionBound("sample_rate", limits.MIN_SAMPLE_RATE_HZ, limits.MAX_SAMPLE_RATE_HZ),
)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What one capability of one served model has beyond its protocol."""

    reason: str | None = None
    """Why it is unavailable; None: it can be had now."""
    bounds: tuple[OptionBound, ...] = ()
    options: tuple[str, ...] = ()
    streaming: bool = True
    """Where the capability streams at all."""
    deterministic: bool | None = None
    without: tuple[str, ...] = ()
    """Input modalities of the protocol that the adapter cannot carry."""


def capabilities(
    declared: Iterable[str], offers: Mapping[str, Offer], *, otherwise: str = MISMATCH
) -> tuple[Capability, ...]:
    """All ten descriptors of a served model.

    Args:
        declared: the model's input modalities; empty while its runtime has not answered.
        offers: by capability, those that fit the model.
        otherwise: why the others are unavailable.
    """
    known = set(declared)
    return tuple(_capability(name, known, offers.get(name) or Offer(reason=otherwise)) for name in CAPABILITIES)


def _capability(name: str, declared: set[str], offer: Offer) -> Capability:
    protocol = PROTOCOLS[name]
    carried = tuple(m for m in protocol.inputs if m in declared and m not in offer.without)
    formats = tuple(word for word, needs in protocol.formats.items() if not needs or not declared or needs in declared)
    reason, bounds = offer.reason, offer.bounds
    if not declared and reason is None:  # the runtime has not answered, so nothing can be had (contract, Modalities)
        reason = "runtime_unavailable"
    if name in RESERVED:
        reason = UNQUALIFIED if reason in (None, MISMATCH) else reason
        if name == "audio_transcription":
            tokens = limits.TRANSCRIPTION_TOKENS
            bounds = (*AUDIO_BOUNDS, OptionBound("max_output_tokens", tokens, tokens))
    elif name != "image_generation":
        bounds += IMAGE_BOUNDS if "image" in carried else ()
        bounds += AUDIO_BOUNDS if "audio" in carried else ()
    return Capability(
        capability=name,
        semantic_task=SEMANTIC_TASKS[name],
        input_formats=formats,
        output_formats=(protocol.output_format,),
        input_modalities=carried,
        output_modalities=(protocol.output,),
        streaming=offer.streaming and name in STREAMING,
        availability=Available() if reason is None else Unavailable(reason),
        option_bounds=bounds,
        options=offer.options,
        deterministic=offer.deterministic,
    )


# --- option bounds ---------------------------------------------------------------------------------------------------


def text_bounds(max_tokens: int | None) -> tuple[OptionBound, ...]:
    """The contract's own text options; `max_tokens` where the runtime reports its window."""
    own = (OptionBound("temperature", 0, limits.MAX_TEMPERATURE), OptionBound("top_p", 0, limits.MAX_TOP_P))
    return ((OptionBound("max_tokens", 1, max_tokens),) if max_tokens else ()) + own


LOCAL_SAMPLING = (
    OptionBound("top_k", 0, limits.MAX_TOP_K),
    OptionBound("min_p", 0, limits.MAX_MIN_P),
    OptionBound("seed", 0, limits.MAX_SEED),
    OptionBound("repeat_penalty", limits.MIN_REPEAT_PENALTY, limits.MAX_REPEAT_PENALTY),
)
"""What local lanes offer beyond the contract's text options (C11)."""


def image_bounds(
    width: tuple[int, int], height: tuple[int, int], *, characters: int | None = limits.MAX_PROMPT_CHARACTERS
) -> tuple[OptionBound, ...]:
    """Bounds of image_generation: the dimensions that the adapter supports, and its prompt's length."""
    prompt = (OptionBound("input_characters", 1, characters),) if characters else ()
    return (
        OptionBound("width", *width),
        OptionBound("height", *height),
        OptionBound("seed", 0, limits.MAX_SEED),
        *prompt,
    )


def max_inputs(dimensions: int) -> int:
    """How many vectors of `dimensions` values surely fit one response."""
    room = limits.MAX_RESPONSE_BYTES - 64 * 1024
    return max(1, min(limits.MAX_INPUT_COUNT, room // (max(1, dimensions) * limits.MAX_FLOAT_TEXT + 2)))


def embedding_bounds(
    dimensions: int | None, input_tokens: int | None, count: int | None = None
) -> tuple[OptionBound, ...]:
    """Bounds of text_embedding, each where it is known. `count` defaults to what surely fits a response."""
    bounds = []
    if dimensions:
        bounds += [OptionBound("dimensions", 1, dimensions)]
        bounds += [OptionBound("input_count", 1, count or max_inputs(dimensions))]
    if input_tokens:
        bounds += [OptionBound("input_tokens", 1, input_tokens)]
    return tuple(bounds)


# --- local lanes -----------------------------------------------------------------------------------------------------


class LaneFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a local lane, as plain values: declared by the file until it is loaded, then measured."""

    role: Literal["generate", "embed", "rerank"] | None = None
    """None: not known yet."""
    reason: str | None = None
    """None: it can take work. `model_loading`, `quarantined`, `runtime_unavailable`, ..."""
    embeds: bool = False
    """A model for generation that embeds as well."""
    context: int = 0
    """Tokens one sequence may hold; for an embedder or a reranker the longest input."""
    embed_tokens: int = 0
    """... texts of so many tokens; 0: not known yet."""
    dimensions: int = 0
    chat: bool = False
    """It has a chat template that can be used."""
    decode: bool = True
    """The worker knows DECODE; False: GENERATE only, without sampling and streams (G4)."""
    generate_tokens: int = 0
    """Where `decode` is False: the tokens that fit GENERATE's one deadline."""
    grammar: bool = True
    """Grammars and JSON Schemas can be honoured."""
    deterministic: bool | None = None


DOWN = ("quarantined", "runtime_unavailable")
"""Reasons that all ten capabilities show (D6)."""


def lane_capabilities(facts: LaneFacts) -> tuple[Capability, ...]:
    """The ten descriptors of a local lane (D2)."""
    offers: dict[str, Offer] = {}
    if facts.role == "generate":
        text = _text_offer(facts)
        offers = {"text_generation": text} | ({"chat_generation": text} if facts.chat else {})
    if facts.role == "embed" or facts.embeds:
        bounds = embedding_bounds(facts.dimensions, facts.context if facts.role == "embed" else facts.embed_tokens)
        offers["text_embedding"] = Offer(reason=facts.reason, bounds=bounds)
    elif facts.role == "rerank":
        count = limits.MAX_INPUT_COUNT
        bounds = (OptionBound("top_n", 1, count), OptionBound("input_count", 1, count))
        bounds += (OptionBound("input_tokens", 1, facts.context),) if facts.context else ()
        offers = {"rerank": Offer(reason=facts.reason, bounds=bounds)}
    down = facts.reason is not None and (facts.role is None or facts.reason in DOWN)
    return capabilities(("text",), offers, otherwise=(facts.reason or MISMATCH) if down else MISMATCH)


def _text_offer(facts: LaneFacts) -> Offer:
    if not facts.decode:
        bounds: tuple[OptionBound, ...] = (OptionBound("temperature", 0, 0), OptionBound("top_p", 1, 1))
        if tokens := min(facts.generate_tokens or facts.context, facts.context):
            bounds = (OptionBound("max_tokens", 1, tokens), *bounds)
        options = ("grammar",) if facts.grammar else ()
        return Offer(reason=facts.reason, bounds=bounds, options=options, streaming=False)
    return Offer(
        reason=facts.reason,
        bounds=text_bounds(facts.context) + LOCAL_SAMPLING,
        options=("stop", "grammar", "json_schema") if facts.grammar else ("stop",),
        deterministic=facts.deterministic,
    )


def lane_modalities(facts: LaneFacts) -> Modalities:
    """What a local lane takes and gives; the output is empty until its role is known."""
    outputs = {"generate": ("text",), "embed": ("vector",), "rerank": ("json",), None: ()}[facts.role]
    return Modalities(("text",), (*outputs, "vector") if facts.embeds else outputs)
