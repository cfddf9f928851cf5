"""ASCII texts, word by word: cut by Python's own expressions, each different word tokenized once and remembered.

Exact, since the pieces that a pre-tokenizer leaves are tokenized independently of one another, and three times as fast
as the general way, which keeps track of normalized and original offsets that nobody here wants.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from synapse.artifacts.tokenizer.regexes import translate_ascii

_MAX_REMEMBERED: Final = 1 << 16
_MAX_WORD_CHARS: Final = 64


class AsciiWords:
    """Ids of ASCII texts.

    Args:
        expressions: the pre-tokenizer's, as the engine has them.
        encode: words → ids, no pre-tokenizer in it.
    """

    def __init__(self, expressions: Sequence[str], encode: Callable[[Sequence[str]], list[list[int]]]) -> None:
        # A capturing group makes split() return what matched, between what did not.
        self._splits = [re.compile(f"({translate_ascii(expression)})").split for expression in expressions]
        self._encode = encode
        self._remembered: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """The ids of one ASCII text."""
        words = [text]
        for split in self._splits:
            words = [word for piece in words for word in split(piece) if word]
        rows = list(map(self._remembered.get, words))
        if None in rows:
            known = self._learn({word for word, row in zip(words, rows, strict=True) if row is None})
            rows = [known[word] if row is None else row for word, row in zip(words, rows, strict=True)]
        return list(chain.from_iterable(row for row in rows if row is not None))

    def _learn(self, missing: set[str]) -> dict[str, list[int]]:
        words = list(missing)
        known = dict(zip(words, self._encode(words), strict=True))
        if len(self._remembered) + len(known) > _MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered.update((word, row) for word, row in known.items() if len(word) <= _MAX_WORD_CHARS)
        return known
