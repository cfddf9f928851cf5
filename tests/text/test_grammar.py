"""Grammars and schemas: each row is honoured or refused by name (G1). Hostile ones stand in test_service.py."""

from __future__ import annotations

import json

import pytest

from synapse.artifacts.grammar import MAX_GRAMMAR_BYTES, GrammarRefused, check_grammar, compile_grammar

JSON_GBNF = r"""
root ::= object
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"""

HONOURED = [
    JSON_GBNF,
    'root ::= "yes" | "no"',
    "root ::= [一-鿿]+ # Chinese",
    'root ::= s\ns ::= s s | "a" | ""',
    "root ::= " + " ".join(f'"a{i}"?' for i in range(200)),
    'root ::= "a"{0,100000}',
    '%llguidance {}\nstart: "a" | /[bc]+/',
    '%llguidance {}\nstart: %json {"type": "integer", "minimum": 3}',
]
REFUSED = [
    ("", "empty"),
    (" \n", "empty"),
    ('s ::= "a"', "root"),
    ("root ::= other", "other"),
    ("root ::= (", "Expected"),
    ('root ::= "a', "Unexpected end"),
    ('root ::= "a"{5,2}', "range"),
    ("root ::= [z-a]", "regex"),
    ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "too deeply"),
    ("%llguidance {}\nstart: other", "other"),
    ("%llguidance {}\nstart: /(?=a)b/", "look-around"),
    ("%llguidance {}\nstart: <|im_end|>", "special token"),
    ('%llguidance {}\nstart: %json {"uniqueItems": true}', "uniqueItems"),
    ('%llguidance {}\nstart: %json {"uniqueItems": true, "x-guidance": {"lenient": true}}', "x-guidance"),
    ("root ::= " + '"a" ' * MAX_GRAMMAR_BYTES, "bytes"),
]


@pytest.mark.parametrize("text", HONOURED, ids=lambda text: text[:30])
def test_grammars_that_are_honoured(text: str) -> None:
    check_grammar("grammar", text)


@pytest.mark.parametrize(("text", "named"), REFUSED, ids=lambda text: text[:30])
def test_grammars_that_are_refused(text: str, named: str) -> None:
    with pytest.raises(GrammarRefused, match=named):
        check_grammar("grammar", text)


SCHEMAS_HONOURED = [
    True,
    {},
    {"type": "integer", "minimum": 3, "maximum": 9, "multipleOf": 3},
    {"type": "number", "exclusiveMinimum": 0.5},
    {"type": "string", "minLength": 1, "maxLength": 100_000},
    {"type": "string", "maxLength": 1_000_000_000},
    {"type": "string", "pattern": r"^\d{3}-\w+$"},
    {"type": "string", "pattern": "a"},
    {"type": "string", "format": "email"},
    {"type": ["string", "integer"], "maxLength": 3},
    {"type": "object", "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
    {"type": "object", "required": ["b"], "properties": {"a": {"type": "string"}}},
    {"allOf": [{"type": "object"}, {"required": ["a"]}]},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"enum": ["a", 'quote " and \\', 3, None, {"not": 1}]},
    {"const": {"extends": 1}},
    {"$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
    {"type": "object", "properties": {"not": {"type": "string"}, "extends": {}, "x-guidance": {}}},
    {"type": "string", "description": "a remark", "x-mine": 1},
]
SCHEMAS_REFUSED = [
    (False, "false"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"not": {"type": "string"}}, "not"),
    ({"if": {}, "then": {}}, "if"),
    ({"type": "array", "contains": {}}, "contains"),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, "propertyNames"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"properties": {"deep": {"items": {"not": {}}}}}, "not"),
    ({"type": "string", "format": "nonsense"}, "nonsense"),
    ({"type": "nonsense"}, "nonsense"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
    ({"type": "string", "pattern": "["}, "regex"),
    ({"enum": []}, "anyOf is empty"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum"),
    ({"type": "object", "required": ["b"], "properties": {}, "additionalProperties": False}, "'b'"),
    ({"$ref": "#"}, "cannot produce"),
    ({"$ref": "http://example.org/schema"}, "example.org"),
    ({"$ref": "#/$defs/missing"}, "missing"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
    ({"extends": {}}, "extends"),
    ({"items": {"divisibleBy": 2}}, "divisibleBy"),
    ({"x-guidance": {"lenient": True}, "uniqueItems": True}, "x-guidance"),
    ({"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "integer"}, {"type": "number"}]}, "x-guidance"),
    ("text", "object or boolean"),
]
TEXTS_REFUSED = [
    ("", "empty"),
    ("{", "JSON"),
    ('{"minimum": NaN}', "JSON"),
    ('{"type": "string", "type": "integer"}', "'type' twice"),
    ('{"properties": {"a": {}, "\\u0061": {}}}', "'a' twice"),
    ('{"a": [{"b": 1}, {"b": 2, "c": "{\\"b\\": :,", "b": 3}]}', "'b' twice"),
    ("[" * 5000 + "]" * 5000, "deeply"),
    ('{"properties":{"a":' * 300 + "{}" + "}}" * 300, "recursion|deeply"),
    ('"' + "x" * MAX_GRAMMAR_BYTES + '"', "bytes"),
]


@pytest.mark.parametrize("schema", SCHEMAS_HONOURED, ids=lambda schema: json.dumps(schema)[:40])
def test_schemas_that_are_honoured(schema: object) -> None:
    check_grammar("json_schema", json.dumps(schema))


@pytest.mark.parametrize(("schema", "named"), SCHEMAS_REFUSED, ids=lambda value: json.dumps(value)[:40])
def test_schemas_that_are_refused(schema: object, named: str) -> None:
    with pytest.raises(GrammarRefused, match=named):
        check_grammar("json_schema", json.dumps(schema))


@pytest.mark.parametrize(("text", "named"), TEXTS_REFUSED, ids=lambda text: text[:30])
def test_schema_texts_that_are_refused(text: str, named: str) -> None:
    with pytest.raises(GrammarRefused, match=named):
        check_grammar("json_schema", text)


def test_the_same_keys_in_several_objects_are_fine() -> None:
    check_grammar("json_schema", '{"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}')


def test_what_is_compiled_is_what_the_matcher_takes() -> None:
    import llguidance

    for kind, text in (("grammar", 'root ::= "a"'), ("json_schema", '{"type": "integer"}')):
        assert not llguidance.LLMatcher.validate_grammar(compile_grammar(kind, text))  # type: ignore[arg-type]
