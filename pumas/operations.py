"""What a provider is asked to do and what it answers: the one vocabulary of the typed and the OpenAI-compatible routes.

Requests are checked against the contract before they become operations; results are checked by the provider before
they leave it. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray


class TextPart(msgspec.Struct, frozen=True):
    text: str


class ImagePart(msgspec.Struct, frozen=True):
    encoding: Literal["png", "jpeg"]
    data: bytes


class AudioPart(msgspec.Struct, frozen=True):
    """Raw little-endian PCM, checked (contract, Modalities)."""

    encoding: Literal["pcm_s16le", "pcm_f32le"]
    sample_rate_hz: int
    channels: int
    sample_count: int
    data: bytes


Part = TextPart | ImagePart | AudioPart


class Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    """system, user, assistant; on OpenAI routes also tool (D13)."""
    content: str | tuple[Part, ...] | None
    tool_calls: tuple[dict[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class TextOptions(msgspec.Struct, frozen=True, kw_only=True):
    """None: the provider's default (G7)."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: str | None = None
    json_schema: str | None = None
    """The schema's JSON text."""
    logprobs: int | None = None


class GenerateText(msgspec.Struct, frozen=True, kw_only=True):
    """One of `messages`, `prompt`, `prompt_ids`."""

    capability: str
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    prompt_ids: tuple[int, ...] | None = None
    options: TextOptions = TextOptions()
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | None = None
    """None, "none", "auto", "required", or a function's name."""
    template_extras: dict[str, Any] = {}
    stream: bool = False


class Embed(msgspec.Struct, frozen=True, kw_only=True):
    """`inputs`: texts, token ids, or the parts of one multimodal item each."""

    capability: str = "text_embedding"
    inputs: tuple[str | tuple[int, ...] | tuple[Part, ...], ...]
    dimensions: int | None = None


class Rerank(msgspec.Struct, frozen=True, kw_only=True):
    query: str
    documents: tuple[str, ...]


class Decide(msgspec.Struct, frozen=True, kw_only=True):
    state: Any
    questions: dict[str, Any]
    images: tuple[ImagePart, ...] = ()
    audio: tuple[AudioPart, ...] = ()


class GenerateImage(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    width: int
    height: int
    seed: int | None = None


# --- results ---------------------------------------------------------------------------------------------------------


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens as the model counts them."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


class TextDelta(msgspec.Struct, frozen=True):
    text: str
    logprobs: tuple[Any, ...] = ()
    """synapse.wire.messages.TokenLogprob or the like: token, bytes, logprob, top."""


class TextStream(Protocol):
    """A generation that was admitted. Iterate it to the end, then read the rest; leaving its context disposes it."""

    def __aiter__(self) -> AsyncIterator[TextDelta]: ...

    @property
    def finish_reason(self) -> str:
        """stop, length or content_filter; after the iteration only."""

    @property
    def usage(self) -> Usage: ...

    @property
    def seed(self) -> int | None: ...


class Embeddings(msgspec.Struct, frozen=True):
    vectors: NDArray[np.float32]
    """float32[n, dims], C order, L2-normalized, finite."""
    input_tokens: int


class Scores(msgspec.Struct, frozen=True):
    scores: tuple[float, ...]
    """One for each document, in their order, finite."""
    input_tokens: int


class Decisions(msgspec.Struct, frozen=True):
    answers: dict[str, Any]
    input_tokens: int


class GeneratedImage(msgspec.Struct, frozen=True):
    png: bytes
    seed: int
