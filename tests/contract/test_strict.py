"""Strict JSON: what two readers could understand differently is refused; the rest is what another reader finds."""

from __future__ import annotations

import json
import random

import pytest

from pumas.contract import strict
from pumas.contract.errors import ContractError
from tests.contract.mutate import echoed_id

ID = b'"request_id": "a:1"'


def refusal(body: bytes) -> ContractError:
    with pytest.raises(ContractError) as caught:
        strict.load(body)
    return caught.value


STRICT: dict[str, tuple[bytes, str | None]] = {
    "twice": (b'{%b, "a": 1, "a": 1}', "a:1"),
    "twice, one escaped": (b'{%b, "a": 1, "\\u0061": 1}', "a:1"),
    "twice, deep": (b'{%b, "x": [{"y": [{"a": {}, "b": 1, "a": 2}]}]}', "a:1"),
    "twice, quotes in it": (b'{%b, "\\"": 1, "\\u0022": 2}', "a:1"),
    "twice, backslashes in it": (b'{%b, "\\\\": 1, "\\u005c": 2}', "a:1"),
    "twice, empty": (b'{%b, "": 1, "": 2}', "a:1"),
    "the ID twice": (b'{%b, "request_id": "a:1"}', None),
    "the ID twice, one escaped": (b'{%b, "request\\u005fid": "b"}', None),
    "the ID's name deeper down": (b'{%b, "x": {"request_id": 1, "request_id": 2}}', "a:1"),
    "not a number": (b'{%b, "x": NaN}', None),
    "infinity": (b'{%b, "x": -Infinity}', None),
    "over a double": (b'{%b, "x": 1e400}', "a:1"),
    "too many digits": (b'{%b, "x": ' + b"9" * 5000 + b"}", "a:1"),
    "too many digits after a zero": (b'{%b, "x": 0' + b"9" * 5000 + b"}", None),
    "no number at all": (b'{%b, "x": 0e9.9}', None),
    "no number at all, huge": (b'{%b, "x": [1e999, 0e9.9]}', None),
    "lone high surrogate": (b'{%b, "x": "\\ud83d"}', "a:1"),
    "lone low surrogate": (b'{%b, "x": "\\udE00 "}', "a:1"),
    "surrogates behind a backslash": (b'{%b, "x": "\\\\\\ud83d"}', "a:1"),
    "half an escape": (b'{%b, "x": "\\ud8"}', None),
    "raw surrogate": (b'{%b, "x": "\xed\xa0\xbd"}', None),
    "no UTF-8": (b'{%b, "x": "\xff"}', None),
    "overlong UTF-8": (b'{%b, "x": "\xc0\x80"}', None),
    "control character": (b'{%b, "x": "\x01"}', None),
    "129 levels": (b'{%b, "x": ' + b"[" * 128 + b"]" * 128 + b"}", "a:1"),
    "129 levels of objects": (b'{%b, "x": ' + b'{"a":' * 128 + b"1" + b"}" * 128 + b"}", "a:1"),
    "100,000 levels": (b'{%b, "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "a:1"),
    "several deep places": (b'{%b, "x": [' + (b"[" * 128 + b"]" * 128 + b",") * 3 + b'"[["], "y": "]"}', "a:1"),
    "deep and open": (b'{%b, "x": ' + b"[" * 200 + b"]" * 199 + b"}", None),
    "deep and wrong brackets": (b'{%b, "x": ' + b"[" * 200 + b"]" * 201, None),
    "deep and a second ID": (b'{%b, "x": ' + b"[" * 200 + b"]" * 200 + b', "request_id": "b"}', None),
    "byte order mark": (b"\xef\xbb\xbf{%b}", None),
    "trailing comma": (b"{%b,}", None),
    "comment": (b"{%b /* x */}", None),
    "single quotes": (b"{%b, 'x': 1}", None),
    "empty": (b"", None),
    "a quote": (b'"', None),
    "open brackets": (b"[" * 100_000, None),
    "closed brackets": (b"]" * 100_000, None),
}


@pytest.mark.parametrize("name", STRICT)
def test_what_is_refused(name: str) -> None:
    template, request_id = STRICT[name]
    error = refusal(template.replace(b"%b", ID))
    assert (error.code, error.outcome, error.request_id) == ("invalid_request", "not_admitted", request_id)


ALLOWED = (
    b'{"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}',
    b'{"x": "\\"a\\": 1, \\"a\\": 2", "y": "{\\\\", "z": ":,:{}[]"}',
    b'{"x": "\\ud83d\\ude00", "y": "\xf0\x9f\x98\x80", "z": "\\\\ud800"}',
    b'{"x": 1e308, "y": 1e-400, "z": -0, "w": 123456789012345678901234567890}',
    b" \t\r\n[ ]\n",
    b'{"": {"": ""}}',
    b'{"a" : 1, "A" :2 , "\\u00e9":3, "e\\u0301": 4}',
    b"[" * 128 + b"]" * 128,
    b'"' + b"[" * 1000 + b'"',
    b"0",
    b"null",
)


@pytest.mark.parametrize("body", ALLOWED)
def test_what_is_read(body: bytes) -> None:
    assert strict.load(body) == json.loads(body)


class Twice(Exception):
    """A key given twice in one object."""


def members(pairs: list[tuple[str, object]]) -> dict[str, object]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise Twice
    return dict(pairs)


STRINGS = ("", "a", "b", '\\"', "\\\\", "\\u0061", "{", "]", ":", ",", '\\\\\\"', "request_id", "\u00e9", "\\\\u0061")


def random_json(rng: random.Random, depth: int = 0) -> str:
    """Valid JSON, often with a key given twice, its strings full of what looks like structure."""

    def text() -> str:
        return '"' + "".join(rng.choice(STRINGS) for _ in range(rng.randint(0, 2))) + '"'

    space = rng.choice(["", "", " ", "\n\t"])
    kind = rng.choice("oaasn") if depth < 4 else "s"
    if kind == "o":
        pairs = [f"{text()}{space}:{space}{random_json(rng, depth + 1)}" for _ in range(rng.randint(0, 3))]
        return "{" + f"{space},".join(pairs) + "}"
    if kind == "a":
        return "[" + f",{space}".join(random_json(rng, depth + 1) for _ in range(rng.randint(0, 3))) + "]"
    return text() if kind == "s" else rng.choice(["0", "-1.5e3", "true", "null"])


def test_random_text_is_read_as_another_reader_reads_it() -> None:
    """Whole and with a byte less or more: accepted exactly where a reader that sees pairs finds nothing to refuse."""
    rng = random.Random(11)
    accepted = twice = 0
    for index in range(10_000):
        text = random_json(rng)
        if index % 3 == 2:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["", '"', "\\", "{", "]", ",", ":"]) + text[at + 1 :]
        body = text.encode()
        try:
            expected = json.loads(text, object_pairs_hook=members)
        except ValueError:
            assert refusal(body).request_id is None, text
        except Twice:
            assert refusal(body).request_id == echoed_id(body), text
            twice += 1
        else:
            assert strict.load(body) == expected, text
            accepted += 1
    assert accepted > 4_000
    assert twice > 300


