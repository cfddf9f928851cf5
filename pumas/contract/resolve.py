"""From a checked request to a plan: which served model, which capability, with which options and media.

The order is that of decision C1: model and profile, resolution (C12), option bounds (D9), media. Everything here is
`not_admitted`. Pure; with large media it takes tens of milliseconds (`strict.is_large` of the body tells).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from pumas.contract import limits
from pumas.contract.describe import MISMATCH, PROTOCOLS, UNQUALIFIED
from pumas.contract.descriptors import Available, Capability, ServedModel, select
from pumas.contract.errors import ContractError, invalid, over_limit
from pumas.contract.media import AudioPayload, Clip, Image, ImagePayload, check_clips, check_images
from pumas.contract.requests import (
    AudioInput,
    AudioPart,
    ContentBatchInput,
    DecisionInput,
    ImageInput,
    ImageMessagesInput,
    ImageOptions,
    ImagePart,
    MessagesInput,
    OperationRequest,
    Options,
    Part,
    RerankInput,
    TextBatchInput,
    TextInput,
    TextOptions,
    TextPart,
)

RETRY_AFTER_S = {"model_loading": 2.0, "model_restarting": 1.0}
"""Reasons that pass by themselves, and after how long trying again makes sense (C4)."""

PERMANENT = frozenset({MISMATCH, UNQUALIFIED, "unknown_model_task", "unsupported_adapter"})
"""Reasons that stay as long as this model is served as it is."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A request that may be handed to its provider.

    `images` and `clips` are those of the request, checked, in the order in which they stand there.
    """

    request: OperationRequest
    served: ServedModel
    capability: Capability
    images: tuple[Image, ...] = ()
    clips: tuple[Clip, ...] = ()


def resolve(request: OperationRequest, served: Iterable[ServedModel]) -> Plan:
    """Resolve a request against what is served now.

    Raises: ContractError: model_not_found, ambiguous_model, unsupported_modality, capability_unavailable,
        ambiguous_operation, invalid_request, request_limit; its request_id is the request's.
    """
    try:
        entry = select(served, request.model, request.profile)
        capability = choose_capability(request, entry)
        _check_options(request.options, capability)
        _check_counts(request, capability)
        images, clips = _media(request)
        return Plan(
            request=request,
            served=entry,
            capability=capability,
            images=tuple(check_images(images)),
            clips=tuple(check_clips(clips)),
        )
    except ContractError as error:
        error.request_id = request.request_id
        raise


# --- which capability (C12) ------------------------------------------------------------------------------------------


class _Needs(msgspec.Struct, frozen=True):
    """What a descriptor must accept to be a candidate."""

    formats: frozenset[str]
    modalities: frozenset[str]


def _needs(request: OperationRequest) -> _Needs:
    content = request.input
    match content:
        case TextInput():
            return _Needs(frozenset({"text"}), frozenset({"text"}))
        case TextBatchInput():
            return _Needs(frozenset({"text_batch"}), frozenset({"text"}))
        case RerankInput():
            return _Needs(frozenset({"rerank"}), frozenset({"text"}))
        case ImageInput():
            return _Needs(frozenset({f"{content.encoding}_base64"}), frozenset({"image"}))
        case AudioInput():
            return _Needs(frozenset({content.encoding}), frozenset({"audio"}))
        case ContentBatchInput():
            return _Needs(frozenset({"content_batch"}), frozenset(_kinds(p for i in content.items for p in i.parts)))
        case DecisionInput():
            present = {"text"} | ({"image"} if content.images else set()) | ({"audio"} if content.audio else set())
            return _Needs(frozenset({"decision"}), frozenset(present))
        case MessagesInput() | ImageMessagesInput():
            kinds = _kinds(part for message in content.messages for part in message.parts)
            if isinstance(content, ImageMessagesInput):
                kinds.add("image")
            media = kinds - {"text"}
            return _Needs(frozenset({f"messages_{kind}" for kind in media or {"text"}}), frozenset(kinds))


def _kinds(parts: Iterable[Part]) -> set[str]:
    names = {TextPart: "text", ImagePart: "image", AudioPart: "audio"}
    return {names[type(part)] for part in parts}


def _accepts(capability: Capability, needs: _Needs, output: str) -> bool:
    """What is unavailable and has no declared modalities is judged by its formats alone: its reason counts."""
    if output not in capability.output_formats or not needs.formats <= set(capability.input_formats):
        return False
    undeclared = not capability.input_modalities and not isinstance(capability.availability, Available)
    return undeclared or needs.modalities <= set(capability.input_modalities)


def choose_capability(request: OperationRequest, served: ServedModel) -> Capability:
    """The one capability of `served` that the request means.

    Raises: ContractError: unsupported_modality, capability_unavailable, ambiguous_operation.
    """
    needs = _needs(request)
    candidates = [
        capability
        for capability in served.capabilities
        if _accepts(capability, needs, request.output)
        and request.capability in (None, capability.capability)
        and request.semantic_task in (None, capability.semantic_task)
        and (capability.streaming or not request.stream)
    ]
    if request.capability is None and "messages_image" in needs.formats:
        # Image messages without a named capability mean image_to_text, as in earlier releases (contract, Modalities).
        candidates = [c for c in candidates if c.capability == "image_to_text"] or candidates
    if not candidates:
        raise _unsupported(request, needs, served)
    available = [capability for capability in candidates if isinstance(capability.availability, Available)]
    if not available:
        raise unavailable(served, candidates)
    if len(available) > 1:
        names = ", ".join(f"`{capability.capability}`" for capability in available)
        message = f"several capabilities of `{served.model}` accept this request; add `capability`, one of {names}"
        raise ContractError("ambiguous_operation", message, field="capability")
    return available[0]


def unavailable(served: ServedModel, candidates: Iterable[Capability]) -> ContractError:
    """The refusal of capabilities that cannot be had now, with their reasons and Retry-After where waiting helps."""
    reasons = {c.capability: getattr(c.availability, "reason", "available") for c in candidates}
    waits = [RETRY_AFTER_S[reason] for reason in reasons.values() if reason in RETRY_AFTER_S]
    told = ", ".join(f"{name} ({reason})" for name, reason in reasons.items())
    now = "" if PERMANENT.issuperset(reasons.values()) else " now"
    message = f"`{served.model}` (profile `{served.profile}`) cannot serve this{now}: {told}"
    if now and served.detail.get("error"):
        message += f"; {served.detail['error']}"
    if now and served.load_state in ("failed", "quarantined"):
        message += f"; to try again: pumas probe {served.model}"
    return ContractError("capability_unavailable", message, retry_after=min(waits) if waits else None)


def _unsupported(request: OperationRequest, needs: _Needs, served: ServedModel) -> ContractError:
    accepted = [
        f"{c.capability} accepts {' '.join(c.input_formats) or 'nothing'} ({' '.join(c.input_modalities) or '-'})"
        f" and gives {' '.join(c.output_formats)}{_reason(c)}"
        for c in served.capabilities
        if request.capability in (None, c.capability)
    ]
    asked = f"{'+'.join(sorted(needs.formats))} ({' '.join(sorted(needs.modalities))}) to {request.output}"
    for name in ("capability", "semantic_task"):
        if (value := getattr(request, name)) is not None:
            asked += f" with {name} `{value}`"
    asked += " as a stream" if request.stream else ""
    message = f"`{served.model}` does not take {asked}; {'; '.join(accepted)}"
    return ContractError("unsupported_modality", message, field="input")


def _reason(capability: Capability) -> str:
    reason = getattr(capability.availability, "reason", None)
    return f", unavailable: {reason}" if reason else ""


# --- options (D9) ----------------------------------------------------------------------------------------------------

FIXED_RANGES: dict[str, tuple[float, float | None]] = {
    "max_tokens": (1, None),
    "temperature": (0, limits.MAX_TEMPERATURE),
    "top_p": (0, limits.MAX_TOP_P),
    "top_k": (0, limits.MAX_TOP_K),
    "min_p": (0, limits.MAX_MIN_P),
    "seed": (0, limits.MAX_SEED),
    "repeat_penalty": (limits.MIN_REPEAT_PENALTY, limits.MAX_REPEAT_PENALTY),
    "dimensions": (1, None),
    "width": (1, None),
    "height": (1, None),
    "top_n": (1, None),
    "max_output_tokens": (1, None),
}
"""Ranges that hold for every model; outside of them: invalid_request."""

_ALWAYS = {"max_tokens", "temperature", "top_p", "dimensions", "width", "height", "top_n"}
"""The contract's own options: accepted also where a runtime reports no bound for them."""


