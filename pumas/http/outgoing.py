"""What one connection is to send: buffered without waiting, written by one task at a time."""

from __future__ import annotations

import trio
import trio.abc

from pumas.http.exchange import ClientGone

WRITE_BYTES = 64 << 10
"""Small pieces that are ready together leave in one write of up to this size."""


class Outgoing:
    """A buffer whose content leaves in the order in which it was added, whoever flushes it."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self.torn = False
        """A write was cancelled in its middle: how much of it has left is unknown, and nothing may follow it."""
        self.held_bytes = 0
        self._stream = stream
        self._pieces: list[bytes] = []
        self._lock = trio.Lock()

    def add(self, data: bytes) -> None:
        self._pieces.append(data)
        self.held_bytes += len(data)

    def being_written(self) -> bool:
        """Whether a task is in `flush`, which will also write what is added now."""
        return self._lock.locked()

    async def flush(self) -> None:
        """Write everything that is here. Always a checkpoint.

        Raises: ClientGone. Blocks: while the client does not read. Cancel: sets `torn` if a write had begun.
        """
        if not self._pieces:
            await trio.lowlevel.checkpoint()
        if self._lock.locked():
            await self._lock.acquire()
        else:
            self._lock.acquire_nowait()  # the write below is a checkpoint already
        try:
            while self._pieces:
                await trio.lowlevel.checkpoint_if_cancelled()  # here nothing is torn yet
                pieces, self._pieces, self.held_bytes = self._pieces, [], 0
                await self._write(joined(pieces))
        finally:
            self._lock.release()

    async def _write(self, pieces: list[bytes | memoryview]) -> None:
        try:
            for piece in pieces:
                await self._stream.send_all(piece)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ClientGone("the client has left") from error
        except BaseException:
            self.torn = True
            raise


def joined(pieces: list[bytes]) -> list[bytes | memoryview]:
    """The same bytes in as few writes as make sense: small neighbours joined, large ones not copied."""
    if len(pieces) == 1:
        return [pieces[0]]
    writes: list[bytes | memoryview] = []
    small = bytearray()
    for piece in pieces:
        if small and len(small) + len(piece) > WRITE_BYTES:
            writes.append(memoryview(small))
            small = bytearray()
        if len(piece) > WRITE_BYTES:
            writes.append(piece)
        else:
            small += piece
    if small:
        writes.append(memoryview(small))
    return writes
