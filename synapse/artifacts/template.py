"""Chat templates: a conversation becomes the prompt's text, and the parts of it that a user wrote are known.

Special-token text inside a message ("<|im_end|>" typed by a user) must stay text. Where it ends up in the prompt is
found by rendering a second time with marks in the messages, private-use characters that the conversation does not hold:
if the text without the marks equals the plain rendering, the marks say what of the prompt came from messages.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
import msgspec

from synapse.artifacts.template_env import ChatEnvironment, TemplateRaised, TooMuch

MAX_TEMPLATE_BYTES = 1 << 20
MAX_PROMPT_CHARS = 32 << 20
"""Bound of a rendered prompt, in characters."""
N_MARKS = 64
"""Pairs of marks in turn: neighbours differ, so that a content that the template cut apart is noticed."""

_CONTENTS = frozenset({"content", "reasoning_content", "text"})
"""Keys whose strings a message's author wrote."""
_WORDS = frozenset({"role", "type", "id", "tool_call_id"})
"""Keys whose strings templates compare with their own."""

Span = tuple[int, int]
"""Characters `start` to `end` (exclusive) of a text."""


class TemplateError(Exception):
    """The template does not compile, or does not take this conversation. The message is for the caller."""


class Chat(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A conversation as RENDER carries it."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    extras: dict[str, Any] = {}
    """More names for the template (`enable_thinking` and the like)."""


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation. `literal`: the spans in which special-token text stays text, ordered and disjoint.

    `closed` is whether those are all the places where a message's special-token text can be.
    """

    text: str
    literal: list[Span]
    closed: bool


@dataclass(frozen=True)
class Quirks:
    """What a family's template needs that its source alone shows."""

    thinking: bool = True
    """`enable_thinking` is defined (true) unless the caller says otherwise."""
    trim: bool = False
    """Message contents lose their outer white space."""


def quirks_of(source: str) -> Quirks:
    """llama.cpp treats these two families apart, and their users expect its prompt."""
    return Quirks(
        thinking="<|system_start|>" not in source or "<|developer_start|>" not in source,  # Apertus
        trim="<im_patch>" in source,  # StepFun
    )


class ChatTemplate:
    """One model's chat template, compiled.

    Args:
        source: the jinja text.
        bos_token, eos_token: the texts of the model's tokens.
        now: the clock for templates that print the date.
    Raises: TemplateError if it does not compile.
    """

    def __init__(
        self,
        source: str,
        bos_token: str,
        eos_token: str,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
    ) -> None:
        if len(source) > MAX_TEMPLATE_BYTES:
            raise TemplateError(f"the chat template has {len(source)} characters, more than {MAX_TEMPLATE_BYTES}")
        self._environment = ChatEnvironment(now)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.quirks = quirks_of(source)
        self.object_arguments = False
        """Tool calls' arguments are given as objects, not as JSON text (set by `template_traits`)."""
        self.typed_content = False
        """Contents are given as lists of parts (set by `template_traits`)."""
        try:
            self._template = self._environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise TemplateError(f"the chat template is wrong in line {error.lineno}: {error.message}") from error
        except Exception as error:  # the compiler over foreign text: whatever it raises is about that text
            raise TemplateError(f"the chat template does not compile: {_words(error)}") from error

    def render(self, chat: Chat) -> str:
        """The prompt's text, special tokens and contents alike. Raises: TemplateError."""
        return self._render(chat, self._messages(chat))

    def render_closed(self, chat: Chat, specials: Callable[[str], Sequence[Span]]) -> Prompt:
        """The prompt with the spans that came from messages.

        Args:
            specials: where a text holds special tokens' texts, as ordered disjoint spans.
        Raises: TemplateError.
        """
        messages = self._messages(chat)
        plain = self._render(chat, messages)
        marks = _free_marks(chat)
        for where in (_whole, specials):  # the latter for templates that look at a content's beginning or end
            marker = _Marker(marks, specials, where)
            marked = msgspec.structs.replace(chat, tools=marker.mark(chat.tools))
            try:
                found = marker.find(plain, self._render(marked, marker.mark(messages)))
            except TemplateError:
                continue  # the marks made it another conversation
            if found is not None:
                return Prompt(plain, found, True)
        return Prompt(plain, [], False)

    def _render(self, chat: Chat, messages: list[dict[str, Any]]) -> str:
        now = self._environment.now()
        names: dict[str, Any] = {"date_string": now.strftime("%d %b %Y"), "datetime": now.strftime("%b %d %Y")}
        if self.quirks.thinking:
            names["enable_thinking"] = True
        names |= chat.extras
        names |= self._tokens | {"messages": messages, "add_generation_prompt": chat.add_generation_prompt}
        if chat.tools:
            names["tools"] = chat.tools
        parts: list[str] = []
        length = 0
        try:
            for part in self._template.generate(names):
                parts.append(part)
                length += len(part)
                if length > MAX_PROMPT_CHARS:
                    raise TooMuch(f"the prompt is longer than {MAX_PROMPT_CHARS} characters")
        except MemoryError:
            raise  # the caller's limit
        except TemplateRaised as error:
            raise TemplateError(f"the chat template refuses this conversation: {error}") from error
        except Exception as error:  # foreign code: whatever it raises is its answer to this conversation
            raise TemplateError(f"the chat template failed: {_words(error)}") from error
        return "".join(parts)

    def _messages(self, chat: Chat) -> list[dict[str, Any]]:
        return [self._message(message) for message in chat.messages]

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        made = dict(message)
        content = made.get("content")
        if isinstance(content, list) and not self.typed_content:
            made["content"] = content = "\n".join(part.get("text", "") for part in content)
        elif isinstance(content, str) and self.typed_content:
            made["content"] = [{"type": "text", "text": content}]
        if self.quirks.trim and isinstance(content, str):
            made["content"] = content.strip()
        if self.object_arguments and isinstance(made.get("tool_calls"), list):
            made["tool_calls"] = [_with_object_arguments(call) for call in made["tool_calls"]]
        return made


def _with_object_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = msgspec.json.decode(function["arguments"] or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return call  # it stays the text that it is
    return call | {"function": function | {"arguments": arguments}}


def _whole(text: str) -> list[Span]:
    """The text without its outer white space, which a template may trim."""
    start = len(text) - len(text.lstrip())
    return [(start, max(start, len(text.rstrip())))]


def _free_marks(chat: Chat) -> list[str]:
    """2 x N_MARKS private-use characters that occur nowhere in the conversation. Raises: TemplateError."""
    used = set(msgspec.json.encode(chat).decode())
    free = (chr(point) for point in range(0xF0000, 0x10FFFE) if point & 0xFFFF < 0xFFFE and chr(point) not in used)
    marks = [mark for mark, _ in zip(free, range(2 * N_MARKS), strict=False)]
    if len(marks) < 2 * N_MARKS:
        raise TemplateError("the messages use up the private-use characters")
    return marks


class _Marker:
    """Puts marks into messages and finds them again in the rendering.

    Args:
        marks: opening and closing ones in turn.
        specials: where a text holds special tokens' texts.
        where: the spans of a content to mark.
    """

    def __init__(
        self,
        marks: Sequence[str],
        specials: Callable[[str], Sequence[Span]],
        where: Callable[[str], Sequence[Span]],
    ) -> None:
        self._marks, self._specials, self._where = marks, specials, where
        self._turn = 0

    def mark(self, value: Any, key: str = "") -> Any:
        """The messages or tools with marks in them.

        What `where` names is marked in contents, special texts in every other string that is not a word of the format.
        """
        if isinstance(value, str):
            return value if key in _WORDS else self._text(value, self._where if key in _CONTENTS else self._specials)
        if isinstance(value, dict):
            return {name: self.mark(inner, name) for name, inner in value.items()}
        return [self.mark(inner, key) for inner in value] if isinstance(value, list) else value

    def find(self, plain: str, rendered: str) -> list[Span] | None:
        """The marked spans of `plain`; None if the rendering without the marks is another, or they do not pair."""
        pairs = dict(zip(self._marks[::2], self._marks[1::2], strict=True))
        spans: list[Span] = []
        pieces: list[str] = []
        position, piece, start, awaited = 0, 0, 0, ""
        for match in re.finditer(f"[{''.join(self._marks)}]", rendered):
            pieces.append(rendered[piece : match.start()])
            position += match.start() - piece
            piece = match.end()
            if not awaited and match[0] in pairs:
                start, awaited = position, pairs[match[0]]
            elif match[0] == awaited:
                _extend(spans, start, position)
                awaited = ""
            else:
                return None
        pieces.append(rendered[piece:])
        return None if awaited or "".join(pieces) != plain else spans

    def _text(self, text: str, where: Callable[[str], Sequence[Span]]) -> str:
        made, end = [], 0
        for first, last in where(text):
            if first == last:
                continue
            opening = self._marks[2 * self._turn]
            made += [text[end:first], opening, text[first:last], self._marks[2 * self._turn + 1]]
            self._turn = (self._turn + 1) % (len(self._marks) // 2)
            end = last
        return "".join([*made, text[end:]])


def _extend(spans: list[Span], start: int, end: int) -> None:
    """Add a span; one that touches the last becomes one with it, so that no special text hides on the border."""
    if spans and spans[-1][1] == start:
        spans[-1] = (spans[-1][0], end)
    elif end > start:
        spans.append((start, end))


def _words(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 500 else text[:500] + "..."
