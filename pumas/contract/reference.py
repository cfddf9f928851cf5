"""docs/contract.md, written from the code that enforces it: `python -m pumas.contract.reference > docs/contract.md`."""

from __future__ import annotations

import builtins
import types
import typing
from collections.abc import Iterable
from typing import Any, get_args, get_origin, get_type_hints

import msgspec

from pumas.contract.describe import DOWN, MISMATCH, PROTOCOLS, RESERVED, STREAMING, UNQUALIFIED
from pumas.contract.descriptors import CAPABILITIES, SEMANTIC_TASKS
from pumas.contract.errors import STATUS
from pumas.contract.guide import guide
from pumas.contract.limits import LIMITS, MAX_MESSAGE_CHARACTERS
from pumas.contract.requests import (
    AnyInput,
    AnyOptions,
    AudioPart,
    BatchItem,
    ChoiceQuestion,
    DecisionClip,
    DecisionImage,
    ImagePart,
    Message,
    NoulCriteria,
    NoulQuestion,
    OperationRequest,
    ScoreQuestion,
    TextPart,
)
from pumas.contract.resolve import FIXED_RANGES, RETRY_AFTER_S

_REFUSED: dict[str, str] = {
    "invalid_request": "The body is not strict JSON or does not match the contract; an option outside its fixed range"
    " or not offered; media that are not what they say.",
    "unsupported_contract": "`contract_version` is an integer other than 1.",
    "unauthenticated": "An API key is needed and was not given, or is wrong. Additive.",
    "forbidden": "A foreign `Host` or `Origin`, or a route for this machine only. Additive.",
    "not_found": "No such route. Additive.",
    "model_not_found": "The alias is not served, or not under this profile.",
    "method_not_allowed": "The route does not take this method. Additive.",
    "ambiguous_model": "The alias is served under several profiles and none was named.",
    "ambiguous_operation": "Several available capabilities accept the request: add `capability`.",
    "request_limit": "Over a bound, which is named with the request's value.",
    "unsupported_modality": "No capability takes this input and gives this output; what each takes is named.",
    "capability_unavailable": "It cannot be had now, for the reason named. `Retry-After` where waiting helps.",
}
_FAILED: dict[str, str] = {
    "provider_failure": "The worker or upstream failed, crashed or refused after the operation was handed over.",
    "invalid_provider_result": "The provider's answer is incoherent: counts, indexes, numbers, finish reason, events.",
    "response_limit": "The answer is over the response bound.",
    "transport_lost": "The connection to an upstream broke in the middle.",
}
CODES = {code: ("not_admitted", when) for code, when in _REFUSED.items()}
CODES |= {code: ("unknown", when) for code, when in _FAILED.items()}
"""Usual outcome and meaning of every code. `unknown` begins with the hand-over to the provider (C3): what a provider
refuses after it, a limit of its own for one, keeps its code and is `unknown` too."""

_HEAD = """\
# The typed contract

How to ask a gateway for typed operations, and every figure of it. Generated from `pumas/contract` by
`python -m pumas.contract.reference > docs/contract.md`; a test fails when it differs. The
contract itself is *Model operations, contract version 1*. The names in brackets (C1, D9) are decisions about what it
leaves open.
"""

_RULES = """\
## Order of refusal

The first of these that fails is the answer (C1): size of the body, JSON, `contract_version`, schema, model and profile,
capability, options and input counts, media. Nothing of it has an effect, so the outcome is `not_admitted`.

`request_id` is echoed when the body was JSON by RFC 8259 and its outermost object has exactly one `request_id`, a valid
one; otherwise it is null. So it is echoed with a key given twice elsewhere, a lone surrogate written as an escape, a
number that no double holds, and nesting over the limit (below the 128th level nothing is read); it is null for a
truncated body, `NaN`, bytes that are not UTF-8, and a `request_id` given twice.

Where a request field is optional, null means absent; `stream` is true or false.

## Resolution

Candidates are the descriptors that accept the input's format and modalities, give the output, agree with `capability`
and `semantic_task`, and stream if `stream` is true (C12). None: `unsupported_modality`. None available:
`capability_unavailable` with each one's reason. Several: `ambiguous_operation`. Image messages without audio mean
image_to_text where neither `capability` nor `semantic_task` says otherwise; messages with audio mean chat_generation.
`image_messages` count as holding an image.
"""


