"""Damage that fits any format, from a seeded source."""

from __future__ import annotations

import random
from collections.abc import Sequence

NUMBERS = (0, 1, 2, 8, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63, 2**64 - 8, 2**64 - 1)


def damaged(rng: random.Random, data: bytes, fragments: Sequence[bytes] = (), others: Sequence[bytes] = ()) -> bytes:
    """`data` changed in a few places.

    Args:
        fragments: pieces of the format that are worth putting anywhere.
        others: inputs that a stretch may be taken from.
    """
    content = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at = rng.randrange(len(content) + 1)
        size = rng.choice((1, 1, 2, 4, 8, 32))
        match rng.randrange(8):
            case 0:
                content[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del content[at : at + size]
            case 2:
                content[at:at] = content[at : at + size] * rng.choice((1, 2, 50))
            case 3:
                width = rng.choice((2, 4, 8))
                number = rng.choice(NUMBERS) & ((1 << 8 * width) - 1)
                content[at : at + width] = number.to_bytes(width, rng.choice(("little", "big")))
            case 4 if fragments:
                content[at : at + rng.choice((0, 0, size))] = rng.choice(fragments)
            case 5 if others:
                other = rng.choice(others)
                start = rng.randrange(len(other) + 1)
                content[at : at + size] = other[start : start + rng.choice((4, 32, 256))]
            case 6 if rng.random() < 0.2:
                del content[at:]
            case _:
                content[at : at + 1] = bytes([content[at] ^ (1 << rng.randrange(8))]) if at < len(content) else b"\0"
    return bytes(content)


def pieces(rng: random.Random, data: bytes, most: int = 8) -> list[bytes]:
    """`data` cut at a few places, some pieces perhaps empty."""
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(most)))
    edges = [0, *cuts, len(data)]
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]
