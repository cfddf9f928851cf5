"""SentencePiece's precompiled character map: a double array over bytes, read into a plain mapping."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from synapse.artifacts.gguf import ArtifactInvalid
from synapse.artifacts.tokenizer.errors import NotBuildable

_MAX_KEY_BYTES: Final = 64
_MAX_KEYS: Final = 1 << 19
_MAX_REMEMBERED: Final = 1 << 16
_BYTES: Final = [bytes((byte,)) for byte in range(256)]
_LABEL: Final = np.uint32(0x8000_00FF)
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
    nodes = bases[:1]  # where each node of a level has its children
    texts = [b""]
    for _ in range(_MAX_KEY_BYTES):
        starts = np.searchsorted(points, nodes, "left")
        counts = np.searchsorted(points, nodes, "right") - starts
        total = int(counts.sum())
        if len(found) + total > _MAX_KEYS:
            raise NotBuildable("the character map has too many entries")
        if not total:
            return found
        parents = np.repeat(np.arange(len(nodes)), counts)
        offsets = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
        level = children[np.repeat(starts, counts) + offsets]
        texts = [texts[parent] + _BYTES[label] for parent, label in zip(parents, labels[level], strict=True)]
        nodes = level ^ bases[level]
        leaves = np.flatnonzero(units[level] & np.uint32(0x100))
        if len(leaves) and int(nodes[leaves].max()) >= len(units):
            raise NotBuildable("the character map points outside itself")
        values = (units[nodes[leaves]] & np.uint32(0x7FFF_FFFF)).tolist()
        found += [(texts[leaf], value) for leaf, value in zip(leaves.tolist(), values, strict=True)]
    raise NotBuildable("the character map is cyclic")


class CharacterMap:
    """Applies a mapping: at each position the longest key, else the character as it is."""

    def __init__(self, mapping: dict[str, str]) -> None:
        self._mapping = mapping
        self._longest = max(map(len, mapping), default=0)
        self._memory: dict[str, str] = {}
        # Whatever matches lies in one of these places: a character with all that may follow one in a key, or a single
        # one. They may be too large but never cut a key.
        following = _set_of(c for key in mapping for c in key[1:])
        single = _set_of(key for key in mapping if len(key) == 1)
        parts = [f"(?s:.{following}+)"] if following else []
        if single:
            parts.append(single)
        self._places = re.compile("|".join(parts)) if parts else None

    def apply(self, text: str) -> str:
        """The mapped text."""
        return text if self._places is None else self._places.sub(self._mapped, text)

    def _mapped(self, match: re.Match[str]) -> str:
        place = match[0]
        mapped = self._memory.get(place)
        if mapped is None:
            mapped = "".join(self._parts(place))
            if len(self._memory) < _MAX_REMEMBERED and len(place) < _MAX_KEY_BYTES:
                self._memory[place] = mapped
        return mapped

    def _parts(self, place: str) -> Iterator[str]:
        at = 0
        while at < len(place):
            for length in range(min(self._longest, len(place) - at), 0, -1):
                value = self._mapping.get(place[at : at + length])
                if value is not None:
                    yield value
                    at += length
                    break
            else:
                yield place[at]
                at += 1


def _set_of(characters: Iterable[str]) -> str:
    """A set for a regular expression: of the basic plane exactly these, of the others all. (Each character beyond the
    basic plane is tried by itself, a range at once: with a thousand of them a text took twenty times as long.)"""
    listed = sorted(set(characters))
    basic = "".join(re.escape(c) for c in listed if c <= "\uffff")
    beyond = "\U00010000-\U0010ffff" if listed and listed[-1] > "\uffff" else ""
    return f"[{basic}{beyond}]" if listed else ""
