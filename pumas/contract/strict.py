"""Strict JSON (decision C2): what RFC 8259 allows and two readers could understand differently is refused.

msgspec checks the grammar, UTF-8, surrogates and number ranges. Around it, on the text with its strings taken out:
nesting and size before anything is built, and keys given twice by comparing the keys that the text holds with those
that came out. Everything is linear and made of a few C-speed passes; a body of 32 MiB takes about a tenth of a second,
so large ones belong into a thread (`is_large`).
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from pumas.contract.errors import ContractError, over_limit
from pumas.contract.limits import MAX_JSON_DEPTH, MAX_JSON_MEMBERS, MAX_JSON_VALUES, MAX_REQUEST_BYTES, MAX_REQUEST_ID

LARGE_BYTES = 128 * 1024
"""From here on decoding takes longer than handing it to a thread does."""

_REQUEST_ID = re.compile(rf"[A-Za-z0-9_.:-]{{1,{MAX_REQUEST_ID}}}", re.A)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_KEY_OR_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"[^"]*+"(?![ \t\r\n]*+:))*+(?:("[^"]*+"|[{}\[\]])|\Z)')
"""The next key or bracket, or the end. Other strings are skipped without coming to Python; no byte is read twice."""
_BAD_ESCAPE = re.compile(rb"\\u[dD](?![0-9a-fA-F]{3})")
_EXPONENT = re.compile(rb"(?<=[0-9])[eE][+-]?[0-9]++(?![.eE+-])")
_LONG_INTEGER = re.compile(rb"(?<![0-9.])[1-9][0-9]{299,}+")


def is_large(size: int) -> bool:
    """Whether a body of `size` bytes should be decoded and resolved in a thread instead of on the event loop."""
    return size >= LARGE_BYTES


def valid_request_id(value: object) -> str | None:
    """`value`, if it is a valid request ID (contract, Request grammar)."""
    return value if isinstance(value, str) and _REQUEST_ID.fullmatch(value) else None


def load(body: bytes, limit: int = MAX_REQUEST_BYTES) -> Any:
    """Decode a request body.

    Raises: ContractError: request_limit (bytes, values, members) or invalid_request, its `request_id` set where the
        body was JSON by RFC 8259 and holds one valid top-level request_id (below the 128th level nothing is read).
    """
    if len(body) > limit:
        raise over_limit("request body", len(body), limit, "bytes")
    clean = _mask_escapes(body)
    depth, members = _measure(clean)
    if depth > MAX_JSON_DEPTH:
        message = f"it is nested {depth} levels deep, over the limit of {MAX_JSON_DEPTH}"
        raise _refusal(message, _look(_cut_deep(body, clean)))
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        found = _look(_loosen(clean))
        surrogate = found.is_json and not isinstance(error, msgspec.ValidationError)  # which is a number's range
        raise _refusal("a string holds a lone surrogate" if surrogate else str(error), found) from None
    if _count_members(value) != members:
        found = _look(body)
        raise _refusal(f"key `{(found.repeated or '')[:64]}` is given twice in one object", found)
    return value


class _Found(NamedTuple):
    """What a second look at a refused body found."""

    is_json: bool = False
    request_id: str | None = None
    """Where there is exactly one, and it is valid (C1)."""
    repeated: str | None = None
    """The first key that its object has twice."""


def _look(text: bytes) -> _Found:
    """`text`: the body, made readable where it was JSON but not strict."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return _Found()
    repeated, ids = _find_repeated(text, _mask_escapes(text))
    request_id = valid_request_id(value.get("request_id")) if isinstance(value, dict) and ids == 1 else None
    return _Found(True, request_id, repeated)


def _refusal(why: str, found: _Found) -> ContractError:
    return ContractError("invalid_request", f"body is not strict JSON: {why}", request_id=found.request_id)


def _mask_escapes(body: bytes) -> bytes:
    r"""The body with every `\\` and `\"` replaced by two tildes, so that each quote left begins or ends a string.

    Positions stay. Pairs are taken from the left, so a run of backslashes is split as JSON splits it. A masked string
    is valid where the original was, and never a valid request ID.
    """
    if b"\\" not in body:
        return body
    return body.replace(b"\\\\", b"~~").replace(b'\\"', b"~~")


