"""Which request fields an OpenAI-compatible route knows, and what becomes of each.

A field is *used*, *ignored* (it cannot change the result; the answer names it in `x-pumas-ignored`), *inert* (only the
values that ask for nothing are taken, any other is refused by name), or unknown (refused, with the nearest known name).
`null` means absent, as clients send it for what their user left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

import msgspec

from pumas.contract.errors import ContractError


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """The known fields of one route.

    Attributes:
        used: read by the route.
        ignored: cannot change the result.
        inert: the values that ask for nothing; the reason why others are refused.
    """

    used: frozenset[str]
    ignored: frozenset[str] = frozenset()
    inert: Mapping[str, tuple[tuple[Any, ...], str]] = {}

    def known(self) -> list[str]:
        return sorted(self.used | self.ignored | set(self.inert))


COMMON_IGNORED = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "cache_prompt",
    }
)
"""Who asks, where it is filed and how the provider may cache it."""

SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "max_tokens",
        "presence_penalty",
        "frequency_penalty",
        "repeat_penalty",
        "logit_bias",
        "grammar",
    }
)
"""What text generation takes; top_k, min_p, repeat_penalty and grammar as other local servers name them."""

CHAT = Fields(
    used=SAMPLING
    | {
        "model",
        "profile",
        "messages",
        "max_completion_tokens",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
    },
    ignored=COMMON_IGNORED,
    inert={
        "n": ((1,), "one choice is given for each request"),
        "modalities": ((["text"],), "only text is generated"),
        "audio": ((), "only text is generated"),
        "prediction": ((), "predicted outputs are not supported"),
        "moderation": ((), "no moderation is done"),
        "reasoning_effort": (("none",), "no served template takes it; use chat_template_kwargs"),
        "verbosity": (("medium",), "no model served here takes it"),
        "web_search_options": ((), "no tools are run here"),
        "functions": (([],), "use tools"),
        "function_call": (("none",), "use tool_choice"),
    },
)
COMPLETIONS = Fields(
    used=SAMPLING | {"model", "profile", "prompt", "stream", "stream_options", "logprobs", "json_schema"},
    ignored=COMMON_IGNORED,
    inert={
        "n": ((1,), "one choice is given for each request"),
        "best_of": ((1,), "one choice is made for each request"),
        "echo": ((False,), "the prompt is not repeated"),
        "suffix": (("",), "filling in the middle is not supported"),
    },
)
EMBEDDINGS = Fields(
    used=frozenset({"model", "profile", "input", "dimensions", "encoding_format"}), ignored=COMMON_IGNORED
)
RERANK = Fields(
    used=frozenset({"model", "profile", "query", "documents", "top_n", "return_documents"}),
    ignored=COMMON_IGNORED | {"priority"},
    inert={
        "rank_fields": ((["text"],), "documents are ranked by their text"),
        "max_chunks_per_doc": ((1,), "documents are ranked whole"),
        "max_tokens_per_doc": ((), "nothing is truncated in silence; shorten the documents"),
        "truncation": ((False,), "nothing is truncated in silence; shorten the documents"),
        "relevant_spans": ((), "only whole documents are scored"),
        "return_embeddings": ((False,), "use /v1/embeddings"),
    },
)
IMAGES = Fields(
    used=frozenset({"model", "profile", "prompt", "size", "seed", "response_format"}),
    ignored=COMMON_IGNORED,
    inert={
        "n": ((1,), "one image is made for each request"),
        "background": (("auto",), "the model decides"),
        "moderation": (("auto", "low"), "no moderation is done"),
        "output_compression": ((100,), "images are PNG"),
        "output_format": (("png",), "images are PNG"),
        "partial_images": ((0,), "images are given whole"),
        "quality": (("auto", "standard"), "the model has one quality"),
        "style": (("vivid", "natural"), "say it in the prompt"),
        "stream": ((False,), "images are given whole"),
        "svg": ((), "images are PNG"),
        "complexity": ((), "images are PNG"),
        "frame_count": ((1,), "one image is made for each request"),
        "frame_duration_ms": ((), "one image is made for each request"),
    },
)


def check_fields(body: Mapping[str, Any], fields: Fields) -> tuple[str, ...]:
    """Refuse what the route cannot honour; return the names of the fields that are ignored, sorted.

    Raises: ContractError(invalid_request) with `field`.
    """
    ignored = []
    for name, value in body.items():
        if name in fields.used:
            continue
        if name not in fields.ignored and name not in fields.inert:
            _unknown(name, fields)
        if value is None:
            continue
        if name in fields.ignored:
            ignored.append(name)
            continue
        values, reason = fields.inert[name]
        if not any(value == other and type(value) is type(other) for other in values):
            raise ContractError("invalid_request", f"{name} is not supported here: {reason}", field=name)
    return tuple(sorted(ignored))


def _unknown(name: str, fields: Fields) -> NoReturn:
    near = difflib.get_close_matches(name, fields.known(), n=1, cutoff=0.6)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ContractError("invalid_request", f"unknown field {name[:100]!r}{hint}", field=name[:100])