def _check_options(options: Options | None, capability: Capability) -> None:
    name = capability.capability
    kind = PROTOCOLS[name].options_kind
    if options is None:
        if kind == "image_generation":
            raise invalid("image_generation requires options with `width` and `height`", "options")
        return
    given_kind = options.__struct_config__.tag
    if given_kind != kind:
        raise invalid(f"options of kind `{given_kind}` do not go with {name}, which takes `{kind}`", "options.kind")
    for option, value in options.given().items():
        if isinstance(value, int | float):
            check_number(option, value, capability, always=option in _ALWAYS or isinstance(options, ImageOptions))
        elif option != "language":
            _check_offered(option, capability)
    if isinstance(options, TextOptions):
        check_text_words(options.stop or (), options.grammar, options.json_schema)


def check_number(option: str, value: float, capability: Capability, *, always: bool = True) -> None:
    """Check one numeric option against its fixed range, then the descriptor's bound.

    Raises: ContractError: invalid_request outside the fixed range or, without `always`, where it is not offered;
        request_limit outside the descriptor's bound.
    """
    low, high = FIXED_RANGES.get(option, (float("-inf"), None))
    if value < low or (high is not None and value > high):
        span = "positive" if (low, high) == (1, None) else f"in [{low:g}, {high}]"
        raise invalid(f"option `{option}` is {value}; it must be {span}", f"options.{option}")
    bound = capability.bound(option)
    if bound is None:
        if not always:
            _check_offered(option, capability)
    elif not bound.minimum <= value <= bound.maximum:
        span = f"{bound.minimum} to {bound.maximum}"
        message = f"option `{option}` is {value}, outside the bound {span} of {capability.capability}"
        raise ContractError("request_limit", message, field=f"options.{option}")


