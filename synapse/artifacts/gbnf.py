"""GBNF, llama.cpp's grammar notation, as a Lark grammar of llguidance's that has exactly the same language.

llguidance cuts a text into lexemes, each as long as it can be; GBNF knows no such thing. So a grammar without recursion
becomes one regular expression, and any other one is written over single characters, where the longest match is the only
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

MAX_DEPTH: Final = 100
"""Nesting of groups, and of rules inside rules where they become one expression."""
MAX_EXPRESSION_CHARS: Final = 512 * 1024
"""Bound of a grammar that becomes one regular expression; a longer one is written over characters."""
MAX_REPEAT: Final = 100_000
_MAX_COPIES: Final = 10_000
"""Bound of what nested repetitions multiply to, in one regular expression."""

_HEX_DIGITS: Final = {"x": 2, "u": 4, "U": 8}
_ESCAPES: Final = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}


class GbnfError(ValueError):
    """The text is no valid GBNF. The message names the line."""


@dataclass(frozen=True)
class Chars:
    """One character of some ranges (code points, both ends included)."""

    ranges: tuple[tuple[int, int], ...]
    negated: bool = False


@dataclass(frozen=True)
class Reference:
    name: str


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Choice:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    """`most` None: any number."""

    item: Node
    least: int
    most: int | None


Node = Chars | Reference | Sequence | Choice | Repeat


def gbnf_to_lark(text: str) -> str:
    """The grammar in llguidance's Lark notation. Raises: GbnfError, RecursionError."""
    rules = parse(text)
    try:
        lark = "start: /" + _Expression(rules).of(Reference("root")) + "/\n"
    except _NoExpression:
        lark = _Characters(rules).lark()
    return "%llguidance {}\n" + lark


def parse(text: str) -> dict[str, Node]:
    """Rules by name. Raises: GbnfError; RecursionError for groups nested too deeply."""
    rules = _Parser(text).rules()
    if "root" not in rules:
        raise GbnfError("there is no rule called root")
    return rules


# --- reading ---------------------------------------------------------------------------------------------------------


