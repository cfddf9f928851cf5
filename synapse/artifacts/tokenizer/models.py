"""What the four recipes share: running a model of the `tokenizers` library, and ids that stand for others."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

import tokenizers

MAX_BATCH_CHARS: Final = 1 << 20
"""Characters of one call into the library: it keeps about 180 bytes for each until the call ends."""
CUT_CHARS: Final = 1 << 15
"""A longer piece is cut where no token can span, so that one long text uses all cores and little memory."""


@contextmanager
def collector_paused() -> Iterator[None]:
    """Building makes hundreds of thousands of small objects that all stay: looking for cycles doubles its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class TokenizerFailed(Exception):
    """The tokenizer library panicked: a bug in it. The text is at fault for all that can be said; nothing is lost."""


class Model(Protocol):
    """One recipe: raw pieces of text (no special tokens in them) become ids."""

    def encode(self, pieces: Sequence[str], heads: Sequence[bool]) -> list[list[int]]:
        """The ids of each piece; `heads` says which of them begin a text or follow a special token."""


class Runner:
    """A model of the library, behind the one way of calling it that releases the GIL.

    `virtual` lists what the ids behind the vocabulary stand for: texts that the engine merges through or falls back
    from, but has no token for.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer, count: int, virtual: Sequence[list[int]] = ()) -> None:
        # Whatever the library would do to a text on its own initiative stays off.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self._count, self._virtual = tokenizer, count, virtual

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text. Raises: TokenizerFailed."""
        if not texts:
            return []
        out: list[list[int]] = []
        batch: list[str] = []
        chars = 0
        for text in texts:
            if batch and chars + len(text) > MAX_BATCH_CHARS:
                out += self._call(batch)
                batch, chars = [], 0
            batch.append(text)
            chars += len(text)
        if batch:
            out += self._call(batch)
        return out

    def _call(self, texts: list[str]) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except BaseException as error:
            # pyo3's PanicException derives from BaseException and cannot be imported.
            if type(error).__name__ == "PanicException":
                raise TokenizerFailed(str(error)) from error
            raise
        rows: list[list[int]] = [encoding.ids for encoding in encodings]
        if self._virtual:
            count = self._count
            for index, row in enumerate(rows):
                if row and max(row) >= count:
                    rows[index] = self._resolved(row)
        return rows

    def _resolved(self, row: list[int]) -> list[int]:
        count, virtual = self._count, self._virtual
        out: list[int] = []
        for token_id in row:
            if token_id < count:
                out.append(token_id)
            else:
                out += virtual[token_id - count]
        return out


def joined(parts: Sequence[Sequence[str]], encode: Callable[[Sequence[str]], list[list[int]]]) -> list[list[int]]:
    """Ids of texts that are given in parts: all parts in one call, each text's ids joined again."""
    rows = encode([part for text in parts for part in text])
    if len(rows) == len(parts):
        return rows
    out: list[list[int]] = []
    at = 0
    for text in parts:
        if len(text) == 1:
            out.append(rows[at])
        else:
            out.append([token_id for row in rows[at : at + len(text)] for token_id in row])
        at += len(text)
    return out
