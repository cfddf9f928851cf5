"""What a chat template can do, found by trying it: tool calls, typed contents, closed injection."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from synapse.artifacts.template import Chat, ChatTemplate, Span, TemplateError

ToolsFormat = Literal["hermes", "llama3"]

_NAME, _ARGUMENT, _VALUE = "probe_function", "probe_argument", "probe value"
_TEXT = "some probe text"
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "What it does.",
        "parameters": {
            "type": "object",
            "properties": {_ARGUMENT: {"type": "string", "description": "What it is."}},
            "required": [_ARGUMENT],
        },
    },
}
_HERMES = re.compile(r"<tool_call>\s*\{\s*\"name\":\s*\"probe_function\",\s*\"arguments\":\s*\{\"probe_argument\"")
_LLAMA3 = re.compile(r"\{\"name\":\s*\"probe_function\",\s*\"parameters\":\s*\{\"probe_argument\"")


def find_traits(template: ChatTemplate) -> ToolsFormat | None:
    """Set how the template wants its messages; return the tool call form that it teaches and we can parse (D13).

    Renders it about six times. Raises: nothing; a template that takes no such conversation has no such trait.
    """
    template.typed_content = _takes_typed_content_only(template)
    template.object_arguments = _object_in(_call(template, {_ARGUMENT: _VALUE}))
    if f'"{_NAME}"' not in _try(template, [_user(_TEXT)], tools=[_TOOL]):
        return None  # tools that the model is not told of
    rendered = _call(template, {_ARGUMENT: _VALUE} if template.object_arguments else f'{{"{_ARGUMENT}": "{_VALUE}"}}')
    if _HERMES.search(rendered):
        return "hermes"
    return "llama3" if _LLAMA3.search(rendered) else None


def injection_closed(template: ChatTemplate, specials: Callable[[str], Sequence[Span]], hostile: Sequence[str]) -> bool:
    """Whether special-token text inside messages stays text, by trying the usual shapes of conversation.

    Args:
        specials: where a text holds special tokens' texts.
        hostile: special tokens' texts to try inside of messages.
    """
    bad = "".join(f" {text} and" for text in hostile) + " more"
    turns = [_user(bad), {"role": "assistant", "content": bad}, _user(f"  {bad}\n")]
    shapes = [turns[:1], [{"role": "system", "content": bad}, *turns[:1]], turns]
    taken = 0
    for messages in shapes:
        try:
            prompt = template.render_closed(Chat(messages=messages), specials)
        except TemplateError:
            continue  # a shape that the template does not take
        taken += 1
        if not prompt.closed:
            return False
    return taken > 0


def _takes_typed_content_only(template: ChatTemplate) -> bool:
    if _TEXT in _try(template, [_user(_TEXT)]):
        return False
    template.typed_content = True
    taken = _try(template, [_user(_TEXT)])
    template.typed_content = False
    return _TEXT in taken


def _object_in(rendered: str) -> bool:
    """An object's argument shows, and not through Python's own notation of a dict."""
    return _ARGUMENT in rendered and _VALUE in rendered and f"'{_ARGUMENT}'" not in rendered


def _call(template: ChatTemplate, arguments: Any) -> str:
    call = {"id": "call00001", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
    for content in ("", None):
        messages = [_user("x"), {"role": "assistant", "content": content, "tool_calls": [call]}]
        for more in ([], [{"role": "tool", "tool_call_id": "call00001", "name": _NAME, "content": "done"}]):
            rendered = _try(template, messages + more, tools=[_TOOL])
            if _NAME in rendered.rpartition("What it is.")[2]:
                return rendered.rpartition("What it is.")[2]
    return ""


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _try(template: ChatTemplate, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> str:
    try:
        return template.render(Chat(messages=messages, tools=tools))
    except TemplateError:
        return ""
