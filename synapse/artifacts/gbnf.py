"""GBNF, llama.cpp's grammar notation: reading it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

MAX_DEPTH: Final = 100
"""Nesting of groups."""
MAX_REPEAT: Final = 100_000
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


@dataclass(frozen=True)
class Lexeme:
    """A part that llguidance's lexer takes as a whole: its regular expression, and what it stands for."""

    pattern: str
    node: Node


Node = Chars | Reference | Sequence | Choice | Repeat | Lexeme


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
            self._fail(f"unknown escape of {kind!r}")
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
