"""Which operation a token belongs to: the first three ids of every text, document and prompt are its number.

So what reached a worker can be told from its raw frames alone, whoever formed the units.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synapse.wire import messages as m

BASE = 250
MARK_TOKENS = 3
FIRST_ID = 3
"""Ids below are often special. So a vocabulary needs FIRST_ID + BASE ids."""


def marked(operation: int, length: int) -> NDArray[np.int32]:
    """Ids that begin with the operation's number, and `length` more."""
    if not 0 <= operation < BASE**MARK_TOKENS:
        raise ValueError(f"{operation} is no number from 0 to {BASE**MARK_TOKENS - 1}")
    digits = [operation // BASE**2, operation // BASE % BASE, operation % BASE]
    ids = np.asarray([*digits, *([operation % 7] * length)], dtype=np.int32)
    return ids + np.int32(FIRST_ID)


def operation_of(ids: Sequence[int]) -> int:
    """The number that these ids begin with; -1 where they are not marked."""
    if len(ids) < MARK_TOKENS or not all(FIRST_ID <= int(i) < FIRST_ID + BASE for i in ids[:MARK_TOKENS]):
        return -1
    a, b, c = (int(i) - FIRST_ID for i in ids[:MARK_TOKENS])
    return a * BASE**2 + b * BASE + c


def operations_in(request: m.Request, raw: bytes) -> Counter[int]:
    """How many parts of each operation a request brings to a worker for the first time."""
    skip = 0
    match request:
        case m.EmbedBatch():
            lengths = [item.n_tokens for item in request.items]
        case m.Rerank():
            lengths, skip = [candidate.n_tokens for candidate in request.candidates], request.query_n_tokens
        case m.Decode():
            lengths = [start.n_tokens for start in request.start]
        case m.Generate():
            lengths = [len(raw) // 4]
        case _:
            return Counter()
    ids = np.frombuffer(raw, dtype="<i4").tolist()
    found: Counter[int] = Counter()
    at = skip
    for length in lengths:
        found[operation_of(ids[at : at + length])] += 1
        at += length
    return found