def _measure(clean: bytes) -> tuple[int, int]:
    """Nesting (exact where it may be too deep) and members of valid JSON, before anything is built.

    Raises: ContractError: request_limit for more values or members than the limits allow.
    """
    if clean.count(b'"') > 2 * (MAX_JSON_VALUES + MAX_JSON_MEMBERS):
        raise over_limit("JSON values", clean.count(b'"') // 2, MAX_JSON_VALUES, "values")
    outside = b"".join(clean.split(b'"')[::2])
    opened = outside.count(b"{") + outside.count(b"[")
    values = outside.count(b",") + opened + 1
    if values > MAX_JSON_VALUES:
        raise over_limit("JSON values", values, MAX_JSON_VALUES, "values")
    members = outside.count(b":")
    if members > MAX_JSON_MEMBERS:
        raise over_limit("JSON members", members, MAX_JSON_MEMBERS, "members")
    if opened <= MAX_JSON_DEPTH:  # too few to be nested too deep
        return opened, members
    brackets = outside.translate(None, _NOT_BRACKETS)
    return int(_depths(np.frombuffer(brackets, np.uint8)).max()), members


def _depths(brackets: NDArray[np.uint8]) -> NDArray[np.int32]:
    """Depth behind each bracket. `[`, `{` are 0x5b, 0x7b; `]`, `}` 0x5d, 0x7d: bit 2 tells them apart."""
    return np.cumsum(1 - ((brackets & 4) >> 1).astype(np.int8), dtype=np.int32)


def _count_members(value: Any) -> int:
    """Members of all objects in a decoded value."""
    count, stack = 0, [value]
    while stack:
        item = stack.pop()
        if type(item) is dict:
            count += len(item)
            stack.extend(child for child in item.values() if type(child) in (dict, list))
        elif type(item) is list:
            stack.extend(child for child in item if type(child) in (dict, list))
    return count


def _find_repeated(body: bytes, clean: bytes) -> tuple[str | None, int]:
    """The first key that its object has already; how often the outermost object has `request_id`. Valid JSON only."""
    repeated: str | None = None
    ids = 0
    objects: list[set[str]] = []
    for found in _KEY_OR_BRACKET.finditer(clean):
        start, end = found.span(1)
        if start < 0:
            break
        mark = clean[start]
        if mark == 0x22:
            text = body[start + 1 : end - 1]
            key = msgspec.json.decode(body[start:end], type=str) if b"\\" in text else text.decode()
            if key in objects[-1] and repeated is None:
                repeated = key
            objects[-1].add(key)
            ids += len(objects) == 1 and key == "request_id"
        elif mark in b"[{":
            objects.append(set())
        else:
            objects.pop()
    return repeated, ids


def _loosen(clean: bytes) -> bytes:
    """The text with what strict reading refuses and the grammar allows made harmless: surrogates, huge numbers."""
    if _BAD_ESCAPE.search(clean):
        return b""
    pieces = clean.replace(b"\\ud", b"~~~").replace(b"\\uD", b"~~~").split(b'"')
    outside = b'"'.join(pieces[::2])
    pieces[::2] = _EXPONENT.sub(b"", _LONG_INTEGER.sub(b"1", outside)).split(b'"')
    return b'"'.join(pieces)


def _cut_deep(body: bytes, clean: bytes) -> bytes:
    """The text with everything below the deepest allowed level replaced by 0; unbalanced text stays unreadable."""
    text = np.frombuffer(clean, np.uint8)
    inside = np.cumsum(text == 0x22, dtype=np.uint8) & 1
    at = np.flatnonzero(((text | 0x20) == 0x7B) | ((text | 0x20) == 0x7D))
    at = at[inside[at] == 0]
    depths = _depths(text[at])
    opens = (text[at] & 4) == 0
    starts = at[opens & (depths == MAX_JSON_DEPTH + 1)].tolist()
    ends = at[~opens & (depths == MAX_JSON_DEPTH)].tolist()
    if len(starts) != len(ends) or depths[-1] != 0:
        return b""
    pieces, position = [], 0
    for start, end in zip(starts, ends, strict=True):
        pieces += [clean[position:start], b"0"]
        position = end + 1
    return _loosen(b"".join([*pieces, clean[position:]]))
