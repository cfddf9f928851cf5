"""Breaks a valid request in one place, at any depth, and says what must come of it.

Shared by the tests of the pure core, those over HTTP and the fuzzers: give a seeded `random.Random`, take any number.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.contract.samples import VALID

FREE = {"state", "json_schema"}
"""Members whose value is any JSON: an unknown or repeated type cannot be told there."""
NAMED = {"questions"}
"""Objects whose keys are the caller's; `criteria` of a choice is another."""


@dataclass(frozen=True)
class Raw:
    """JSON text that stands for itself."""

    text: bytes


@dataclass
class Object:
    """An object as its members, so that one can be there twice."""

    members: list[tuple[str | Raw, Any]]


@dataclass(frozen=True)
class Mutant:
    """A broken request.

    Attributes:
        kind, place: what was done where.
        code: the code that must answer it; None: any, or none.
        body: its bytes.
    """

    kind: str
    place: str
    code: str | None
    body: bytes


@dataclass(frozen=True)
class _Place:
    """One value in the tree: how to put another one there, and where it stands."""

    path: tuple[str | int, ...]
    value: Any
    replace: Callable[[Any], None]

    @property
    def free(self) -> bool:
        """Inside a value that may be any JSON."""
        return bool(FREE & set(self.path))

    @property
    def callers_keys(self) -> bool:
        last = self.path[-1] if self.path else ""
        return last in NAMED or (last == "criteria" and "which" in self.path)


def _tree(value: Any) -> Any:
    if isinstance(value, dict):
        return Object([(key, _tree(item)) for key, item in value.items()])
    return [_tree(item) for item in value] if isinstance(value, list) else value


def _text(value: Any) -> bytes:
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, Object):
        return b"{" + b", ".join(_text(key) + b": " + _text(item) for key, item in value.members) + b"}"
    if isinstance(value, list):
        return b"[" + b", ".join(map(_text, value)) + b"]"
    return json.dumps(value, ensure_ascii=False).encode()


def _places(value: Any, path: tuple[str | int, ...], replace: Callable[[Any], None]) -> Iterator[_Place]:
    yield _Place(path, value, replace)
    if isinstance(value, Object):
        for index, (key, item) in enumerate(value.members):

            def put_member(new: Any, index: int = index, key: str | Raw = key) -> None:
                value.members[index] = (key, new)

            yield from _places(item, (*path, str(key)), put_member)
    elif isinstance(value, list):
        for index, item in enumerate(value):

            def put_item(new: Any, index: int = index) -> None:
                value[index] = new

            yield from _places(item, (*path, index), put_item)


def mutate(rng: random.Random, base: dict[str, Any] | None = None) -> Mutant:
    """One mutant of `base`, by default of one of the valid samples."""
    kind = rng.choice(list(_MUTATIONS))
    while True:
        root = [_tree(rng.choice(list(VALID.values())) if base is None else base)]
        places = list(_places(root[0], (), lambda new, root=root: root.__setitem__(0, new)))
        place = rng.choice(places)
        code = _MUTATIONS[kind](rng, place)
        if code is not False:
            return Mutant(kind, "/".join(map(str, place.path)), code, _finish(kind, rng, _text(root[0])))


def _finish(kind: str, rng: random.Random, body: bytes) -> bytes:
    if kind == "truncation":
        return body[: rng.randrange(len(body))]
    if kind == "trailing":
        return body + rng.choice([b"x", b"{}", b"\x00", b",", b"\xef\xbb\xbf"])
    if kind == "bytes":
        broken = bytearray(body)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(broken))
            broken[at : at + rng.randint(0, 2)] = rng.choice(
                [b"", b'"', b"\\", b"{", b"]", b",", b":", b"\xc3", b"e9", b"-"]
            )
        return bytes(broken)
    return body


Expected = str | None | bool
"""The code; None: anything; False: this mutation cannot be done at this place."""


def _unknown_field(rng: random.Random, place: _Place) -> Expected:
    if not isinstance(place.value, Object) or place.free or place.callers_keys:
        return False
    name = rng.choice(["optoins", "x", "", "kind_", "Kind", "\u00e9", "__proto__", "a" * 3000])
    place.value.members.insert(rng.randint(0, len(place.value.members)), (name, rng.choice([1, "x", None, [], {}])))
    return "invalid_request"


def _duplicate_key(rng: random.Random, place: _Place) -> Expected:
    if not isinstance(place.value, Object) or not place.value.members:
        return False
    key, value = rng.choice(place.value.members)
    assert isinstance(key, str)
    again = rng.choice([key, Raw(b'"' + b"".join(b"\\u%04x" % ord(letter) for letter in key) + b'"')])
    place.value.members.insert(rng.randint(0, len(place.value.members)), (again, rng.choice([value, 1, None])))
    return "invalid_request"


def _wrong_type(rng: random.Random, place: _Place) -> Expected:
    if place.free or (place.path and place.path[-1] in FREE):
        return False
    value = place.value
    if isinstance(value, Object):
        others: list[Any] = [1, "x", True, [], 1.5]
    elif isinstance(value, list):
        others = [1, True, Object([]), 1.5]  # a string would do for a message's content
    elif isinstance(value, bool):
        others = [1, "true", [], Object([]), None]
    elif isinstance(value, str):
        others = [1, True, [], Object([]), 1.5]
    else:
        others = ["1", True, [], Object([])]
    if value is None:
        return False
    place.replace(rng.choice(others))
    return "invalid_request"