def render() -> str:
    """The whole page."""
    return "\n".join(
        (_HEAD, guide(), _codes(), _limits(), _RULES, _capabilities(), _availability(), _options(), _requests())
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = [list(head)]
    lines.append(["---"] * len(lines[0]))
    lines.extend([str(cell) for cell in row] for row in rows)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _words(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "none"


def _codes() -> str:
    rows = [(f"`{code}`", status, f"`{CODES[code][0]}`", CODES[code][1]) for code, status in STATUS.items()]
    note = "`unknown` begins where the operation is handed to a provider (C3), whatever the code.\n\n"
    return f"## Codes\n\n{note}" + _table(("Code", "Status", "Usual outcome", "When"), rows)


def _limits() -> str:
    rows = [(limit.name, f"{limit.maximum:,}", limit.unit, f"`{limit.code}`", limit.source) for limit in LIMITS]
    note = (
        "Fixed bounds. What a model or its runtime bounds stands in its descriptors' `option_bounds`. A message that\n"
        f"leaves is cut to {MAX_MESSAGE_CHARACTERS:,} characters, and credentials in it are taken out.\n\n"
    )
    return f"## Limits\n\n{note}" + _table(("What", "At most", "Unit", "Beyond it", "Source"), rows)


def _capabilities() -> str:
    rows = []
    for name in CAPABILITIES:
        protocol = PROTOCOLS[name]
        streams = "yes" if name in STREAMING else "no"
        rows.append(
            (
                f"`{name}`",
                f"`{SEMANTIC_TASKS[name]}`",
                _words(protocol.formats),
                ", ".join(protocol.inputs),
                f"`{protocol.output_format}` ({protocol.output})",
                f"`{protocol.options_kind}`",
                streams,
            )
        )
    note = (
        "What each capability's protocol can carry. A descriptor shows what is left of it for a model: formats and\n"
        "modalities that the model does not take are missing there.\n\n"
    )
    head = ("Capability", "Semantic task", "Input formats", "Input modalities", "Output", "Options kind", "Streams")
    return f"## Capabilities\n\n{note}" + _table(head, rows)


def _availability() -> str:
    waits = ", ".join(f"`{reason}` after {seconds:g} s" for reason, seconds in RETRY_AFTER_S.items())
    return f"""## Availability

Every served model lists all ten capabilities. {_words(RESERVED)}
are `{UNQUALIFIED}`; what does not fit the model is `{MISMATCH}`; a model that is down shows
{_words(DOWN)} for all ten. Trying again makes sense with
{waits}.
"""


def _options() -> str:
    rows = []
    for name, (low, high) in FIXED_RANGES.items():
        rows.append((f"`{name}`", f"{low:g}", "no fixed end" if high is None else f"{high:,}"))
    note = (
        "Outside these ranges: `invalid_request`, for every model. Outside the descriptor's `option_bounds`:\n"
        "`request_limit` (D9). Options that are words (`stop`, `grammar`, `json_schema`) are offered where the\n"
        "descriptor's `options` names them; what is not offered is refused by name.\n\n"
    )
    return f"## Options\n\n{note}" + _table(("Option", "From", "To"), rows)


_PARTS: dict[type, str] = {
    Message: "message",
    TextPart: "text part",
    ImagePart: "image part",
    AudioPart: "audio part",
    BatchItem: "item",
    ChoiceQuestion: "choice question",
    ScoreQuestion: "score question",
    NoulQuestion: "noul question",
    NoulCriteria: "noul criteria",
    DecisionImage: "image",
    DecisionClip: "clip",
}


def _requests() -> str:
    rows = _fields("request", OperationRequest)
    for title, union in (("input", AnyInput), ("options", AnyOptions)):
        for record in get_args(union):
            rows += _fields(f"{title}, kind `{record.__struct_config__.tag}`", record)
    for record, title in _PARTS.items():
        tag = record.__struct_config__  # type: ignore[attr-defined]
        rows += _fields(title if tag.tag is None else f"{title}, {tag.tag_field} `{tag.tag}`", record)
    note = "Closed: any other field is refused by name. The tag (`kind`, `type`) is always required.\n\n"
    return f"## Request records\n\n{note}" + _table(("Record", "Field", "", "Value"), rows)


def _fields(title: str, record: type) -> list[tuple[str, str, str, str]]:
    """A row for each field; a record without any has one, too."""
    hints = get_type_hints(record, include_extras=True)
    rows = []
    for field in msgspec.structs.fields(record):
        required = field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
        rows.append((f"`{field.encode_name}`", "required" if required else "optional", _type(hints[field.name])))
    return [(title if index == 0 else "", *row) for index, row in enumerate(rows or [("-", "", "")])]


def _type(hint: Any) -> str:
    """A type in the words of JSON."""
    arguments = get_args(hint)
    match get_origin(hint):
        case typing.Annotated:
            return _type(arguments[0])
        case typing.Literal:
            return ", ".join(f"`{value}`" for value in arguments)
        case typing.Union | types.UnionType:
            kinds = [part for part in arguments if part is not type(None)]
            if set(kinds) <= set(get_args(AnyInput)):
                return "an input"
            if set(kinds) <= set(get_args(AnyOptions)):
                return "options"
            return " or ".join(_type(part) for part in kinds)
        case builtins.tuple:
            return f"list of: {_type(arguments[0])}"
        case builtins.dict:
            null = " or null" if type(None) in get_args(arguments[1]) else ""
            return f"object of: {_type(arguments[1])}{null}"
    plain: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "true or false", Any: "any JSON"}
    return plain.get(hint) or _PARTS[hint]


if __name__ == "__main__":
    print(render(), end="")
