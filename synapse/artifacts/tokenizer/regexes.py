"""The engine's pre-tokenizer expressions, translated for the regex library of `tokenizers` (Oniguruma).

Every class becomes explicit ranges from the engine's own Unicode tables: Oniguruma's are of a newer Unicode. Some
expressions the engine does not run but replaces by hand-written code; those have their equivalents here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Final

from synapse.artifacts.tokenizer import data

_CONTRACTION: Final = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
# A run of digits is cut in threes from its end; what stands before it goes with its first group. The possessive form is
# linear: the plain one took 17 s for 40,000 spaces.
_DIGIT_GROUPS: Final = r"(?<=\p{N})\p{N}{3}|[^\p{N}]*+(?:\p{N}{1,2}(?=(?:\p{N}{3})*+(?!\p{N}))|\p{N}{3})|[^\p{N}]++"
# Cut before every multiple of three digits from the end of a run. As the engine writes it, a lookahead at each
# position, it is quadratic; here one at the head of each run decides, and what begins inside a run takes three.
_HEAD: Final = r"\d{1,2}(?=(?:\d{3})*+(?!\d))"
_BETWEEN_RUNS: Final = rf"[^\d]++(?:{_HEAD})?"
_THREES: Final = rf"(?:(?<=\d)\d{{3}}|{_HEAD}|\d{{3}})(?:{_BETWEEN_RUNS})*|(?:{_BETWEEN_RUNS})+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_BY_CODE: Final = {
    _GPT2: _GPT2 + r"|\s+",
    r"\p{Han}+": (
        rf"\p{{Han}}+|[^\r\n\p{{L}}\p{{N}}]?\p{{L-Han}}+{_CONTRACTION}?|\p{{N}}{{1,3}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    r"\p{AFMoE_digits}": _DIGIT_GROUPS,
    r"\d{1,3}(?=(?:\d{3})*\b)": _DIGIT_GROUPS,
    r"(?=(\d{3})+(?!\d))": _THREES,
    r"\s+$": r"(?<!\s)\s++$",
}
"""Expressions that mean something else to the engine, which runs code for them, and two that would be slow."""

_HAN: Final = [
    (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF), (0x2A700, 0x2EBEF), (0x2F800, 0x2FA1F),
]  # fmt: skip

_LETTER_BUT: Final = re.compile(r"\(\(\?=\[((?:\\p\{\w+\})+)\]\)\(\[\^([a-z]-[a-z]|[A-Z]-[A-Z])\]\)\)")
_EMITTED: Final = re.compile(r"\[(\^?)((?:\\x\{[0-9A-F]+\}-?)*)\]")
_RANGE: Final = re.compile(r"\\x\{([0-9A-F]+)\}(?:-\\x\{([0-9A-F]+)\})?")
_CAPTURING: Final = re.compile(r"(?<!\\)\((?!\?)")
_ESCAPES: Final = {"r": "\r", "n": "\n", "t": "\t"}


@cache
def translate(expression: str) -> str:
    """One of the engine's expressions as Oniguruma needs it for the same matches."""
    expression = _BY_CODE.get(expression, expression)
    # ((?=[\p{L}])([^a-z])): a letter, but none of these. A class with a difference is much faster.
    expression = _LETTER_BUT.sub(lambda match: f"[{match[1]}\\p{{-{match[2]}}}]", expression)
    out: list[str] = []
    at = 0
    while at < len(expression):
        char = expression[at]
        if char == "[":
            end = _class_end(expression, at)
            out.append(_class(expression[at + 1 : end]))
            at = end + 1
        elif char == "\\":
            item, at = _escape(expression, at)
            out.append(item if isinstance(item, str) else _emit(item))
        else:
            out.append("\\z" if char == "$" else char)
            at += 1
    return "".join(out)