@pytest.mark.parametrize("size", [0, 1, strict.LARGE_BYTES - 1])
def test_small_bodies_stay_on_the_loop(size: int) -> None:
    assert not strict.is_large(size)
    assert strict.is_large(strict.LARGE_BYTES)


N = 4 * 1024 * 1024
HOSTILE: dict[str, bytes] = {
    "escaped quotes": b'"' + b'\\"' * (N // 2) + b'"',
    "backslashes": b'"' + b"\\\\" * (N // 2) + b'"',
    "surrogates": b'"' + b"\\ud800" * (N // 6) + b'"',
    "empty strings": b"[" + b'"",' * (N // 3) + b"1]",
    "empty objects": b"[" + b"{}," * (N // 3) + b"1]",
    "numbers": b"[" + b"0," * (N // 2) + b"1]",
    "huge numbers": b"[" + b"1e999," * 900_000 + b"1]",
    "digits": b"9" * N,
    "fraction": b"0." + b"1" * N,
    "exponent": b"1e" + b"1" * N,
    "brackets": b"[" * (N // 2) + b"]" * (N // 2),
    "deep pieces": b"[" * 127 + b"[[]]," * 260_000 + b"1" + b"]" * 127,
    "white space": b" " * N + b"1",
    "a key and white space": b'{"a"' + b" " * N + b':1,"a":2}',
    "quotes": b'"' * N,
    "members": b"{" + b",".join(b'"%d":0' % index for index in range(262_000)) + b',"7":1}',
    "colons": b":" * N,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_ends(name: str) -> None:
    """Each takes well below a second; a step that is quadratic in any of them would take minutes."""
    try:
        strict.load(HOSTILE[name])
    except ContractError as error:
        allowed = error.code in ("invalid_request", "request_limit")
    else:
        allowed = name in ("escaped quotes", "backslashes", "fraction", "white space")
    assert allowed
