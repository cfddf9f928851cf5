"""SentencePiece's precompiled character map: a double array over bytes, read into a plain mapping."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from synapse.artifacts.gguf import ArtifactInvalid
from synapse.artifacts.tokenizer.errors import NotBuildable

_MAX_KEY_BYTES = 64
_MAX_KEYS = 1 << 19
_LABEL = np.uint32(0x8000_00FF)
"""A unit is a child by this label only if the upper bit is clear: values have it set."""


def read_charsmap(values: NDArray[Any] | None) -> dict[str, str]:
    """What the map replaces by what, a NUL-free text each.

    Raises: ArtifactInvalid for what the engine refuses, NotBuildable for a map that is no tree of UTF-8 texts.
    """
    if values is None or not len(values):
        return {}
    blob = values.tobytes()
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 or size + 4 >= len(blob):
        raise ArtifactInvalid(f"tokenizer.ggml.precompiled_charsmap: {len(blob)} bytes cannot hold an array of {size}")
    units = np.frombuffer(blob, "<u4", count=size // 4, offset=4)
    replacements = blob[4 + size :]
    if not len(units):
        return {}
    mapping: dict[str, str] = {}
    for key, at in _keys(units):
        end = replacements.find(b"\0", at)
        if end < 0:
            raise NotBuildable("the character map points behind its replacements")
        try:
            mapping[key.decode()] = replacements[at:end].decode()
        except UnicodeDecodeError:
            raise NotBuildable("the character map replaces parts of characters") from None
    return {key: value for key, value in mapping.items() if key != value or len(key) > 1}


def _keys(units: NDArray[np.uint32]) -> list[tuple[bytes, int]]:
    """Every text that the array accepts and the offset of its replacement, level by level."""
    index = np.arange(len(units), dtype=np.uint32)
    labels = units & _LABEL
    bases = (units >> np.uint32(10)) << ((units & np.uint32(0x200)) >> np.uint32(6))
    # A node at `v` has its children at (v ^ base(v)) ^ label: sort all possible children by that point.
    children = index[(labels > 0) & (labels < 0x100)]
    points = children ^ labels[children]
    order = np.argsort(points, kind="stable")
    children, points = children[order], points[order]

    found: list[tuple[bytes, int]] = []
    level: list[tuple[int, bytes]] = [(int(bases[0]), b"")]  # where a node's children are, and its text
    for _ in range(_MAX_KEY_BYTES):
        following: list[tuple[int, bytes]] = []
        froms = np.array([point for point, _ in level], np.uint32)
        starts = np.searchsorted(points, froms, "left").tolist()
        ends = np.searchsorted(points, froms, "right").tolist()
        for (_, text), start, end in zip(level, starts, ends, strict=True):
            for child in children[start:end].tolist():
                unit = int(units[child])
                key = text + bytes((unit & 0xFF,))
                point = child ^ int(bases[child])
                if unit & 0x100:
                    if point >= len(units):
                        raise NotBuildable("the character map points outside itself")
                    found.append((key, int(units[point]) & 0x7FFF_FFFF))
                following.append((point, key))
        if len(found) + len(following) > _MAX_KEYS:
            raise NotBuildable("the character map has too many entries")
        if not following:
            return found
        level = following
    raise NotBuildable("the character map is cyclic")
