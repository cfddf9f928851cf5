"""What a process printed lately: a ring of fixed size, and its end as harmless text."""

from __future__ import annotations

import unicodedata


class LogRing:
    """The last `capacity` bytes of a stream."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._data = bytearray()
        self.total = 0
        """Bytes ever written."""

    def __len__(self) -> int:
        return min(len(self._data), self._capacity)

    def write(self, data: bytes) -> None:
        self.total += len(data)
        self._data += data[-self._capacity :]
        if len(self._data) > 2 * self._capacity:  # trimmed rarely, so that a write costs what it writes
            del self._data[: -self._capacity]

    def tail(self, limit: int) -> str:
        """The last `limit` bytes as text that is safe to show (see `escape`)."""
        return escape(bytes(self._data[-min(limit, self._capacity) :]).decode("utf-8", "replace"))


def escape(text: str) -> str:
    """Control, format (bidi) and other invisible characters as \\x.., \\u....; line feeds and tabs stay."""
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in _HIDDEN else _escaped(char) for char in text
    )


_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
