"""Tool calls found in text: the same for every way in which the text arrives, and nothing is lost."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumas.openai.tools import Form, ToolCall, ToolParser, call_schema

NAMES = ("f", "g")


def parse(form: Form, pieces: list[str], *, forced: bool = False) -> list[str | ToolCall]:
    parser = ToolParser(form, NAMES, forced=forced)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    joined: list[str | ToolCall] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


F1 = ToolCall("f", '{"a":1}')
CASES: list[tuple[Form, str, list[Any]]] = [
    ("hermes", "Hello there", ["Hello there"]),
    ("hermes", "", []),
    ("hermes", "\n", ["\n"]),
    ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', [F1]),
    ("hermes", '\n\n<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n', [F1]),
    ("hermes", 'I look. <tool_call>{"name":"f","arguments":{"a":1}}</tool_call> done', ["I look. ", F1, " done"]),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>\n<tool_call>{"name":"g"}</tool_call>',
        [F1, ToolCall("g", "{}")],
    ),
    ("hermes", '<tool_call>{"name":"f","arguments":{"a":1}}', [F1]),
    ("hermes", '<tool_call>{"name":"f","argu', ['<tool_call>{"name":"f","argu']),
    ("hermes", '<tool_call>{"name":"zz"}</tool_call>', ['<tool_call>{"name":"zz"}</tool_call>']),
    ("hermes", "a < b and a <tool", ["a < b and a <tool"]),
    ("hermes", '<tool_call>{"name":"f","arguments":"{\\"a\\":1}"}</tool_call>', [F1]),
    ("llama3", "Hello", ["Hello"]),
    ("llama3", '{"name": "f", "parameters": {"a": 1}}', [F1]),
    ("llama3", ' {"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}', [F1, ToolCall("g", "{}")]),
    ("llama3", '<|python_tag|>{"name":"f","parameters":{"a":1}}', [F1]),
    ("llama3", '{"a": "}", "b": 1}', ['{"a": "}", "b": 1}']),
    ("llama3", '{"name":"zz","parameters":{}}', ['{"name":"zz","parameters":{}}']),
    ("llama3", 'say {"name":"f"}', ['say {"name":"f"}']),
]


@pytest.mark.parametrize(("form", "text", "expected"), CASES)
def test_calls_are_found_however_the_text_is_cut(form: Form, text: str, expected: list[Any]) -> None:
    for size in (1, 2, 3, 7, 1000):
        assert parse(form, [text[at : at + size] for at in range(0, len(text), size)]) == expected


@pytest.mark.parametrize("form", ["hermes", "llama3"])
@given(pieces=st.lists(st.text(alphabet='<tool_call>/{}"name: f,;x\n', max_size=12), max_size=12))
@settings(max_examples=300, deadline=None)
def test_no_text_is_lost(form: Form, pieces: list[str]) -> None:
    """Where there is no call, content is the text; cutting never changes the outcome."""
    text = "".join(pieces)
    events = parse(form, pieces)
    assert events == parse(form, [text])
    if not any(isinstance(event, ToolCall) for event in events):
        assert "".join(str(event) for event in events) == text


def test_content_does_not_wait_for_more_than_a_mark() -> None:
    parser = ToolParser("hermes", NAMES)
    assert parser.feed("plain text ") == ["plain text "]
    assert parser.feed("and <to") == ["and "]
    assert parser.feed("day") == ["<today"]


@pytest.mark.parametrize(("form", "key"), [("hermes", "arguments"), ("llama3", "parameters")])
def test_a_forced_call_is_held_to_its_schema(form: Form, key: str) -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = [{"type": "function", "function": {"name": name, "parameters": parameters}} for name in NAMES]
    one = msgspec.json.decode(call_schema(tools, form, "g"))
    assert one["properties"] == {"name": {"const": "g"}, key: parameters}
    assert [
        option["properties"]["name"]["const"] for option in msgspec.json.decode(call_schema(tools, form))["anyOf"]
    ] == ["f", "g"]
    text = msgspec.json.encode({"name": "g", key: {"a": 1}}).decode()
    assert parse(form, list(text), forced=True) == [ToolCall("g", '{"a":1}')]
