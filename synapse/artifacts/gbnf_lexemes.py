"""Which parts of a recursive GBNF grammar may be lexemes of more than one character without changing its language.

llguidance's lexer takes the longest match of all lexemes that the parser allows at a place. That is harmless where no
word of an allowed lexeme is the beginning of a longer word of another one, or of its own. So parts without recursion
are tried as lexemes, and those that could be confused at some place are given up until none is left. What may stand
beside what is estimated from which lexeme can follow which: too much rather than too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from synapse.artifacts.gbnf import Chars, Choice, Lexeme, Node, Reference, Repeat, Sequence

_MAX_POSITIONS: Final = 300
"""Characters in one lexeme's pattern."""
_MAX_LEXEMES: Final = 128
"""Different ones in a grammar, single characters included; with more, all are characters."""
_LAST_CODE: Final = 0x10FFFF

Rules = dict[str, Node]


def with_lexemes(rules: Rules, pattern_of: Callable[[Node], str | None]) -> Rules:
    """The same grammar with Lexeme nodes where they are safe.

    Args:
        pattern_of: the regular expression of a node without recursion, None where it is too large for one.
    """
    given_up: set[str] = set()
    while True:
        made = _Merger(rules, pattern_of, given_up).rules()
        confused = _Analysis(made).confused()
        if confused is None:
            return rules
        if not confused:
            return made
        given_up |= confused


# --- where to try ----------------------------------------------------------------------------------------------------


class _Merger:
    def __init__(self, rules: Rules, pattern_of: Callable[[Node], str | None], given_up: set[str]) -> None:
        self._rules, self._pattern_of, self._given_up = rules, pattern_of, given_up
        self._regular: dict[str, bool] = {}

    def rules(self) -> Rules:
        return {name: self._merged(node) for name, node in self._rules.items()}

    def _merged(self, node: Node) -> Node:
        match node:
            case Choice(options):
                return Choice(tuple(self._merged(option) for option in options))
            case Repeat(item, least, most):
                return Repeat(self._merged(item), least, most)
            case Sequence(items):
                return Sequence(tuple(self._runs(items)))
            case _:
                return node

    def _runs(self, items: tuple[Node, ...]) -> Iterator[Node]:
        """The items, runs of them without recursion as one lexeme each where that was not given up."""
        at = 0
        while at < len(items):
            end = at
            while end < len(items) and self._is_regular(items[end]):
                end += 1
            # A lexeme has at least one character: what may be empty at its ends stays outside.
            first, last = at, end
            while first < last and _Automaton.of(items[first], self._rules).nullable:
                first += 1
            while last > first and _Automaton.of(items[last - 1], self._rules).nullable:
                last -= 1
            lexeme = self._lexeme(items[first:last])
            if lexeme is not None:
                yield from (self._merged(item) for item in items[at:first])
                yield lexeme
                yield from (self._merged(item) for item in items[last:end])
            else:
                yield from (self._merged(item) for item in items[at:end])
            if end < len(items):
                yield self._merged(items[end])
            at = end + 1

    def _lexeme(self, items: tuple[Node, ...]) -> Lexeme | None:
        if not items:
            return None
        node = Sequence(items)
        automaton = _Automaton.of(node, self._rules)
        if automaton.nullable or not 2 <= len(automaton.positions) <= _MAX_POSITIONS:
            return None
        pattern = self._pattern_of(node)
        if pattern is None or pattern in self._given_up:
            return None
        return Lexeme(pattern, node)

    def _is_regular(self, node: Node) -> bool:
        """It leads to no rule that leads to itself, and is no larger than a lexeme may be."""
        if not all(self._leads_nowhere(name, frozenset()) for name in _references(node)):
            return False
        return len(_Automaton.of(node, self._rules).positions) <= _MAX_POSITIONS

    def _leads_nowhere(self, name: str, above: frozenset[str]) -> bool:
        if name in above or len(above) > 50:
            return False
        if name not in self._regular:
            inner = above | {name}
            self._regular[name] = all(self._leads_nowhere(other, inner) for other in _references(self._rules[name]))
        return self._regular[name]


def _references(node: Node) -> Iterator[str]:
    match node:
        case Reference(name):
            yield name
        case Sequence(children) | Choice(children):
            for child in children:
                yield from _references(child)
        case Repeat(item, _, _):
            yield from _references(item)
        case Lexeme(_, inner):
            yield from _references(inner)


# --- one lexeme as an automaton over its characters ------------------------------------------------------------------