class _Parser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._used: dict[str, int] = {}
        """Referenced rule → where."""

    def rules(self) -> dict[str, Node]:
        rules: dict[str, Node] = {}
        self._skip(newlines=True)
        while self._at < len(self._text):
            start = self._at
            name = self._name()
            if name in rules:
                self._fail(f"the rule {name} is given twice", start)
            self._skip(newlines=False)
            if not self._text.startswith("::=", self._at):
                self._fail("expected ::=")
            self._at += 3
            self._skip(newlines=True)
            rules[name] = self._choice(depth=0)
            if self._at < len(self._text) and self._peek() not in "\r\n":
                self._fail("expected the end of the line")
            self._skip(newlines=True)
        for name, at in self._used.items():
            if name not in rules:
                self._fail(f"there is no rule called {name}", at)
        return rules

    def _choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise RecursionError
        options = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            self._skip(newlines=True)
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while (character := self._peek()) and character not in "|)\r\n":
            item = self._item(character, depth)
            self._skip(newlines=depth > 0)
            while self._peek() and self._peek() in "*+?{":
                item = self._repeat(item)
                self._skip(newlines=depth > 0)
            items.append(item)
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _item(self, character: str, depth: int) -> Node:
        if character == '"':
            return self._literal()
        if character == "[":
            return self._class()
        if character == ".":
            self._at += 1
            return Chars((), negated=True)
        if character == "(":
            start = self._at
            self._at += 1
            self._skip(newlines=True)
            inner = self._choice(depth + 1)
            if self._peek() != ")":
                self._fail("this group has no end", start)
            self._at += 1
            return inner
        if character in "<!":
            self._fail("single tokens in a grammar are not supported")
        start = self._at
        name = self._name()
        self._used.setdefault(name, start)
        return Reference(name)

    def _literal(self) -> Node:
        start = self._at
        self._at += 1
        items = []
        while self._peek() != '"':
            if not self._peek():
                self._fail("this text has no end", start)
            code = self._character()
            items.append(Chars(((code, code),)))
        self._at += 1
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _class(self) -> Node:
        start = self._at
        self._at += 1
        negated = self._peek() == "^"
        self._at += negated
        ranges = []
        while self._peek() != "]":
            if not self._peek():
                self._fail("this character class has no end", start)
            low = high = self._character()
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                high = self._character()
            if high < low:
                self._fail("this character class has a range from high to low", start)
            ranges.append((low, high))
        self._at += 1
        if not ranges:
            self._fail("this character class is empty", start)
        return Chars(tuple(ranges), negated)

    def _character(self) -> int:
        character = self._text[self._at]
        if character != "\\":
            self._at += 1
            return ord(character)
        kind = self._text[self._at + 1 : self._at + 2]
        if kind in _HEX_DIGITS and kind:
            digits = self._text[self._at + 2 : self._at + 2 + _HEX_DIGITS[kind]]
            if len(digits) < _HEX_DIGITS[kind] or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self._fail(f"expected {_HEX_DIGITS[kind]} hex digits")
            self._at += 2 + len(digits)
            code = int(digits, 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                self._fail(f"there is no character {code:X}")
            return code
        if not kind or kind not in _ESCAPES:
            self._fail(f"unknown escape \\{kind}")
        self._at += 2
        return ord(_ESCAPES[kind])

    def _repeat(self, item: Node) -> Node:
        start = self._at
        kind = self._peek()
        self._at += 1
        if kind != "{":
            return Repeat(item, 1 if kind == "+" else 0, 1 if kind == "?" else None)
        least = self._number()
        most: int | None = least
        if self._peek() == ",":
            self._at += 1
            self._skip(newlines=False)
            most = None if self._peek() == "}" else self._number()
        if self._peek() != "}":
            self._fail("expected }")
        self._at += 1
        if max(least, most or 0) > MAX_REPEAT:
            self._fail(f"a repetition may count to {MAX_REPEAT}", start)
        if most is not None and most < least:
            self._fail("this repetition has a range from high to low", start)
        return Repeat(item, least, most)

    def _number(self) -> int:
        self._skip(newlines=False)
        start = self._at
        while self._peek() and self._peek() in "0123456789" and self._at - start < 9:
            self._at += 1
        if start == self._at:
            self._fail("expected a number")
        number = int(self._text[start : self._at])
        self._skip(newlines=False)
        return number

    def _name(self) -> str:
        start = self._at
        while (character := self._peek()) and character.isascii() and (character.isalnum() or character in "-_"):
            self._at += 1
        if start == self._at:
            self._fail("expected a name")
        return self._text[start : self._at]

    def _skip(self, *, newlines: bool) -> None:
        """White space and comments."""
        while character := self._peek():
            if character == "#":
                while self._peek() and self._peek() not in "\r\n":
                    self._at += 1
            elif character in " \t" or (newlines and character in "\r\n"):
                self._at += 1
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self._at if at is None else at
        line = self._text.count("\n", 0, at) + 1
        raise GbnfError(f"{message}: line {line}, {self._text[at : at + 20]!r}")


# --- writing ---------------------------------------------------------------------------------------------------------


class _NoExpression(Exception):
    """The grammar is recursive, or too large for one regular expression."""


class _Expression:
    """One regular expression for a grammar without recursion."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._known: dict[str, str] = {}
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
            case Repeat(item, least, most):
                copies *= max(least, most or 1, 1)
                if copies > _MAX_COPIES:
                    raise _NoExpression
                made = f"({self.of(item, copies)}){{{least},{'' if most is None else most}}}"
        if len(made) > MAX_EXPRESSION_CHARS:
            raise _NoExpression
        return made

    def _rule(self, name: str, copies: int) -> str:
        if name in self._open or len(self._open) > MAX_DEPTH:
            raise _NoExpression
        self._open.add(name)
        # Not kept for the next reference: what repetitions multiply to depends on where it stands.
        made = f"({self.of(self._rules[name], copies)})"
        self._open.remove(name)
        return made


class _Characters:
    """A grammar over single characters."""

    def __init__(self, rules: dict[str, Node]) -> None:
        self._rules = rules
        self._names = {name: f"r{index}" for index, name in enumerate(rules)}
        self._classes: dict[str, str] = {}

    def lark(self) -> str:
        lines = ["start: " + self._names["root"]]
        lines += [f"{self._names[name]}: {self._of(node)}" for name, node in self._rules.items()]
        lines += [f"{name}: /{pattern}/" for pattern, name in self._classes.items()]
        return "\n".join(lines) + "\n"

    def _of(self, node: Node) -> str:
        match node:
            case Chars():
                return self._classes.setdefault(_class_of(node), f"C{len(self._classes)}")
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
            case Repeat(item, 0, None):
                return self._of(item) + "*"
            case Repeat(item, 1, None):
                return self._of(item) + "+"
            case Repeat(item, 0, 1):
                return self._of(item) + "?"
            case Repeat(Repeat() as item, least, most):
                return f"({self._of(item)}){{{least},{'' if most is None else most}}}"
            case Repeat(item, least, most):
                return f"{self._of(item)}{{{least},{'' if most is None else most}}}"


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