def _not_json(rng: random.Random, place: _Place) -> Expected:
    texts = [b"NaN", b"Infinity", b"-Infinity", b"nan", b"01", b"1.", b".5", b"+1", b"'x'", b"[1,]", b"undefined", b"~"]
    texts += [
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b'"\x01"',
        b'"\\x"',
        b'"\\u12"',
        b'"\\ud80"',
        b"tru",
        b"--1",
        b"1e",
        b"{1:2}",
    ]
    place.replace(Raw(rng.choice(texts)))
    return "invalid_request"


def _huge_number(rng: random.Random, place: _Place) -> Expected:
    place.replace(Raw(rng.choice([b"1e400", b"-1e999", b"1E+400", b"9" * 400 + b".5e9", b"1" + b"0" * 5000])))
    return "invalid_request"


def _surrogate(rng: random.Random, place: _Place) -> Expected:
    texts = [b'"a\\ud800"', b'"\\uDC00b"', b'"\\ud800\\ud800"', b'"\\ud83d\\u0041"', b'"\\\\\\udfff"']
    place.replace(Raw(rng.choice(texts)))
    return "invalid_request"


def _surrogate_key(rng: random.Random, place: _Place) -> Expected:
    if not isinstance(place.value, Object) or not place.value.members:
        return False
    index = rng.randrange(len(place.value.members))
    key, value = place.value.members[index]
    place.value.members[index] = (Raw(_text(key)[:-1] + b'\\udead"'), value)
    return "invalid_request"


def _deep(rng: random.Random, place: _Place) -> Expected:
    depth = rng.choice([129, 130, 500])
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a":', b"}")])
    place.replace(Raw(opening * depth + b"1" + closing * depth))
    return "invalid_request"


def _missing(rng: random.Random, place: _Place) -> Expected:
    if not isinstance(place.value, Object) or place.free or place.callers_keys or not place.value.members:
        return False
    required = {
        "contract_version",
        "request_id",
        "model",
        "input",
        "output",
        "kind",
        "text",
        "texts",
        "messages",
        "role",
    }
    required |= {
        "content",
        "parts",
        "items",
        "query",
        "documents",
        "encoding",
        "data_base64",
        "sample_count",
        "channels",
    }
    required |= {"sample_rate_hz", "type", "instructions", "questions", "state", "width", "height"}
    names = [key for key, _ in place.value.members if key in required]
    if not names or (place.path and place.path[-1] == "criteria"):
        return False
    name = rng.choice(names)
    place.value.members[:] = [(key, value) for key, value in place.value.members if key != name]
    return "invalid_request"


def _blank(rng: random.Random, place: _Place) -> Expected:
    names = {"text", "texts", "content", "query", "documents"}
    if (
        not isinstance(place.value, str)
        or not place.path
        or not names & set(place.path[-2:])
        or place.path[-1] == "kind"
    ):
        return False
    place.replace(rng.choice(["", " ", "\n\t", "\u3000\u00a0"]))
    return "invalid_request"


def _version(rng: random.Random, place: _Place) -> Expected:
    if place.path != ("contract_version",):
        return False
    place.replace(Raw(rng.choice([b"0", b"2", b"-1", b"18446744073709551616", b"123456789012345678901234567890"])))
    return "unsupported_contract"


def _anything(rng: random.Random, place: _Place) -> Expected:
    return None


_MUTATIONS: dict[str, Callable[[random.Random, _Place], Expected]] = {
    "unknown field": _unknown_field,
    "duplicate key": _duplicate_key,
    "wrong type": _wrong_type,
    "not JSON": _not_json,
    "huge number": _huge_number,
    "lone surrogate": _surrogate,
    "lone surrogate in a key": _surrogate_key,
    "deep nesting": _deep,
    "missing": _missing,
    "blank": _blank,
    "version": _version,
    "truncation": lambda rng, place: "invalid_request",
    "trailing": lambda rng, place: "invalid_request",
    "bytes": _anything,
}


# --- the rule for request_id, read off the specification with another JSON reader ------------------------------------

_ID = re.compile(r"[A-Za-z0-9\-_.:]{1,128}", re.A)


def echoed_id(body: bytes) -> str | None:
    """The request_id that an error answer must carry: the caller's, where the body was JSON with one valid ID."""

    def constant(text: str) -> None:
        raise ValueError(text)

    def members(pairs: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return pairs

    try:
        text = body.decode("utf-8")
        value = json.loads(
            text, parse_constant=constant, parse_int=lambda t: 0, parse_float=lambda t: 0.0, object_pairs_hook=members
        )
    except ValueError:
        return None
    if not text.lstrip(" \t\r\n").startswith("{"):
        return None
    ids = [item for key, item in value if key == "request_id"]
    if len(ids) != 1 or not isinstance(ids[0], str):
        return None
    return ids[0] if _ID.fullmatch(ids[0]) else None
