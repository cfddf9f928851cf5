"""Framing: a u32 little-endian payload length, then the payload.

`FrameReader` lends its buffers to the transport. Where a frame begins that is a window of READ_AHEAD_BYTES, so that a
small message comes in one call with all its frames; what is missing of a larger payload is received straight into its
own buffer. Memory follows the bytes that came, not the length that was claimed: a control frame's buffer grows with
what it holds, a raw frame's is committed page by page as it fills. # P10
"""

from __future__ import annotations

import mmap
import struct

PREFIX = struct.Struct("<I")
READ_AHEAD_BYTES = 16 * 1024
_LAZY_FROM_BYTES = 256 * 1024


class FrameReader:
    """Reads one frame at a time: `prefix` first, then, once `expect` has accepted its length, the payload.

    All that was received must be taken before the next `get_buffer`: the reader keeps no second frame's payload.
    """

    def __init__(self) -> None:
        self._window = bytearray(READ_AHEAD_BYTES)
        self._at = self._end = 0  # what of the window was received and not taken
        self._payload: bytearray | memoryview | None = None
        self._length = 0
        self._filled = 0

    @property
    def started(self) -> bool:
        """Some but not all bytes of a frame are here."""
        return self._at < self._end or self._payload is not None

    @property
    def length(self) -> int | None:
        """The payload length as the peer claims it, once the prefix is here and until `expect` accepts it."""
        if self._payload is None and self._end - self._at >= PREFIX.size:
            return int(PREFIX.unpack_from(self._window, self._at)[0])
        return None

    def expect_control(self) -> None:
        """Accept the claimed length for a control frame: its buffer grows with what arrives."""
        self._begin(lazily=False)

    def expect_raw(self) -> None:
        """Accept the claimed length for a raw frame: one buffer of the final size that nobody copies again."""
        self._begin(lazily=True)

    def _begin(self, lazily: bool) -> None:
        length = self.length
        assert length is not None
        first = self._at + PREFIX.size
        here = min(length, self._end - first)
        if not lazily:
            self._payload = bytearray(min(length, READ_AHEAD_BYTES))
        elif length < _LAZY_FROM_BYTES:
            self._payload = memoryview(bytearray(length))
        else:
            # bytearray(n) would touch every page; an anonymous mapping costs memory only where bytes arrive.
            self._payload = memoryview(mmap.mmap(-1, length))
        self._payload[:here] = self._window[first : first + here]
        self._at = first + here
        self._length, self._filled = length, here

    def get_buffer(self) -> memoryview:
        """Where the next bytes belong; never empty.

        Must not be called while a length waits for its acceptance or a payload is complete.
        """
        if self._payload is None:
            left = self._window[self._at : self._end]  # a part of a prefix at most
            self._window[: len(left)] = left
            self._at, self._end = 0, len(left)
            return memoryview(self._window)[self._end :]
        if isinstance(self._payload, bytearray) and self._filled == len(self._payload):
            # A new one instead of extend: the transport may still hold a view of the old one.
            grown = bytearray(min(2 * self._filled, self._length))
            grown[: self._filled] = self._payload
            self._payload = grown
        return memoryview(self._payload)[self._filled :]

    def buffer_filled(self, count: int) -> None:
        if self._payload is None:
            self._end += count
        else:
            self._filled += count

    def take(self) -> memoryview | None:
        """The payload, once it is complete; the reader then begins the next frame."""
        if self._payload is None or self._filled < self._length:
            return None
        payload, self._payload = self._payload, None
        return memoryview(payload)[: self._length]


def prefix(length: int) -> bytes:
    """The four bytes before a payload of this length."""
    return PREFIX.pack(length)
