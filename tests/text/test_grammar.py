"""Grammars and schemas: each row is honoured or refused by name (G1). Hostile ones stand in test_service.py."""

from __future__ import annotations

import json

import llguidance
import pytest

from synapse.artifacts.grammar import (
    MAX_GRAMMAR_BYTES,
    GrammarRefused,
    _byte_tokens,
    check_grammar,
    compile_grammar,
)

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
    ("root ::= (", "no end"),
    ('root ::= "a', "no end"),
    ('root ::= "a"{5,2}', "high to low"),
    ("root ::= [z-a]", "high to low"),
    ("root ::= []", "empty"),
    ('root ::= "\\-"', "escape"),
    ('root ::= "\\ud800"', "no character D800"),
    ("root ::= <[7]>", "single tokens"),
    ('root ::= "a"\nroot ::= "b"', "twice"),
    ('root ::= "a" "b\n', "no end"),
    ('root = "a"', "::="),
    ('root ::= "a"{1000000}', "count to"),
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


LANGUAGE = [
    ("root ::= .", ["\n", "é"], ["", "ab"]),
    ("root ::= [^a]", ["\n", "b"], ["a"]),
    (r'root ::= "\x41\u00e9\U0001F600\t\"\\"', ['Aé😀\t"\\'], ["A"]),
    (r"root ::= [\]\[a-c-]+", ["a]-[c"], ["d", "\\"]),
    ('root ::= "/" [/.*+?(){}|^$&~#]+', ["//", "/.*+?(){}|^$&~#"], ["/a"]),
    ('root ::= "a"{2,} "b"{3} "c"{0,1} "d"{0}', ["aabbb", "aaabbbc"], ["abbb", "aabbbcc", "aabbbd"]),
    ('root ::= ("a" | ) "b"', ["b", "ab"], ["aab"]),
    ('root ::= "a" | # a remark\n "b" # another\n', ["a", "b"], ["ab"]),
    ('root ::= (\n"a"\n"b"\n)', ["ab"], ["a"]),
    ('root ::= start my-Rule_1\nstart ::= "q"\nmy-Rule_1 ::= "x"', ["qx"], ["q"]),
    ('root ::= x y\nx ::= [a-z]+\ny ::= [a-z]+ "!"', ["ab!", "abc!"], ["a!"]),
    ('root ::= ("a" | "ab") "b"', ["ab", "abb"], ["a", "b"]),
    ('root ::= x | "b"\nx ::= "(" x ")" | ""', ["(())", "", "b"], ["(()"]),
    ('root ::= x\nx ::= "a" x "a" | "a"', ["a", "aaaaa"], ["aa", ""]),
    ('root ::= x{2} "ab"?\nx ::= "a" | x "b"', ["aa", "abab", "abbaab"], ["a"]),
    ('root ::= (x | "a" "b"{0,0})*\nx ::= "(" root ")"', ["", "a(aa)(())"], ["b", "("]),
]


@pytest.mark.parametrize(("grammar", "inside", "outside"), LANGUAGE, ids=lambda value: str(value)[:30])
def test_gbnf_keeps_its_language(grammar: str, inside: list[str], outside: list[str]) -> None:
    check_grammar("grammar", grammar)
    for text in inside:
        assert accepts(grammar, text), text
    for text in outside:
        assert not accepts(grammar, text), text


def test_recursion_changes_nothing_but_the_notation() -> None:
    """A grammar as one expression and the same one over characters have one language."""
    words = ["", "a", "ab", "aab", "abab", "b", "ba", "aabb", "abb", "bb"]
    for body in ('("a" | "ab") "b"*', '("a"? "b"?){1,2}', '[ab]* "b"', '"a"{0,2} ("b" | "ab")+', '("ab" | "a" "b")?'):
        plain, recursive = f"root ::= {body}", f'root ::= {body} | "<" root ">"'
        assert [accepts(plain, word) for word in words] == [accepts(recursive, word) for word in words]


def accepts(grammar: str, text: str) -> bool:
    matcher = llguidance.LLMatcher(_byte_tokens(), compile_grammar("grammar", grammar), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    data = list(text.encode())
    return matcher.try_consume_tokens(data) == len(data) and matcher.is_accepting()


def test_the_same_keys_in_several_objects_are_fine() -> None:
    check_grammar("json_schema", '{"properties": {"a": {"type": "string"}, "b": {"type": "string"}}}')


def test_what_is_compiled_is_what_the_matcher_takes() -> None:
    for kind, text in (("grammar", 'root ::= "a"'), ("json_schema", '{"type": "integer"}')):
        assert not llguidance.LLMatcher.validate_grammar(compile_grammar(kind, text))  # type: ignore[arg-type]
