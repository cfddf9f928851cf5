"""Connections in memory: bounded, ordered, with latency; `ports.ByteStream` at both ends."""

from __future__ import annotations

from collections.abc import Sequence

import trio

PIPE_BYTES = 64 * 1024
"""A direction of a connection holds so much; then sending blocks."""


class Pipe:
    """One direction: a bounded buffer between one sender and one receiver."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.data = bytearray()
        self.closed = False
        self.changed = trio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.notify()


class SimStream:
    """One end of a virtual connection; `ports.ByteStream`."""

    def __init__(self, incoming: Pipe, outgoing: Pipe, latency_s: float = 0.0) -> None:
        self._incoming, self._outgoing, self._latency_s = incoming, outgoing, latency_s

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self._outgoing
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while len(view):
                if pipe.closed:
                    raise trio.BrokenResourceError
                room = pipe.capacity - len(pipe.data)
                if room <= 0:
                    await pipe.changed.wait()
                    continue
                pipe.data += view[:room]
                view = view[room:]
                pipe.notify()
        if pipe.closed:
            raise trio.BrokenResourceError

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        pipe = self._incoming
        if self._latency_s:
            await trio.sleep(self._latency_s)
        while not pipe.data:
            if pipe.closed:
                return 0
            await pipe.changed.wait()
        n = min(len(buffer), len(pipe.data))
        buffer[:n] = pipe.data[:n]
        del pipe.data[:n]
        pipe.notify()
        return n

    async def something_came(self) -> None:
        """Wait until there is something to receive, and leave it there."""
        while not self._incoming.data and not self._incoming.closed:
            await self._incoming.changed.wait()

    def close_sending(self) -> None:
        """The other end sees the end of the stream; this one can still receive."""
        self._outgoing.close()

    def close(self) -> None:
        self._incoming.close()
        self._outgoing.close()


def stream_pair(capacity: int = PIPE_BYTES, latency_s: float = 0.0) -> tuple[SimStream, SimStream]:
    """Both ends of a connection."""
    there, back = Pipe(capacity), Pipe(capacity)
    return SimStream(back, there, latency_s), SimStream(there, back, latency_s)
