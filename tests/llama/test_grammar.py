"""Grammars and schemas are honoured in full or refused by name; the worker and its other sequences never notice."""

from __future__ import annotations

import json
import random
import re

import pytest

from synapse.wire import messages as m
from tests.llama import grammars, schemas
from tests.llama.driver import Driver, Refusal, Result, Stream
from tests.promises.scale import measured

LIVELY = m.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=3)


def answer(driver: Driver, max_tokens: int = 120, seed: int = 3, **constraint: str) -> Result:
    """What a random model says under a constraint, while another sequence runs beside it."""
    sampling = m.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed)
    constrained, free = Stream([5, 6, 7], max_tokens, sampling, **constraint), Stream([8, 9], 10, LIVELY)
    driver.run(constrained, free)
    assert free.result.error is None
    return constrained.result


@pytest.mark.parametrize("name", grammars.HONOURED_GRAMMARS)
def test_a_grammar_is_honoured(tiny: Driver, name: str) -> None:
    result = answer(tiny, grammar=grammars.HONOURED_GRAMMARS[name])
    assert result.error is None
    patterns = {
        "a CJK class": "[一-龥]{3}",
        "emoji": "数据😀ü",
        "a literal": "yes|no",
        "nullable left recursion": "a+",
        "ambiguous": "a+",
        "200 optional items": "a{0,200}",
        "Lark": "[0-9]{3}-[a-z]{2}",
        "a long repetition": "[a-z]+",
    }
    if name in patterns:
        assert re.fullmatch(patterns[name], result.text)
    elif result.finish_reason == "stop":
        json.loads(result.text)


@pytest.mark.parametrize("name", grammars.REFUSED_GRAMMARS)
def test_a_grammar_that_cannot_be_honoured_is_refused(tiny: Driver, name: str) -> None:
    assert_refused(answer(tiny, grammar=grammars.REFUSED_GRAMMARS[name]))
    assert tiny.alive()


@pytest.mark.parametrize("name", grammars.HONOURED_SCHEMAS)
def test_a_schema_is_honoured(tiny: Driver, name: str) -> None:
    result = answer(tiny, json_schema=grammars.dumps(grammars.HONOURED_SCHEMAS[name]))
    assert result.error is None
    if result.finish_reason == "stop":
        value = json.loads(result.text)
        expected = {
            "minimum and maximum": lambda: 17 <= value <= 19,
            "multipleOf": lambda: value % 7 == 0 and 0 <= value <= 100,
            "format": lambda: re.fullmatch(r"\d{4}-\d{2}-\d{2}", value),
            "patternProperties": lambda: all(re.fullmatch("x[0-9]", k) and 0 <= v <= 9 for k, v in value.items()),
            "a pattern": lambda: re.fullmatch("[a-c]{2,4}", value),
            "a list of types": lambda: value is None or isinstance(value, int),
            "allOf": lambda: value in (3, 4, 5),
            "anyOf": lambda: value in (1, "two"),
            "quotes in keys": lambda: value == {'a"\\b': 1},
        }
        assert expected.get(name, lambda: True)()


@pytest.mark.parametrize("name", [*grammars.REFUSED_SCHEMAS, *grammars.REFUSED_TEXTS])
def test_a_schema_that_cannot_be_honoured_is_refused(tiny: Driver, name: str) -> None:
    text = grammars.REFUSED_TEXTS.get(name)
    assert_refused(answer(tiny, json_schema=grammars.dumps(grammars.REFUSED_SCHEMAS[name]) if text is None else text))
    assert tiny.alive()


def assert_refused(result: Result) -> None:
    assert result.error is not None
    assert result.error.code == "invalid_request"
    assert 10 < len(result.error.msg) < 1000
    assert result.text == ""


@pytest.mark.parametrize("count", [60, pytest.param(200, marks=pytest.mark.proof)])
def test_generated_schemas_validate_or_end_with_length(tiny: Driver, count: int) -> None:
    r = random.Random(count)
    ended = 0
    for seed in range(count):
        schema = schemas.generate(r)
        result = answer(tiny, 240, seed, json_schema=json.dumps(schema))
        assert result.error is None, (schema, result.error)
        if result.finish_reason == "stop":
            ended += 1
            schemas.validate(result.text, schema)
        else:
            assert result.finish_reason == "length"
    assert ended > count / 2  # the test would show nothing if most were cut
    measured("G1", f"{count} generated schemas, {ended} answers complete and valid, the others ended with length")


def test_the_validator_refuses_what_it_should() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    schemas.validate('{"a": 1}', schema)
    for text in ("{}", '{"a": 0}', '{"a": true}', '{"a": 1, "b": 2}', "[]", '{"a": 1, "a": 2}', '{"a": NaN}'):
        with pytest.raises((AssertionError, ValueError)):
            schemas.validate(text, schema)


def test_a_constraint_and_company_give_what_the_constraint_alone_gives(tiny: Driver) -> None:
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}})
    stream = Stream([5, 6], 60, LIVELY, json_schema=schema)
    tiny.decode(drop=[0, 1, 2, 3])
    (alone,) = tiny.run(stream.again())
    together = tiny.run(*(stream.again() for _ in range(4)))
    assert [result.ids for result in together] == [alone.ids] * 4


def test_generate_honours_or_refuses(tiny: Driver) -> None:
    assert tiny.generate([5, 6], 20, 'root ::= "fixed answer"').text == "fixed answer"
    assert tiny.generate([5, 6], 4, "").n_gen > 0  # no grammar
    with pytest.raises(Refusal, match="root") as refused:
        tiny.generate([5, 6], 20, 'rule ::= "a"')
    assert refused.value.code == "invalid_request"
    assert tiny.alive()
