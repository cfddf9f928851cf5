"""Grammars and JSON schemas of clients."""

from __future__ import annotations

import random

import msgspec

from fuzz.boxed import BY_LIMITS, BY_NATIVE_CODE, Box
from fuzz.mutate import damaged
from synapse.artifacts.grammar import GrammarRefused, check_grammar

INVARIANT = (
    "A grammar or schema is taken or refused with GrammarRefused, in one line of bounded length, within a text "
    "process's limits; what kills the native compiler kills this process only."
)
CPU_S = 4.0
EXTRA_BYTES = 1 << 30
SLOW_S = 60.0
_GBNF = (
    'root ::= "yes" | "no"',
    'root ::= item{1,3} ws\nitem ::= [a-z]+ ("," [^\\n"]*)?\nws ::= [ \\t]*\n# comment\n',
    'root ::= "\\x41\\u00e9" . (a | b)*\na ::= "a" b\nb ::= [0-9-] | "" ',
    '%llguidance {}\nstart: "a" /[0-9]+/ b\nb: "x" | b "y"\n',
)
_SCHEMAS = (
    {"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}, "b": {"$ref": "#/$defs/x"}},
     "required": ["a"], "additionalProperties": False, "$defs": {"x": {"enum": ["u", 1, None]}}},
    {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{2,5}$", "maxLength": 9}, "minItems": 1,
     "maxItems": 4},
    {"anyOf": [{"const": {"k": [1]}}, {"type": "number", "multipleOf": 0.5}, {"type": ["null", "boolean"]}]},
    {"type": "string", "format": "date-time", "x-guidance": {}},
    {"oneOf": [{"type": "string"}, {"type": "integer"}], "not": {}},
)  # fmt: skip
_WORDS = (
    *(
        b"::=",
        b"|",
        b"(",
        b")",
        b"[",
        b"]",
        b"*",
        b"+",
        b"?",
        b"{1000000}",
        b"{0,99999}",
        b"\\x",
        b'"',
        b"\n",
        b"root",
        b".",
    ),
    *(
        b'"pattern":"(a+)+$"',
        b'"pattern":"(((((a{9}){9}){9}){9}){9})"',
        b'"type":"object"',
        b'"$ref":"#"',
        b'"minItems":99999',
    ),
    *(
        b"((((((((" * 40,
        b"[" * 300,
        b"null",
        b"-1",
        b"1e308",
        b"\xff",
        b'"enum":[]',
        b'"allOf":[{}]',
        b"%llguidance {}\n",
    ),
)
_box = Box("grammars", BY_LIMITS | BY_NATIVE_CODE)


def check(data: bytes) -> None:
    """The first line is `grammar` or `json_schema`, the rest the text."""
    _box.check(data)


def close() -> None:
    _box.close()


def inside(data: bytes) -> None:
    """What is done in the child."""
    kind, _, text = data.partition(b"\n")
    try:
        check_grammar("json_schema" if kind == b"json_schema" else "grammar", text.decode("utf-8", "replace"))
    except GrammarRefused as error:
        assert len(str(error)) < 1000, len(str(error))
        assert "\n" not in str(error), str(error)


def generate(rng: random.Random) -> bytes:
    if rng.random() < 0.5:
        return b"grammar\n" + damaged(rng, rng.choice(_GBNF).encode(), _WORDS)
    text = msgspec.json.encode(rng.choice(_SCHEMAS))
    if rng.random() < 0.5:
        return b"json_schema\n" + damaged(rng, text, _WORDS)
    at = rng.choice([index + 1 for index, byte in enumerate(text[:-1]) if byte in b":,"])
    return b"json_schema\n" + text[:at] + rng.choice(_WORDS) + b"," + text[at:]