def _check_offered(option: str, capability: Capability) -> None:
    if option not in capability.options:
        offered = sorted({*capability.options, *(bound.option for bound in capability.option_bounds)} & _OPTION_NAMES)
        told = ", ".join(f"`{word}`" for word in offered) or "none"
        raise invalid(
            f"option `{option}` is not offered by {capability.capability} of this model; offered: {told}",
            f"options.{option}",
        )


_OPTION_NAMES = {*FIXED_RANGES, "stop", "grammar", "json_schema", "language"}


def check_text_words(stop: tuple[str, ...], grammar: str | None, json_schema: dict[str, object] | str | None) -> None:
    """Size bounds of the options that are words. Raises: ContractError: request_limit."""
    if len(stop) > limits.MAX_STOPS:
        raise over_limit("option `stop`", len(stop), limits.MAX_STOPS, "strings", field="options.stop")
    for index, word in enumerate(stop):
        if (size := len(word.encode())) > limits.MAX_STOP_BYTES:
            raise over_limit(f"`stop[{index}]`", size, limits.MAX_STOP_BYTES, "bytes", field="options.stop")
    schema = json_schema if isinstance(json_schema, str | None) else msgspec.json.encode(json_schema)
    for name, text in (("grammar", grammar), ("json_schema", schema)):
        size = len(text.encode() if isinstance(text, str) else text or b"")
        if size > limits.MAX_GRAMMAR_BYTES:
            raise over_limit(f"option `{name}`", size, limits.MAX_GRAMMAR_BYTES, "bytes", field=f"options.{name}")


def check_count(what: str, count: int, capability: Capability, field: str) -> None:
    """Check a number of texts, documents or items against `input_count`. Raises: ContractError: request_limit."""
    bound = capability.bound("input_count")
    if bound is not None and count > bound.maximum:
        raise over_limit(f"input_count ({what})", count, bound.maximum, what, field=field)


def _check_counts(request: OperationRequest, capability: Capability) -> None:
    """The bounds of a descriptor that concern the input and can be counted without a tokenizer."""
    content = request.input
    match content:
        case TextBatchInput():
            check_count("texts", len(content.texts), capability, "input.texts")
        case RerankInput():
            check_count("documents", len(content.documents), capability, "input.documents")
        case ContentBatchInput():
            check_count("items", len(content.items), capability, "input.items")
        case TextInput():
            characters = capability.bound("input_characters")
            if characters is not None and len(content.text) > characters.maximum:
                size = len(content.text)
                raise over_limit("input_characters", size, characters.maximum, "characters", field="input.text")


# --- media -----------------------------------------------------------------------------------------------------------


def _media(request: OperationRequest) -> tuple[list[tuple[str, ImagePayload]], list[tuple[str, AudioPayload]]]:
    """Images and clips of a request, in order, each with the path of its field."""
    content = request.input
    if isinstance(content, ImageInput):
        return [("input", content)], []
    if isinstance(content, AudioInput):
        return [], [("input", content)]
    if isinstance(content, DecisionInput):
        return (
            [(f"input.images[{index}]", image) for index, image in enumerate(content.images or ())],
            [(f"input.audio[{index}]", clip) for index, clip in enumerate(content.audio or ())],
        )
    placed = list(_parts(request))
    images: list[tuple[str, ImagePayload]] = [(at, part) for at, part in placed if isinstance(part, ImagePart)]
    clips: list[tuple[str, AudioPayload]] = [(at, part) for at, part in placed if isinstance(part, AudioPart)]
    if (images or clips) and isinstance(content, MessagesInput | ImageMessagesInput):
        if len(content.messages) > limits.MAX_MEDIA_MESSAGES:
            raise over_limit("message_count", len(content.messages), limits.MAX_MEDIA_MESSAGES, "messages")
        if len(placed) > limits.MAX_MEDIA_PARTS:
            raise over_limit("content_parts", len(placed), limits.MAX_MEDIA_PARTS, "parts")
    return images, clips


def _parts(request: OperationRequest) -> Iterator[tuple[str, Part]]:
    content = request.input
    if isinstance(content, MessagesInput | ImageMessagesInput):
        for index, message in enumerate(content.messages):
            for place, part in enumerate(message.parts):
                yield f"input.messages[{index}].content[{place}]", part
    elif isinstance(content, ContentBatchInput):
        for index, item in enumerate(content.items):
            for place, part in enumerate(item.parts):
                yield f"input.items[{index}].parts[{place}]", part
