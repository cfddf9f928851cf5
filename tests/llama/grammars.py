"""Grammars and schemas that break others: what abort, hang, eat memory or are dropped in silence (docs/engine.md)."""

from __future__ import annotations

import json
from typing import Any

JSON_GBNF = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

HONOURED_GRAMMARS: dict[str, str] = {
    "json.gbnf": JSON_GBNF,
    "a CJK class": "root ::= [一-龥]{3}",
    "emoji": 'root ::= "数据😀ü"',
    "a literal": 'root ::= "yes" | "no"',
    "nullable left recursion": 'root ::= root? "a"',
    "ambiguous": 'root ::= root root | "a"',
    "200 optional items": "root ::= " + '"a"? ' * 200,
    "Lark": '%llguidance {}\nstart: /[0-9]{3}/ "-" /[a-z]{2}/',
    "a long repetition": "root ::= [a-z]{5000}",
}

REFUSED_GRAMMARS: dict[str, str] = {
    "empty": "",
    "only a comment": "# nothing",
    "no root": 'rule ::= "a"',
    "an undefined rule": "root ::= missing",
    "a repetition backwards": 'root ::= "a"{5,2}',
    "a class backwards": "root ::= [z-a]",
    "an open parenthesis": 'root ::= ("a"',
    "no grammar at all": "{{{",
    "nothing to produce": "root ::= root",
    "100,000 parentheses": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "900-deep nesting in Lark": "%llguidance {}\nstart: " + "(" * 20_000 + '"a"' + ")" * 20_000,
    "too long": 'root ::= "' + "a" * 300_000 + '"',
    "broken Lark": "%llguidance {}\nstart: (",
    "a look-around": "%llguidance {}\nstart: /(?=a)b/",
}

HONOURED_SCHEMAS: dict[str, Any] = {
    "minimum and maximum": {"type": "integer", "minimum": 17, "maximum": 19},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 100},
    "format": {"type": "string", "format": "date"},
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^x[0-9]$": {"type": "integer", "maximum": 9, "minimum": 0}},
        "additionalProperties": False,
    },
    "a pattern": {"type": "string", "pattern": "^[a-c]{2,4}$"},
    "maxLength 100000": {"type": "string", "maxLength": 100_000},
    "maxLength 10^9": {"type": "string", "maxLength": 1_000_000_000},
    "a list of types": {"type": ["integer", "null"]},
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 3, "maximum": 5}]},
    "anyOf": {"anyOf": [{"const": 1}, {"const": "two"}]},
    "recursion": {
        "$defs": {
            "node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}, "additionalProperties": False}
        },
        "$ref": "#/$defs/node",
    },
    "quotes in keys": {
        "type": "object",
        "properties": {'a"\\b': {"const": 1}},
        "required": ['a"\\b'],
        "additionalProperties": False,
    },
    "true": True,
    "required but not described": {"type": "object", "required": ["k"], "additionalProperties": {"type": "null"}},
    "60 optional properties": {
        "type": "object",
        "properties": {f"p{i}": {"type": "null"} for i in range(60)},
        "additionalProperties": False,
    },
}

REFUSED_SCHEMAS: dict[str, Any] = {
    "uniqueItems": {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
    "not": {"not": {"type": "string"}},
    "if": {"if": {"type": "string"}, "then": {"minLength": 2}},
    "an unknown format": {"type": "string", "format": "zip-code"},
    "an unknown type": {"type": "text"},
    "a bad pattern": {"type": "string", "pattern": "["},
    "a look-around": {"type": "string", "pattern": "^(?=a)b$"},
    "an empty enum": {"enum": []},
    "minimum over maximum": {"type": "integer", "minimum": 5, "maximum": 3},
    "a reference to itself": {"$ref": "#"},
    "false": False,
    "a missing reference": {"$ref": "#/$defs/none"},
    "lenient": {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}},
    "100,000 values": {"enum": [f"value {i}" for i in range(100_000)]},
}
REFUSED_TEXTS: dict[str, str] = {
    "no JSON": "{",
    "nothing": "",
    "a number": "7",
    "a key given twice": '{"type":"string","type":"integer"}',
    "900-deep nesting": '{"type":"array","items":' * 900 + "true" + "}" * 900,
    "100,000-deep nesting": "[" * 100_000,
}


def dumps(schema: Any) -> str:
    return json.dumps(schema, ensure_ascii=False)
