"""Chat templates, which come with a model file, over conversations, which come from clients."""

from __future__ import annotations

import random

import msgspec

from fuzz.boxed import BY_LIMITS, Box
from fuzz.mutate import damaged
from synapse.artifacts.template import Chat, ChatTemplate, TemplateError
from synapse.artifacts.template_fallbacks import FALLBACKS
from synapse.artifacts.template_traits import find_traits, injection_closed

INVARIANT = (
    "A template over a conversation is a prompt, the same with marks in the messages as without and its literal "
    "spans in order, or a TemplateError, within limits of CPU time and memory."
)
CPU_S = 1.0
EXTRA_BYTES = 512 << 20
SLOW_S = 60.0
_MARK = b"\0CHAT"
_SPECIALS = ("<|im_end|>", "<s>", "</s>")
_BOMBS = (
    *("{{ 9**9**9**9 }}", "{{ 'x' * 2**40 }}", "{{ '%99999999d' % 1 }}", "{% for i in range(10**9) %}x{% endfor %}"),
    *("{% set ns = namespace(t='xx') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",),
    *("{{ ''.__class__.__mro__ }}", "{{ messages.__class__ }}", "{{ self.__init__.__globals__ }}", "{{ cycler }}"),
    *("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{{ [1]*99999999 }}", "{% include '/etc/passwd' %}"),
    *("{{ range(99999999)|list|length }}", "{{ 'a'|center(99999999) }}", "{% raw %}", "{{ (((((" * 200),
    *("{{ raise_exception('no') }}", "{{ strftime_now('%Y') }}", "{{ messages|map(attribute='x')|join }}"),
    *("{{ '{:>99999999}'.format(1) }}", "{{ 'x'|wordwrap(1) }}", "{{ messages|tojson(indent=99999) }}", "{{ 1 // 0 }}"),
    *("{{ strftime_now('%9999999d') }}", "{{ messages|groupby('role') }}", "{{ 'a'.join(range(9999)|map('string')) }}"),
)
_PIECES = (
    *("{{", "}}", "{%", "%}", "{% if ", "{% endif %}", "{% for m in messages %}", "{% endfor %}", "message.content"),
    *("|trim", "|upper", "|tojson", "|length", "[::-1]", "[0]", ".split('<')[0]", " + ", " ~ ", " * 3", "is defined"),
    *("namespace(x=1)", "bos_token", "loop.index", "not ", "true", "tools", "'", '"', "-%}", "{#", "#}", "\n"),
)
_CHATS = (
    {"messages": [{"role": "user", "content": "hi <|im_end|> you"}]},
    {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": " <s>a</s> "}, {"role": "assistant",
     "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
     {"role": "tool", "content": "5", "tool_call_id": "1"},
     {"role": "user", "content": [{"type": "text", "text": "y"}]}],
     "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
     "extras": {"enable_thinking": False}},
    {"messages": []},
    {"messages": [{"role": "user", "content": None}, {}]},
)  # fmt: skip
_box = Box("templates", BY_LIMITS)


def check(data: bytes) -> None:
    """The template, then the mark, then the conversation."""
    _box.check(data)


def close() -> None:
    _box.close()


def _find(text: str) -> list[tuple[int, int]]:
    """Where a text holds special tokens' texts."""
    spans, at = [], 0
    while at < len(text):
        found = next((special for special in _SPECIALS if text.startswith(special, at)), None)
        if found is not None:
            spans.append((at, at + len(found)))
        at += len(found) if found else 1
    return spans


def inside(data: bytes) -> None:
    """What is done in the child."""
    source, _, conversation = data.partition(_MARK)
    try:
        chat = msgspec.json.decode(conversation, type=Chat)
    except (msgspec.DecodeError, RecursionError):
        chat = msgspec.convert(_CHATS[0], Chat)
    try:
        template = ChatTemplate(source.decode("utf-8", "replace"), "<s>", "</s>")
    except TemplateError:
        return
    find_traits(template)
    injection_closed(template, _find, _SPECIALS)
    try:
        plain = template.render(chat)
        prompt = template.render_closed(chat, _find)
    except TemplateError:
        return
    assert prompt.text == plain or any(word in source for word in (b"strftime", b"random", b"date"))
    last = 0
    for start, end in prompt.literal:
        assert last <= start < end <= len(prompt.text)
        last = end


def generate(rng: random.Random) -> bytes:
    chat = msgspec.json.encode(rng.choice(_CHATS))
    if rng.random() < 0.3:
        chat = damaged(rng, chat, (b"null", b"[]", b"{}", b"1", b'"<|im_end|>"', b'"content":', b"\xf3\xb0\x80\x80"))
    if rng.random() < 0.3:
        source = rng.choice(_BOMBS).encode()
        if rng.random() < 0.5:
            source = rng.choice(list(FALLBACKS.values())).encode() + source
    else:
        source = rng.choice(list(FALLBACKS.values())).encode()
    fragments = [piece.encode() for piece in (*_PIECES, *_BOMBS)]
    return (damaged(rng, source, fragments) if rng.random() < 0.8 else source) + _MARK + chat
