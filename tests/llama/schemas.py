"""Random JSON Schemas of the supported keywords, and a strict validator for exactly those: a judge of our own."""

from __future__ import annotations

import json
import math
import random
import re
from typing import Any

Schema = dict[str, Any]


def generate(random_: random.Random, depth: int = 0) -> Schema:
    """A schema that something satisfies."""
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const"]
    kinds += ["object", "object", "array", "anyOf"] if depth < 3 else []
    return _MAKERS[random_.choice(kinds)](random_, depth)


def _integer(r: random.Random, _depth: int) -> Schema:
    low = r.randint(-1000, 1000)
    schema: Schema = {"type": "integer", "minimum": low, "maximum": low + r.randint(10, 1000)}
    if r.random() < 0.3:
        schema["multipleOf"] = r.randint(2, 5)
    if r.random() < 0.2:
        schema["exclusiveMinimum"] = schema.pop("minimum")
    return schema


def _number(r: random.Random, _depth: int) -> Schema:
    low = round(r.uniform(-50, 50), 1)
    return {"type": "number", "minimum": low, "maximum": low + r.randint(1, 100)}


def _string(r: random.Random, _depth: int) -> Schema:
    shape = r.randrange(3)
    if shape == 0:
        return {
            "type": "string",
            "pattern": r.choice(["^[a-z]{1,6}$", "^(red|green|blue)$", "^[0-9]{4}-[0-9]{2}$", "^x*y$"]),
        }
    if shape == 1:
        least = r.randint(0, 3)
        return {"type": "string", "minLength": least, "maxLength": least + r.randint(0, 8)}
    return {"type": "string", "format": "date"}


def _object(r: random.Random, depth: int) -> Schema:
    names = r.sample(["a", "b", "name", "größe", 'qu"ote', "x y", "z"], r.randint(1, 4))
    schema: Schema = {"type": "object", "properties": {name: generate(r, depth + 1) for name in names}}
    schema["required"] = r.sample(names, r.randint(0, len(names)))
    schema["additionalProperties"] = False if r.random() < 0.8 else {"type": "integer", "minimum": 0, "maximum": 9}
    return schema


def _array(r: random.Random, depth: int) -> Schema:
    least = r.randint(0, 2)
    return {"type": "array", "items": generate(r, depth + 1), "minItems": least, "maxItems": least + r.randint(0, 3)}


_MAKERS = {
    "integer": _integer,
    "number": _number,
    "string": _string,
    "boolean": lambda r, d: {"type": "boolean"},
    "null": lambda r, d: {"type": "null"},
    "enum": lambda r, d: {"enum": r.sample([1, "one", None, True, 2.5, "zwei", [1, 2]], r.randint(1, 4))},
    "const": lambda r, d: {"const": r.choice([0, "constant", None, {"k": [1]}])},
    "object": _object,
    "array": _array,
    "anyOf": lambda r, d: {"anyOf": [generate(r, d + 1) for _ in range(r.randint(1, 3))]},
}


def validate(text: str, schema: Schema) -> None:
    """Raises: AssertionError naming what in `text` breaks the schema, ValueError where it is no JSON."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(items)) == len(items), "a key twice"
        return dict(items)

    check(json.loads(text, object_pairs_hook=pairs, parse_constant=_no_constant), schema, "$")


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def check(value: Any, schema: Schema | bool, at: str) -> None:
    """Raises: AssertionError."""
    assert schema is not False, at
    if schema is True:
        return
    unknown = set(schema) - _KEYWORDS
    assert not unknown, f"the validator lacks {unknown}"
    if "enum" in schema:
        assert any(_same(value, item) for item in schema["enum"]), f"{at}: {value!r} is none of {schema['enum']}"
    if "const" in schema:
        assert _same(value, schema["const"]), f"{at}: {value!r} is not {schema['const']!r}"
    if "anyOf" in schema:
        assert any(_fits(value, inner, at) for inner in schema["anyOf"]), f"{at}: {value!r} fits none of anyOf"
    if "type" in schema:
        assert _TYPES[schema["type"]](value), f"{at}: {value!r} is no {schema['type']}"
    if _TYPES["number"](value):
        _check_number(value, schema, at)
    elif isinstance(value, str):
        _check_string(value, schema, at)
    elif isinstance(value, list):
        assert schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", math.inf), f"{at}: {len(value)} items"
        for i, item in enumerate(value):
            check(item, schema.get("items", True), f"{at}[{i}]")
    elif isinstance(value, dict):
        _check_object(value, schema, at)


def _check_number(value: float, schema: Schema, at: str) -> None:
    assert schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf), f"{at}: {value}"
    assert schema.get("exclusiveMinimum", -math.inf) < value, f"{at}: {value}"
    if "multipleOf" in schema:
        assert value % schema["multipleOf"] == 0, f"{at}: {value} is no multiple"


def _check_string(value: str, schema: Schema, at: str) -> None:
    assert schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", math.inf), f"{at}: {value!r}"
    if "pattern" in schema:
        assert re.search(schema["pattern"], value), f"{at}: {value!r}"
    if schema.get("format") == "date":
        assert re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", value), f"{at}: {value!r}"


def _check_object(value: dict[str, Any], schema: Schema, at: str) -> None:
    assert set(schema.get("required", ())) <= set(value), f"{at}: a required key is missing in {value!r}"
    properties = schema.get("properties", {})
    for key, item in value.items():
        check(item, properties.get(key, schema.get("additionalProperties", True)), f"{at}.{key}")


def _fits(value: Any, schema: Schema, at: str) -> bool:
    try:
        check(value, schema, at)
    except AssertionError:
        return False
    return True


def _same(left: Any, right: Any) -> bool:
    """JSON's equality: 1 is 1.0, but true is not 1."""
    return left == right and isinstance(left, bool) == isinstance(right, bool)


_TYPES = {
    "integer": lambda v: (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, float) and v.is_integer()),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "boolean": lambda v: isinstance(v, bool),
    "null": lambda v: v is None,
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_KEYWORDS = {
    *(
        "type",
        "enum",
        "const",
        "anyOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "multipleOf",
        "minLength",
        "maxLength",
    ),
    *("pattern", "format", "items", "minItems", "maxItems", "properties", "required", "additionalProperties"),
}
