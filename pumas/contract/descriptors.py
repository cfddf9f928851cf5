"""Served models and their capability descriptors, as discovery shows them (contract, Endpoints; C5, C11, D2)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from pumas.contract.errors import ContractError, invalid
from pumas.contract.limits import CONTRACT_VERSION, MAX_EVENT_BYTES, MAX_REQUEST_BYTES, MAX_RESPONSE_BYTES
from pumas.contract.names import check_model_name, check_profile_name

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


class Capability(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
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

    def bound(self, option: str) -> OptionBound | None:
        return next((bound for bound in self.option_bounds if bound.option == option), None)


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


# --- discovery -------------------------------------------------------------------------------------------------------

_BOUNDS = {
    "supported_contract_versions": (CONTRACT_VERSION,),
    "max_request_bytes": MAX_REQUEST_BYTES,
    "max_response_bytes": MAX_RESPONSE_BYTES,
    "max_stream_event_bytes": MAX_EVENT_BYTES,
}


def select(served: Iterable[ServedModel], model: str, profile: str | None) -> ServedModel:
    """The served model that a request names.

    Raises: ContractError: model_not_found naming what there is, ambiguous_model where several profiles serve the alias.
    """
    every = list(served)
    same = [entry for entry in every if entry.model == model]
    if not same:
        names = _some(sorted({entry.model for entry in every}))
        raise ContractError("model_not_found", f"model `{model}` is not served; served: {names}", field="model")
    if profile is not None:
        for entry in same:
            if entry.profile == profile:
                return entry
        names = _some([entry.profile for entry in same])
        message = f"model `{model}` is not served under profile `{profile}`; its profiles: {names}"
        raise ContractError("model_not_found", message, field="profile")
    if len(same) > 1:
        names = _some([entry.profile for entry in same])
        message = f"model `{model}` is served under several profiles; add `profile`, one of {names}"
        raise ContractError("ambiguous_model", message, field="profile")
    return same[0]


def _some(names: list[str], most: int = 20) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:most]) or "none"
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def served_models_response(served: Sequence[ServedModel]) -> bytes:
    """The body of GET /v1/served-models."""
    aliases = [entry.model for entry in served]
    models = [_entry(entry) | {"profile_required": aliases.count(entry.model) > 1} for entry in served]
    return msgspec.json.encode(_BOUNDS | {"models": models})


def capabilities_response(served: Iterable[ServedModel], query: Sequence[tuple[str, str]]) -> bytes:
    """The body of GET /v1/capabilities for the decoded pairs of its query string.

    Raises: ContractError: a parameter other than `model` and `profile`, one given twice, `model` missing
        (invalid_request); what `select` raises.
    """
    given: dict[str, str] = {}
    for name, value in query:
        if name not in ("model", "profile"):
            raise invalid(f"unknown query parameter `{name[:64]}`; known: `model`, `profile`", name[:64])
        if name in given:
            raise invalid(f"query parameter `{name}` is given twice", name)
        given[name] = value
    if "model" not in given:
        raise invalid("query parameter `model` is missing", "model")
    for name, check in (("model", check_model_name), ("profile", check_profile_name)):
        if name in given:
            try:
                check(given[name])
            except ValueError as error:
                raise invalid(f"query parameter {error}", name) from None
    return msgspec.json.encode(_BOUNDS | _entry(select(served, given["model"], given.get("profile"))))


def _entry(served: ServedModel) -> dict[str, object]:
    """What discovery shows of a served model; absent rather than null where it is not known."""
    shown: dict[str, object] = msgspec.structs.asdict(served)
    shown["capabilities"] = [_descriptor(capability) for capability in served.capabilities]
    return {name: value for name, value in shown.items() if value is not None and value != {}}


def _descriptor(capability: Capability) -> dict[str, object]:
    shown: dict[str, object] = msgspec.structs.asdict(capability)
    return {name: value for name, value in shown.items() if value is not None}
