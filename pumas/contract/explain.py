"""Refusals of msgspec in the contract's words: the field, its place, the value, and the nearest name that is known."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(\$.*)`)?", re.S)
_INVALID_WORD = re.compile(r"Invalid (?:enum )?value '(.*)'", re.S)
_NAMED = re.compile(r"`([a-z_]+)`")
_PATH_STEP = re.compile(r"\.([A-Za-z_0-9]+)|\[(\d+)\]|\[\.\.\.\]")


def explain_field(error: msgspec.ValidationError, value: Any, record: type) -> tuple[str, str | None]:
    """msgspec's refusal of a plain record in words: the place, what it may be, what it is; and the place alone."""
    what, _, where = str(error).replace("`", "").partition(" - at $.")
    if not where and "missing required field" in what:
        where = what.rpartition(" ")[2]
    what = what[:1].lower() + what[1:]
    if not where:
        return what, None
    word = _INVALID_WORD.fullmatch(str(error).partition(" - at `$")[0])
    if word:
        name = where.rpartition(".")[2]
        words = _words_of(get_type_hints(record, include_extras=True).get(name))
        what = f"{quote(word[1])} is none of {', '.join(words)}" if words else what
    elif "got" not in what and isinstance(given := value_at(value, "." + where), int | float | str):
        what += f", got {quote(given)}"
    return f"{where}: {what}", where


def _words_of(hint: Any) -> tuple[str, ...]:
    """The words of a Literal, also inside of a union."""
    if get_origin(hint) is Literal:
        return tuple(str(word) for word in get_args(hint))
    return tuple(word for part in get_args(hint) for word in _words_of(part))


class Schema(NamedTuple):
    """What is known: the records (the outermost one first), and the words that fields may hold, by field."""

    records: tuple[type[msgspec.Struct], ...]
    words: Mapping[str, tuple[str, ...]]


def explain(message: str, value: Any, schema: Schema) -> tuple[str, str | None]:
    """msgspec's message about a decoded `value` in words, and the field that it is about."""
    found = _UNKNOWN_FIELD.fullmatch(message)
    if found:
        name, path = found[1], found[2] or "$"
        return f"unknown field {quote(name)} at `{path}`{nearest(name, _fields_at(value, path, schema))}", name[:128]
    text, _, path = message.partition(" - at `$")
    named = _NAMED.search(text)
    field = path.rstrip("`").lstrip(".") or (named[1] if named else "")
    word = _INVALID_WORD.match(text)
    hint = nearest(word[1], _words_at(value, field, schema)) if word else ""
    return _clip(message, 600) + hint, field[:128] or None


def _fields_at(value: Any, path: str, schema: Schema) -> set[str]:
    """Names that would have been known at `path`: of the records with the object's tag, else of those without one."""
    if path == "$":
        return set(schema.records[0].__struct_fields__)
    holder = value_at(value, path)
    tag = (holder.get("kind") or holder.get("type")) if isinstance(holder, dict) else None
    fields: set[str] = set()
    for record in schema.records[1:]:
        if record.__struct_config__.tag == (tag if isinstance(tag, str) else None):
            fields.update(record.__struct_fields__)
    return fields


def _words_at(value: Any, path: str, schema: Schema) -> tuple[str, ...]:
    """Words that would have been known at `path`, where they are few."""
    before, _, name = path.rpartition(".")
    if name == "encoding":
        holder = value_at(value, "." + before)
        if isinstance(holder, dict) and (holder.get("kind") == "audio" or "sample_rate_hz" in holder):
            name = "audio encoding"
    return schema.words.get(name, ())


def value_at(value: Any, path: str) -> Any:
    """The value at a path of msgspec's; a step through a caller's own key is not named there and is skipped."""
    for step in _PATH_STEP.finditer(path):
        if isinstance(value, dict) and step[1] in value:
            value = value[step[1]]
        elif isinstance(value, list) and step[2]:
            value = value[int(step[2])]
    return value


def nearest(name: str, known: Collection[str]) -> str:
    """Words to add to a refusal: the nearest known name, or all of them; nothing where none is known."""
    match = difflib.get_close_matches(name[:64], list(known), n=1)
    if match:
        return f"; the nearest known is `{match[0]}`"
    return f"; known: {', '.join(f'`{word}`' for word in sorted(known))}" if known else ""


def quote(value: object) -> str:
    """A value of the caller's as it may stand in a message: short, in backquotes."""
    return f"`{_clip(str(value), 64)}`"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
