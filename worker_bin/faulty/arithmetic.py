"""What the faulty engine computes: pure functions of ids, so that tests know every result without a model."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence

_ALPHABET = b"abcdefghijklmnopqrstuvwxyz "


def _digest(ids: Sequence[int], salt: str, length: int) -> bytes:
    return hashlib.shake_128(salt.encode() + array("i", ids).tobytes()).digest(length)


def vector(ids: Sequence[int], dims: int) -> list[float]:
    """The normalized embedding of a text with these ids."""
    raw = _digest(ids, "vector", dims)
    values = [byte - 127.5 for byte in raw]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def score(query: Sequence[int], document: Sequence[int]) -> float:
    """How relevant the document is: the cosine of the two vectors."""
    return sum(a * b for a, b in zip(vector(query, 8), vector(document, 8), strict=True))


def token(prompt: Sequence[int], seed: int, at: int) -> int:
    """The `at`-th generated token: it depends on prompt, seed and position only (G2). Its id is its text's byte."""
    return _ALPHABET[_digest(prompt, f"token {seed} {at}", 1)[0] % len(_ALPHABET)]
