"""Tool calls in a model's text: the forms that templates teach, and a parser that works while the text arrives.

Two forms are known (decision D13): `hermes`, `<tool_call>{"name": ..., "arguments": {...}}</tool_call>` anywhere in
the text, and `llama3`, where the whole answer is `{"name": ..., "parameters": {...}}`, several separated by `;`. A
forced call (`tool_choice` required or a name) is the bare JSON object: the sampler is held to its schema.

Text that turns out to be no call of a known function is given back as content: nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

Form = Literal["hermes", "llama3"]
OPEN, CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"


class ToolCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text."""


class _Call(msgspec.Struct):
    name: str
    arguments: Any = None
    parameters: Any = None


_decode = msgspec.json.Decoder(_Call).decode


def parse_call(text: str, names: frozenset[str]) -> ToolCall | None:
    """One call from its JSON text, or None where it is none or names an unknown function."""
    try:
        call = _decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if call.name not in names:
        return None
    arguments = call.arguments if call.arguments is not None else call.parameters
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        return ToolCall(call.name, arguments)
    return ToolCall(call.name, msgspec.json.encode(arguments).decode("utf-8"))


def call_schema(tools: Sequence[dict[str, Any]], form: Form, only: str | None = None) -> str:
    """JSON Schema (text) of one call of `only`, or of any of the tools: what a forced tool_choice is held to."""
    key = "arguments" if form == "hermes" else "parameters"
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool["function"]["name"]},
                key: tool["function"].get("parameters") or {"type": "object", "additionalProperties": False},
            },
            "required": ["name", key],
            "additionalProperties": False,
        }
        for tool in tools
        if only is None or tool["function"]["name"] == only
    ]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    return msgspec.json.encode(schema).decode("utf-8")


class ToolParser:
    """Splits a growing text into content and calls. Feed it deltas, then `finish`; each gives the new events in order.

    Whatever may still become a call is held back, so content arrives late by at most the length of an opening mark, or
    until the end where the answer began as a call.
    """

    def __init__(self, form: Form, names: Iterable[str], *, forced: bool = False) -> None:
        self._form, self._names, self._forced = form, frozenset(names), forced
        self._held = ""
        self._space = ""
        self._content_seen = False
        self.calls = 0

    def feed(self, text: str) -> list[str | ToolCall]:
        self._held += text
        if self._forced or (self._form == "llama3" and not self._content_seen and self._may_be_json()):
            return []
        if self._form == "llama3":
            return self._content(self._take(len(self._held)))
        return self._hermes()

    def finish(self) -> list[str | ToolCall]:
        """The text is complete: decide about what was held back."""
        held = self._take(len(self._held))
        if not held.strip():
            rest = self._space + held
            return [rest] if rest and not self.calls else []
        if self._form == "hermes" and not self._forced:
            if held.lstrip().startswith(OPEN):
                call = parse_call(held.lstrip()[len(OPEN) :].strip(), self._names)
                if call is not None:
                    return self._called(call)
            return self._content(held)
        calls = self._whole(held)
        if calls is None:
            return self._content(held)
        return [event for call in calls for event in self._called(call)]

    def _may_be_json(self) -> bool:
        text = self._held.lstrip()
        return PYTHON_TAG.startswith(text) or text.startswith((PYTHON_TAG, "{"))

    def _whole(self, text: str) -> list[ToolCall] | None:
        """All of `text` as one call, or as several separated by `;` (or line ends)."""
        text = text.strip().removeprefix(PYTHON_TAG).strip()
        single = parse_call(text, self._names)
        if single is not None:
            return [single]
        calls = []
        for piece in _objects(text):
            call = parse_call(piece, self._names)
            if call is None:
                return None
            calls.append(call)
        return calls or None

    def _hermes(self) -> list[str | ToolCall]:
        events: list[str | ToolCall] = []
        while self._held:
            start = self._held.find(OPEN)
            if start < 0:
                keep = _partial(self._held, OPEN)
                events += self._content(self._take(len(self._held) - keep))
                break
            if start > 0:
                events += self._content(self._take(start))
            end = self._held.find(CLOSE)
            if end < 0:
                break
            block = self._take(end + len(CLOSE))
            call = parse_call(block[len(OPEN) : -len(CLOSE)].strip(), self._names)
            events += self._content(block) if call is None else self._called(call)
        return events

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _called(self, call: ToolCall) -> list[str | ToolCall]:
        self._space = ""
        self.calls += 1
        return [call]

    def _content(self, text: str) -> list[str | ToolCall]:
        """White space around calls is their layout: it is content only when content follows it."""
        if not text:
            return []
        if not text.strip() and (self.calls or not self._content_seen):
            self._space += text
            return []
        text, self._space = self._space + text, ""
        self._content_seen = True
        return [text]


def _partial(text: str, mark: str) -> int:
    """How many characters at the end of `text` may be the beginning of `mark`."""
    for count in range(min(len(text), len(mark) - 1), 0, -1):
        if mark.startswith(text[-count:]):
            return count
    return 0


def _objects(text: str) -> list[str]:
    """Top-level JSON objects in `text`, separated by `;`, `,` or white space; empty where there is anything else."""
    found: list[str] = []
    depth, start, quoted, escaped = 0, 0, False, False
    for at, char in enumerate(text):
        if quoted:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                quoted = False
        elif char == '"' and depth:
            quoted = True
        elif char == "{":
            if depth == 0:
                start = at
            depth += 1
        elif char == "}" and depth:
            depth -= 1
            if depth == 0:
                found.append(text[start : at + 1])
        elif depth == 0 and char not in ";, \t\r\n":
            return []
    return [] if depth else found
