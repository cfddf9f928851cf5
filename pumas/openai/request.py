"""What the OpenAI-compatible routes share: typed bodies, sampling options, identifiers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pumas.contract.errors import ContractError
from pumas.contract.explain import explain_field
from pumas.openai.fields import Fields, check_fields
from pumas.operations import TextOptions

T = TypeVar("T")
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class Target(msgspec.Struct, kw_only=True):
    """Whom every body addresses."""

    model: str
    profile: str | None = None


class SamplingFields(Target, kw_only=True):
    """The sampling fields of both text routes, with the public API's ranges."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    grammar: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


def decode(body: Mapping[str, Any], fields: Fields, kind: type[T]) -> tuple[T, tuple[str, ...]]:
    """Check a decoded JSON object against a route's fields and types.

    Returns: the typed body and the names of ignored fields.
    Raises: ContractError(invalid_request) that names the field.
    """
    ignored = check_fields(body, fields)
    try:
        return msgspec.convert({k: v for k, v in body.items() if k in fields.used}, kind), ignored
    except msgspec.ValidationError as error:
        message, where = explain_field(error, body, kind)
        field = None if where is None else where.partition(".")[0].partition("[")[0]
        raise ContractError("invalid_request", message, field=field) from error


def sampling(body: SamplingFields, **more: Any) -> TextOptions:
    """The fields as options. A negative seed is folded into the range that seeds have here.

    Raises: ContractError(invalid_request) for stop strings or a logit_bias that cannot be honoured.
    """
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    if any(not stop for stop in stops):
        raise ContractError("invalid_request", "stop: an empty stop string would end every text", field="stop")
    bias = []
    for key, value in (body.logit_bias or {}).items():
        if not key.isascii() or not key.isdigit() or int(key) >= 2**31:
            raise ContractError("invalid_request", f"logit_bias: {key[:40]!r} is not a token id", field="logit_bias")
        bias.append((int(key), float(value)))
    return TextOptions(
        max_tokens=more.pop("max_tokens", body.max_tokens),
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        seed=None if body.seed is None else body.seed % 2**63,
        stop=tuple(stops),
        repeat_penalty=body.repeat_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=tuple(bias),
        grammar=body.grammar,
        **more,
    )


def include_usage(body: SamplingFields) -> bool:
    """Whether a stream ends with a usage chunk.

    Raises: ContractError(invalid_request) for stream_options without stream, or with unknown keys.
    """
    options = body.stream_options
    if options is None:
        return False
    if not body.stream:
        raise ContractError("invalid_request", "stream_options: only with stream true", field="stream_options")
    for key, value in options.items():
        if key not in ("include_usage", "include_obfuscation") or not isinstance(value, bool | None):
            raise ContractError(
                "invalid_request", f"stream_options: {key[:40]!r} is not supported", field="stream_options"
            )
    if options.get("include_obfuscation"):
        raise ContractError(
            "invalid_request", "stream_options: include_obfuscation is not supported", field="stream_options"
        )
    return options.get("include_usage") is True


def new_id(prefix: str) -> str:
    return f"{prefix}-{os.urandom(12).hex()}"
