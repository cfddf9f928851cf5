"""GBNF as a Lark grammar of llguidance's that has exactly the same language.

llguidance cuts a text into lexemes, each as long as it can be; GBNF knows no such thing. So a grammar without recursion
becomes one regular expression, and any other one is written over single characters, where the longest match is the only
one, and over those longer lexemes that cannot be confused (`gbnf_lexemes`).
"""

from __future__ import annotations

from typing import Final

from synapse.artifacts.gbnf import Chars, Choice, Lexeme, Node, Reference, Repeat, Sequence, parse
from synapse.artifacts.gbnf_lexemes import with_lexemes

MAX_EXPRESSION_CHARS: Final = 512 * 1024
"""Bound of a grammar that becomes one regular expression; a longer one is written as rules."""
_MAX_DEPTH: Final = 100
"""Rules inside rules in one regular expression."""
_QUANTIFIERS: Final = {(0, None): "*", (1, None): "+", (0, 1): "?"}
_MAX_COPIES: Final = 10_000
"""Bound of what nested repetitions multiply to, in one regular expression."""


def gbnf_to_lark(text: str) -> str:
    """The grammar in llguidance's Lark notation. Raises: GbnfError, RecursionError."""
    rules = parse(text)
    expression = _expression(rules, Reference("root"))
    if expression is not None:
        return f"%llguidance {{}}\nstart: /{expression}/\n"
    return over_characters(with_lexemes(rules, lambda node: _expression(rules, node)))


def over_characters(rules: dict[str, Node]) -> str:
    """The grammar as rules: over single characters, and over the lexemes that stand in it."""
    return "%llguidance {}\n" + _Rules(rules).lark()


def _expression(rules: dict[str, Node], node: Node) -> str | None:
    try:
        return _Expression(rules).of(node)
    except _NoExpression:
        return None


class _NoExpression(Exception):
    """The grammar is recursive, or too large for one regular expression."""


class _Expression:
    """One regular expression for a grammar without recursion."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._open: set[str] = set()

    def of(self, node: Node, copies: int = 1) -> str:
        """Raises: _NoExpression."""
        match node:
            case Chars():
                return _class_of(node)
            case Reference(name):
                return self._rule(name, copies)
            case Sequence(items):
                made = "".join(self.of(item, copies) for item in items)
            case Choice(options):
                made = "(" + "|".join(self.of(option, copies) for option in options) + ")"
            case Lexeme(pattern, _):
                made = f"({pattern})"
            case Repeat(item, least, most):
                copies *= max(least, most or 1, 1)
                if copies > _MAX_COPIES:
                    raise _NoExpression
                made = f"({self.of(item, copies)}){{{least},{'' if most is None else most}}}"
        if len(made) > MAX_EXPRESSION_CHARS:
            raise _NoExpression
        return made

    def _rule(self, name: str, copies: int) -> str:
        if name in self._open or len(self._open) > _MAX_DEPTH:
            raise _NoExpression
        self._open.add(name)
        # Not kept for the next reference: what repetitions multiply to depends on where it stands.
        made = f"({self.of(self._rules[name], copies)})"
        self._open.remove(name)
        return made


class _Rules:
    """A grammar as rules over characters and lexemes."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._names = {name: f"r{index}" for index, name in enumerate(rules)}
        self._terminals: dict[str, str] = {}

    def lark(self) -> str:
        lines = ["start: " + self._names["root"]]
        lines += [f"{self._names[name]}: {self._of(node)}" for name, node in self._rules.items()]
        lines += [f"{name}: /{pattern}/" for pattern, name in self._terminals.items()]
        return "\n".join(lines) + "\n"

    def _of(self, node: Node) -> str:
        match node:
            case Chars():
                return self._terminal(_class_of(node))
            case Lexeme(pattern, _):
                return self._terminal(pattern)
            case Reference(name):
                return self._names[name]
            case Sequence(()):
                return '""'
            case Sequence(items):
                return "(" + " ".join(self._of(item) for item in items) + ")"
            case Choice(options):
                return "(" + " | ".join(self._of(option) for option in options) + ")"
            case Repeat(_, _, 0):
                return '""'
            case Repeat(item, least, most):
                inner = f"({self._of(item)})" if isinstance(item, Repeat) else self._of(item)
                return inner + _QUANTIFIERS.get((least, most), f"{{{least},{'' if most is None else most}}}")

    def _terminal(self, pattern: str) -> str:
        return self._terminals.setdefault(pattern, f"C{len(self._terminals)}")


def _class_of(chars: Chars) -> str:
    if not chars.ranges:
        return r"(?s:.)"
    if not chars.negated and len(chars.ranges) == 1 and chars.ranges[0][0] == chars.ranges[0][1]:
        return _code(chars.ranges[0][0])
    inner = "".join(_code(low) if low == high else f"{_code(low)}-{_code(high)}" for low, high in chars.ranges)
    return f"[{'^' if chars.negated else ''}{inner}]"


def _code(code: int) -> str:
    """A character in a regular expression between slashes."""
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:X}}}"