@cache
def translate_ascii(expression: str) -> str:
    """The same for Python's `re` and texts that are ASCII only; without groups that capture."""
    text = _EMITTED.sub(lambda match: _clipped(match[1], match[2]), translate(expression))
    return _CAPTURING.sub("(?:", text).replace("\\z", "\\Z")


def _clipped(negated: str, ranges: str) -> str:
    parts: list[str] = []
    for match in _RANGE.finditer(ranges):
        low, high = int(match[1], 16), int(match[2] or match[1], 16)
        if low < 0x80:
            parts.append(f"\\x{low:02x}-\\x{min(high, 0x7F):02x}")
    if parts:
        return f"[{negated}{''.join(parts)}]"
    return r"[\x00-\x7f]" if negated else r"[^\x00-\x7f]"


@cache
def named(name: str) -> data.Ranges:
    """A class by its name: N, L (Lu, Ll, Lt, Lm and Lo mean the same to the engine), M, P, S, Han, L-Han, s, d."""
    if name == "s":
        return _normal((c, c) for c in data.unicode().spaces)
    if name == "d":
        return [(0x30, 0x39)]
    if name == "Han":
        return _HAN
    if name == "L-Han":
        return _without(named("L"), _HAN)
    return _normal(data.unicode().classes["L" if name.startswith("L") else name])


def _class_end(expression: str, at: int) -> int:
    at += 1
    while expression[at] != "]":
        at += 2 if expression[at] == "\\" else 1
    return at


def _class(content: str) -> str:
    negated = content.startswith("^")
    literal: list[tuple[int, int]] = []
    classes: list[tuple[int, int]] = []
    removed: list[tuple[int, int]] = []
    at = int(negated)
    while at < len(content):
        if content.startswith("\\p{-", at):
            removed.append((ord(content[at + 4]), ord(content[at + 6])))
            at += 8
            continue
        low, at = _item(content, at)
        if not isinstance(low, str):
            classes += low
            continue
        high: str | data.Ranges = low
        if content[at : at + 1] == "-" and at + 1 < len(content):
            high, at = _item(content, at + 1)
        assert isinstance(high, str)
        literal.append((ord(low[-1]), ord(high[-1])))
    # Without \p the engine matches a text in which non-ASCII white space is U+000B: only \s reaches it.
    wide_spaces = [(c, c) for c in data.unicode().spaces if c > 0x7F]
    ranges = _normal(_without(_normal(literal), wide_spaces) + classes)
    return _emit(_without(ranges, _normal(removed)), negated)


def _item(content: str, at: int) -> tuple[str | data.Ranges, int]:
    return _escape(content, at) if content[at] == "\\" else (content[at], at + 1)


def _escape(text: str, at: int) -> tuple[str | data.Ranges, int]:
    """The escape at `at`: a class as ranges, or one character (escaped as Oniguruma wants it); and what follows."""
    char = text[at + 1]
    if char == "p":
        end = text.index("}", at)
        return named(text[at + 3 : end]), end + 1
    if char in "sd":
        return named(char), at + 2
    if char == "S":
        return _emit(named("s"), negated=True), at + 2
    if char in _ESCAPES:
        return _ESCAPES[char], at + 2
    return f"\\{char}", at + 2


def _emit(ranges: data.Ranges, negated: bool = False) -> str:
    parts = (f"\\x{{{low:X}}}" if low == high else f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges)
    return f"[{'^' if negated else ''}{''.join(parts)}]"


def _normal(ranges: Iterable[tuple[int, int]]) -> data.Ranges:
    out: data.Ranges = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(out[-1][1], high))
        else:
            out.append((low, high))
    return out


def _without(ranges: data.Ranges, removed: data.Ranges) -> data.Ranges:
    out: data.Ranges = []
    for low, high in ranges:
        for first, last in removed:
            if last < low or first > high:
                continue
            if first > low:
                out.append((low, first - 1))
            low = last + 1
            if low > high:
                break
        if low <= high:
            out.append((low, high))
    return out
