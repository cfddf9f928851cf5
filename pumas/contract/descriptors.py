"""Served models and their capability descriptors, as discovery shows them (contract, Endpoints; decisions C5, C11, D2)."""

from __future__ import annotations

from typing import Literal

import msgspec

LoadState = Literal["loaded", "loading", "unloaded", "failed", "quarantined"]
Modality = Literal["text", "image", "audio", "video", "json", "vector"]

CAPABILITIES = (
    "chat_generation",
    "text_generation",
    "text_embedding",
    "image_generation",
    "image_to_text",
    "multimodal_embedding",
    "decision",
    "rerank",
    "audio_transcription",
    "audio_classification",
)
"""All ten, in the order in which every served model lists them (D2)."""

SEMANTIC_TASKS = {name: name for name in CAPABILITIES} | {
    "image_generation": "text_to_image",
    "audio_transcription": "speech_to_text",
}
"""Semantic task by capability (C5)."""


class Available(msgspec.Struct, tag="available", tag_field="state", frozen=True):
    pass


class Unavailable(msgspec.Struct, tag="unavailable", tag_field="state", frozen=True):
    reason: str


class OptionBound(msgspec.Struct, frozen=True):
    option: str
    minimum: float | int
    maximum: float | int


class Capability(msgspec.Struct, frozen=True, kw_only=True):
    """One capability of one served model: what it takes and gives, and whether it can be had now."""

    capability: str
    semantic_task: str
    input_formats: tuple[str, ...] = ()
    output_formats: tuple[str, ...] = ()
    input_modalities: tuple[str, ...] = ()
    output_modalities: tuple[str, ...] = ()
    streaming: bool = False
    availability: Available | Unavailable
    option_bounds: tuple[OptionBound, ...] = ()
    options: tuple[str, ...] = ()
    """Additive: the option words that hold here (C11)."""
    deterministic: bool | None = None
    """Additive: the same prompt, options and seed give the same text under any load (G2)."""


class Modalities(msgspec.Struct, frozen=True):
    input: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class ServedModel(msgspec.Struct, frozen=True, kw_only=True):
    """One served (alias, profile) at one moment: an immutable snapshot, made by its provider without waiting."""

    model: str
    profile: str
    model_id: str
    provider: str
    load_state: LoadState
    context_tokens: int | None = None
    modalities: Modalities = Modalities()
    capabilities: tuple[Capability, ...] = ()
    detail: dict[str, str] = {}
    """Additive: what the operator may want to know (`tokenizer`, `injection`, `deterministic`, `error`)."""

    def capability(self, name: str) -> Capability:
        return next(c for c in self.capabilities if c.capability == name)
