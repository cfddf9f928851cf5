"""The engine's SentencePiece merging of a run of one character, done as the engine does it: to check ties with."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

import numpy as np


def merge_run(
    length: int, by_length: Mapping[int, int], scores: np.ndarray[tuple[int], np.dtype[np.float32]]
) -> list[int]:
    """The ids of a run of `length` equal characters, where `by_length` holds the tokens that are such runs.

    The best score first, the leftmost of equals; a character alone must be a token.
    """
    sizes = [1] * length
    following = [*range(1, length), -1]
    before = list(range(-1, length - 1))
    queue: list[tuple[float, int, int, int]] = []

    def offer(left: int, right: int) -> None:
        if left < 0 or right < 0:
            return
        size = sizes[left] + sizes[right]
        token_id = by_length.get(size)
        if token_id is not None:
            heapq.heappush(queue, (-float(scores[token_id]), left, right, size))

    for left in range(length - 1):
        offer(left, left + 1)
    while queue:
        _, left, right, size = heapq.heappop(queue)
        if not sizes[left] or not sizes[right] or sizes[left] + sizes[right] != size:
            continue
        sizes[left], sizes[right] = size, 0
        following[left] = following[right]
        if following[right] >= 0:
            before[following[right]] = left
        offer(before[left], left)
        offer(left, following[left])
    return [by_length.get(size, -1) for size in sizes if size]
