"""The examples of docs/contract.md are requests that are answered as they say, with answers of that shape."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pumas.contract.guide import EXAMPLES
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from pumas.contract.results import check_decisions
from tests.contract.samples import SERVED
from tests.gateway import Gateway

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text()
BLOCKS = [msgspec.json.decode(found) for found in re.findall(r"```json\n(.*?)```", PAGE, re.S)]
HERE = ("smol", "minilm", "ranker")


def test_the_page_holds_an_example_for_each_capability() -> None:
    assert BLOCKS[:-1] == [block for pair in EXAMPLES.values() for block in pair]
    assert set(BLOCKS[-1]["error"]) == {"code", "outcome", "message"}


@pytest.mark.parametrize("name", [name for name, (request, _) in EXAMPLES.items() if request["model"] == "m"])
def test_what_needs_an_upstream_resolves_as_the_page_says(name: str) -> None:
    """`all` is a model that can do everything."""
    request, answer = EXAMPLES[name]
    plan = resolve(decode_operation(msgspec.json.encode(request | {"model": "all"})), SERVED)
    assert plan.capability.capability == name
    if name == "decision":
        given = answer["result"]["answers"]
        assert check_decisions(given, request["input"]["questions"]) == given


@pytest.mark.parametrize("name", [name for name, (request, _) in EXAMPLES.items() if request["model"] in HERE])
def test_what_runs_here_is_answered(gateway: Gateway, name: str) -> None:
    request, answer = EXAMPLES[name]
    reply = gateway.post("/v1/model-operations", request)
    assert reply.status == 200, reply.body
    assert shape(reply.json()) == shape(answer)


def shape(value: Any) -> Any:
    """Members and kinds of values; of a list the first item stands for all."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])]
    return "number" if isinstance(value, int | float) else type(value)


def test_a_stream_has_the_members_that_the_page_shows(gateway: Gateway) -> None:
    shown = [msgspec.json.decode(data) for data in re.findall(r"^data: (.*)$", PAGE, re.M)]
    reply = gateway.post("/v1/model-operations", EXAMPLES["text_generation"][0] | {"stream": True})
    events = [msgspec.json.decode(data) for data in re.findall(r"^data: (.*)$", reply.body.decode(), re.M)]
    assert [shape(event) for event in shown] == [shape(event) for event in (*events[:2], events[-1])]


def test_an_error_has_the_members_that_the_page_shows(gateway: Gateway) -> None:
    request = EXAMPLES["text_generation"][0] | {"options": {"kind": "text_generation", "max_tokens": 9999}}
    reply = gateway.post("/v1/model-operations", request)
    assert reply.status == 413
    assert shape(reply.json()) == shape(BLOCKS[-1])
