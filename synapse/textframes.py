"""Texts and ids as the raw frames of the text processes' messages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synapse.errors import InvalidInput

QUICK_BYTES = 256 * 1024
"""Requests with more text than this, and every ingest, leave one process to the others."""
_GROUP_TEXTS = 16_384
"""Texts of one request: their lengths and counts stand in a control frame."""


def utf8(text: str, what: str) -> bytes:
    """Raises: InvalidInput for a lone surrogate."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{what} holds a lone surrogate at {error.start}") from None


def groups_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Runs [start, end) of texts that travel together: up to QUICK_BYTES, a longer text alone."""
    groups: list[tuple[int, int]] = []
    start, total = 0, 0
    for index, size in enumerate(sizes):
        if index > start and (total + size > QUICK_BYTES or index - start == _GROUP_TEXTS):
            groups.append((start, index))
            start, total = index, 0
        total += size
    if start < len(sizes):
        groups.append((start, len(sizes)))
    return groups


def ids_of(raw: memoryview, counts: Sequence[int]) -> list[NDArray[np.int32]]:
    """int32[n] for each text, views of the frame."""
    ids = np.frombuffer(raw, dtype="<i4")
    ends = np.cumsum(counts, dtype=np.int64).tolist()
    return [ids[end - count : end] for end, count in zip(ends, counts, strict=True)]