class _Automaton:
    """The places of characters in a pattern: which come first, last and behind which. Repetitions count as loops, so it
    takes at least what the pattern takes."""

    def __init__(self) -> None:
        self.positions: list[tuple[tuple[int, int], ...]] = []
        self.follow: list[set[int]] = []
        self.first: set[int] = set()
        self.last: set[int] = set()
        self.nullable = True

    @classmethod
    def of(cls, node: Node, rules: Rules) -> _Automaton:
        automaton = cls()
        automaton.nullable, automaton.first, automaton.last = automaton._add(node, rules)
        return automaton

    def _add(self, node: Node, rules: Rules) -> tuple[bool, set[int], set[int]]:
        if len(self.positions) > _MAX_POSITIONS:
            return False, set(), set()
        match node:
            case Chars():
                self.positions.append(_ranges(node))
                self.follow.append(set())
                here = {len(self.positions) - 1}
                return False, here, here
            case Reference(name):
                return self._add(rules[name], rules)
            case Lexeme(_, inner):
                return self._add(inner, rules)
            case Choice(options):
                parts = [self._add(option, rules) for option in options]
                first: set[int] = set().union(*(part[1] for part in parts))
                last: set[int] = set().union(*(part[2] for part in parts))
                return any(part[0] for part in parts), first, last
            case Sequence(items):
                return self._sequence(items, rules)
            case Repeat(_, _, 0):
                return True, set(), set()
            case Repeat(item, least, most):
                nullable, first, last = self._add(item, rules)
                if most is None or most > 1:
                    for position in last:
                        self.follow[position] |= first
                return nullable or least == 0, first, last

    def _sequence(self, items: tuple[Node, ...], rules: Rules) -> tuple[bool, set[int], set[int]]:
        nullable, first, last = True, set[int](), set[int]()
        for item in items:
            empty, begins, ends = self._add(item, rules)
            for position in last:
                self.follow[position] |= begins
            first = first | begins if nullable else first
            last = last | ends if empty else ends
            nullable = nullable and empty
        return nullable, first, last

    def begins(self, other: _Automaton) -> bool:
        """Whether a word of this one can be the beginning of a longer word of `other`."""
        waiting = [(mine, theirs) for mine in self.first for theirs in other.first]
        seen = set(waiting)
        while waiting:
            mine, theirs = waiting.pop()
            if not _meet(self.positions[mine], other.positions[theirs]):
                continue
            if mine in self.last and other.follow[theirs]:
                return True
            for pair in ((a, b) for a in self.follow[mine] for b in other.follow[theirs]):
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)
        return False

    def may_equal(self, other: _Automaton) -> bool:
        """Whether both may match the same text; judged by its first character."""
        return any(_meet(self.positions[a], other.positions[b]) for a in self.first for b in other.first)


def _ranges(chars: Chars) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for low, high in sorted(chars.ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    if not chars.negated:
        return tuple(merged)
    gaps, at = [], 0
    for low, high in merged:
        if low > at:
            gaps.append((at, low - 1))
        at = high + 1
    return (*gaps, (at, _LAST_CODE)) if at <= _LAST_CODE else tuple(gaps)


def _meet(a: tuple[tuple[int, int], ...], b: tuple[tuple[int, int], ...]) -> bool:
    i = j = 0
    while i < len(a) and j < len(b):
        if a[i][1] < b[j][0]:
            i += 1
        elif b[j][1] < a[i][0]:
            j += 1
        else:
            return True
    return False


# --- which lexemes may be allowed at one place -----------------------------------------------------------------------


@dataclass
class _Edges:
    """Of a part of the grammar: can it be empty; which lexemes can begin and end it (bit sets)."""

    nullable: bool = False
    first: int = 0
    last: int = 0


class _Analysis:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._keys: dict[Node, int] = {}
        self._automata: list[_Automaton] = []
        for node in rules.values():
            self._collect(node)
        self._edges = {name: _Edges() for name in rules}
        self._next = [0] * len(self._keys)

    def confused(self) -> set[str] | None:
        """Patterns of lexemes that must be given up; None if there are too many lexemes to tell."""
        lexemes = {node: index for node, index in self._keys.items() if isinstance(node, Lexeme)}
        if len(self._keys) > _MAX_LEXEMES:
            return None
        if not lexemes:
            return set()
        together = self._together()
        return {
            lexeme.pattern
            for lexeme, index in lexemes.items()
            if any(
                together[index] >> other & 1 and automaton.begins(self._automata[index])
                for other, automaton in enumerate(self._automata)
            )
        }

    def _collect(self, node: Node) -> None:
        match node:
            case Chars() | Lexeme():
                if node not in self._keys:
                    self._keys[node] = len(self._keys)
                    self._automata.append(_Automaton.of(node, self._rules))
            case Sequence(children) | Choice(children):
                for child in children:
                    self._collect(child)
            case Repeat(item, _, _):
                self._collect(item)

    def _together(self) -> list[int]:
        """For each lexeme the ones that may be allowed where it is, itself included."""
        before = None
        while before != (before := [(e.nullable, e.first, e.last) for e in self._edges.values()] + [tuple(self._next)]):
            for name, node in self._rules.items():
                self._edges[name] = self._walk(node)
        count = len(self._automata)
        equal = [
            sum(1 << b for b in range(count) if self._automata[a].may_equal(self._automata[b])) for a in range(count)
        ]
        together = [0] * count
        self._allow(together, self._edges["root"].first, self._edges["root"].first)
        previous: list[int] = []
        while together != previous:
            previous = together.copy()
            for a in range(count):
                if not together[a]:
                    continue  # never reached
                self._allow(together, self._next[a], self._next[a])
                for b in _bits(together[a] & equal[a]):
                    self._allow(together, self._next[a], self._next[b])
        return together

    @staticmethod
    def _allow(together: list[int], some: int, others: int) -> None:
        for index in _bits(some):
            together[index] |= others | (1 << index)
        for index in _bits(others):
            together[index] |= some | (1 << index)

    def _walk(self, node: Node) -> _Edges:
        match node:
            case Chars() | Lexeme():
                bit = 1 << self._keys[node]
                return _Edges(False, bit, bit)
            case Reference(name):
                return self._edges[name]
            case Choice(options):
                parts = [self._walk(option) for option in options]
                made = _Edges(any(part.nullable for part in parts))
                for part in parts:
                    made.first |= part.first
                    made.last |= part.last
                return made
            case Sequence(items):
                made = _Edges(True)
                for item in items:
                    part = self._walk(item)
                    self._precede(made.last, part.first)
                    made.first |= part.first if made.nullable else 0
                    made.last = part.last | (made.last if part.nullable else 0)
                    made.nullable = made.nullable and part.nullable
                return made
            case Repeat(item, least, most):
                part = self._walk(item)
                if most is None or most > 1:
                    self._precede(part.last, part.first)
                return _Edges(part.nullable or least == 0, part.first, part.last)

    def _precede(self, last: int, first: int) -> None:
        for index in _bits(last):
            self._next[index] |= first


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
