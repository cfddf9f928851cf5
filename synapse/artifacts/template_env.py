"""The jinja2 environment that chat templates are written for: sandboxed, with what llama.cpp's users expect of it.

A template comes with a model file, so it is as foreign as any request. The sandbox takes away attributes, the two
operators that make huge values in one step are bounded here, and what is left (loops, doubled strings) meets the
caller's limits of CPU time and memory.
"""

from __future__ import annotations

import datetime
import json  # its encoder only: templates expect its layout (spaces, indent, key order), and nothing is read with it
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_INT_BITS = 4096
"""Bound of an integer that `*` or `**` makes."""
MAX_REPEATED = 1 << 20
"""Bound of the length of a string or list that `*` makes, in items."""


class TemplateRaised(Exception):
    """The template called `raise_exception`: the conversation is not one that it takes. The text is its own."""


class TooMuch(Exception):
    """The template went over a bound of this module."""


class LenientUndefined(jinja2.Undefined):
    """Undefined as the models' templates rely on it: added to a text it is empty, everywhere else it fails as usual."""

    def __add__(self, other: Any) -> Any:
        return other

    __radd__ = __add__


class GenerationTag(Extension):
    """`{% generation %} ... {% endgeneration %}` marks the assistant's text for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates.

    Args:
        now: the clock of `strftime_now`, local time.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, now: Callable[[], datetime.datetime] = datetime.datetime.now) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            undefined=LenientUndefined,
            extensions=[LoopControlExtension, GenerationTag],
            cache_size=0,
        )
        self.filters["tojson"] = to_json
        self.filters["safe"] = _identity
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = lambda layout: now().strftime(layout)
        self.now = now

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`*` and `**`, refused where the result would be huge: one step in C cannot be interrupted."""
        check = _check_power if operator == "**" else _check_product
        check(left, right)
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """No private names, and nothing of an undefined value."""
        return not attr.startswith("_") and super().is_safe_attribute(obj, attr, value)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The `tojson` of chat templates: plain JSON, no HTML escapes."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_plain
    )


def raise_exception(message: object = "") -> NoReturn:
    """What a template calls when it does not take this conversation."""
    raise TemplateRaised(str(message))


def _identity(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * max(right, 0) > MAX_INT_BITS:
        raise TooMuch("a number in the template is too large")


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > MAX_INT_BITS:
            raise TooMuch("a number in the template is too large")
        return
    for times, repeated in ((left, right), (right, left)):
        if isinstance(times, int) and isinstance(repeated, str | list | tuple) and times * len(repeated) > MAX_REPEATED:
            raise TooMuch("a repeated text in the template is too long")
