"""Single code points as the engine sees them: class, lower case, base character."""

from __future__ import annotations

from bisect import bisect_right
from functools import cache

from synapse.artifacts.tokenizer import data


def class_of(code: int) -> str:
    """N, L, M, P, S, C; " " for white space of any class; "" for separators and what is not assigned."""
    if code in _spaces():
        return " "
    lows, rest = _classes()
    at = bisect_right(lows, code) - 1
    return rest[at][1] if at >= 0 and code <= rest[at][0] else ""


def lower_of(code: int) -> int:
    return _lower().get(code, code)


def base_of(code: int) -> int:
    """What a code point's canonical decomposition begins with: the engine drops the rest of it."""
    firsts, rest = _bases()
    at = bisect_right(firsts, code) - 1
    return rest[at][1] if at >= 0 and code <= rest[at][0] else code


@cache
def _spaces() -> frozenset[int]:
    return frozenset(data.unicode().spaces)


@cache
def _classes() -> tuple[list[int], list[tuple[int, str]]]:
    ranges = sorted((low, high, name) for name, listed in data.unicode().classes.items() for low, high in listed)
    return [low for low, _, _ in ranges], [(high, name) for _, high, name in ranges]


@cache
def _lower() -> dict[int, int]:
    return dict(data.unicode().lower)


@cache
def _bases() -> tuple[list[int], list[tuple[int, int]]]:
    ranges = data.unicode().base
    return [first for first, _, _ in ranges], [(last, base) for _, last, base in ranges]
