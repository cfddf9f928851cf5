"""Cutting a text at its special tokens, exactly as the engine does: longest token first, each over all that is left.

Not the leftmost match, as the AddedTokens of `tokenizers` would find: with the tokens `<x1` and `x1>>`, the engine
makes `<` and `x1>>` of the text `<x1>>`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Final

from synapse.artifacts.tokenizer.errors import NotBuildable
from synapse.artifacts.tokenizer.vocabulary import CONTROL, LSTRIP, RSTRIP, UNKNOWN, Vocabulary

_SPACES: Final = " \t\n\v\f\r"
"""What the engine strips beside a special token."""

_MAX_SPECIALS: Final = 1 << 16
_MAX_NESTED: Final = 200
_MAX_SPECIAL_WORK: Final = 50_000_000
"""Characters squared: what the check of their order may cost. Real vocabularies need less than a million."""

Span = tuple[int, int]
"""Characters of a text: start and end."""


@dataclass(frozen=True)
class _Special:
    token_id: int
    text: str
    parsed_only: bool
    """Only where special tokens are parsed: control and unknown ones."""
    lstrip: bool
    rstrip: bool


class Partition:
    """The special tokens of a vocabulary and where they cut a text.

    Args:
        checked: `check` has let this vocabulary pass before.
    Raises: NotBuildable, see `check`.
    """

    def __init__(self, vocabulary: Vocabulary, *, checked: bool = False) -> None:
        if not checked:
            check(vocabulary)
        specials = [
            _Special(
                token_id,
                vocabulary.texts[token_id] or "",
                parsed_only=bool(attribute & (CONTROL | UNKNOWN)),
                lstrip=bool(attribute & LSTRIP),
                rstrip=bool(attribute & RSTRIP),
            )
            for token_id in vocabulary.special_ids
            for attribute in (vocabulary.attributes[token_id],)
        ]
        specials.sort(key=lambda special: len(vocabulary.tokens[special.token_id]), reverse=True)
        self._parsed = _Finder(specials)
        self._plain = _Finder([special for special in specials if not special.parsed_only])

    def cut(self, text: str, *, parse_special: bool, literal: Sequence[Span] = ()) -> list[int | str]:
        """The text as a row of special tokens' ids and of the raw pieces between them, none of them empty.

        Control and unknown tokens are left alone where `parse_special` is off, and wherever they touch a span of
        `literal` (ascending, in characters). User-defined ones always count, as for the engine.
        """
        if not text:
            return []
        finder = self._parsed if parse_special else self._plain
        occurrences = finder.occurrences(text)
        if not occurrences:
            return [text]
        starts, ends = [0], [len(text)]  # what is still raw, ascending
        found: list[tuple[int, int | str]] = []
        for _, at, special in occurrences:
            index = bisect_right(starts, at) - 1
            end = at + len(special.text)
            if index < 0 or end > ends[index]:
                continue  # inside or across a token that was found before
            if literal and special.parsed_only and _touches(literal, at, end):
                continue
            left, right = at, end
            if special.lstrip:
                while left > starts[index] and text[left - 1] in _SPACES:
                    left -= 1
            if special.rstrip:
                while right < ends[index] and text[right] in _SPACES:
                    right += 1
            rest = [span for span in ((starts[index], left), (right, ends[index])) if span[0] < span[1]]
            starts[index : index + 1] = [span[0] for span in rest]
            ends[index : index + 1] = [span[1] for span in rest]
            found.append((at, special.token_id))
        found += [(start, text[start:end]) for start, end in zip(starts, ends, strict=True)]
        found.sort(key=itemgetter(0))
        return [part for _, part in found]


def _touches(spans: Sequence[Span], start: int, end: int) -> bool:
    low, high = 0, len(spans)
    while low < high:  # the first span that ends behind `start`
        middle = (low + high) // 2
        if spans[middle][1] <= start:
            low = middle + 1
        else:
            high = middle
    return low < len(spans) and spans[low][0] < end


class _Finder:
    """Which of some special tokens occur in a text, in the order in which they cut."""

    def __init__(self, specials: Sequence[_Special]) -> None:
        self._order = {special.text: (rank, special) for rank, special in enumerate(specials)}
        texts = sorted(self._order)
        # A token hides those that begin it where the longest match is looked for.
        self._hidden: dict[str, list[str]] = {}
        stack: list[str] = []
        for text in texts:
            while stack and not text.startswith(stack[-1]):
                stack.pop()
            if stack:
                self._hidden[text] = stack.copy()
            if len(stack) > _MAX_NESTED:
                raise NotBuildable(f"over {_MAX_NESTED} special tokens begin one another")
            stack.append(text)
        self._pattern = trie_pattern(texts)

    @cached_property
    def _first(self) -> re.Pattern[str] | None:
        return re.compile(self._pattern) if self._pattern else None

    @cached_property
    def _every(self) -> re.Pattern[str]:
        return re.compile(f"(?=({self._pattern}))")

    def occurrences(self, text: str) -> list[tuple[int, int, _Special]]:
        """Every occurrence (rank, where, token), overlapping ones too, in the order in which they are to be cut."""
        first = self._first.search(text) if self._first else None
        if first is None:
            return []
        found: list[tuple[int, int, _Special]] = []
        for match in self._every.finditer(text, first.start()):
            name, at = match[1], match.start()
            rank, special = self._order[name]
            found.append((rank, at, special))
            for shorter in self._hidden.get(name, ()):
                rank, special = self._order[shorter]
                found.append((rank, at, special))
        found.sort(key=itemgetter(0, 1))
        return found


def trie_pattern(texts: Iterable[str]) -> str:
    """A regular expression for the longest of some texts at a position, factored so that thousands stay fast."""
    return _trie(sorted(set(texts)), 0)


def _trie(texts: list[str], depth: int) -> str:
    """For sorted, distinct texts that share their first `depth` characters: what may follow these."""
    optional = bool(texts) and len(texts[0]) == depth
    rest = texts[1:] if optional else texts
    if not rest:
        return ""
    branches: list[str] = []
    at = 0
    while at < len(rest):
        end = at
        while end < len(rest) and rest[end][depth] == rest[at][depth]:
            end += 1
        group = rest[at:end]
        shared = _shared(group[0], group[-1])
        branches.append(re.escape(group[0][depth:shared]) + _trie(group, shared))
        at = end
    if len(branches) == 1 and not optional:
        return branches[0]
    return f"(?:{'|'.join(branches)}){'?' if optional else ''}"


def _shared(first: str, last: str) -> int:
    """How many characters two texts share at their beginning (the whole of a sorted group does if these two do)."""
    length = 0
    for a, b in zip(first, last, strict=False):
        if a != b:
            break
        length += 1
    return length


def check(vocabulary: Vocabulary) -> None:
    """Can texts be cut at this vocabulary's special tokens exactly as the engine does?

    Raises: NotBuildable if the file alone does not say how, or if it would take too much to know.
    """
    if vocabulary.ambiguous:
        raise NotBuildable(vocabulary.ambiguous)
    specials = vocabulary.special_ids
    if len(specials) > _MAX_SPECIALS:
        raise NotBuildable(f"over {_MAX_SPECIALS} special tokens")
    by_length: dict[int, list[str]] = {}
    work = 0
    for token_id in specials:
        text = vocabulary.texts[token_id]
        if text is None:
            raise NotBuildable(f"the special token {token_id} is no UTF-8")
        work += len(text) ** 2
        by_length.setdefault(len(vocabulary.tokens[token_id]), []).append(text)
    if work > _MAX_SPECIAL_WORK:
        raise NotBuildable("the special tokens are too long to be compared")
    # Among tokens of one length the engine's order is its sort's own: it must not matter.
    for texts in by_length.values():
        if len(texts) > 1:
            _check_overlaps(texts)


def _check_overlaps(texts: Sequence[str]) -> None:
    beginnings: dict[str, set[str]] = {}
    for text in texts:
        for length in range(1, len(text)):
            beginnings.setdefault(text[:length], set()).add(text)
    for text in texts:
        for at in range(1, len(text)):
            if beginnings.get(text[at:], set()) - {text}:
                raise NotBuildable(f"special tokens of one length overlap ({text!r}): their order is not known")
