"""Answers: whole ones, and streams of events that are written as they come.

A stream has two tasks. The request's own task runs the generator that produces the events, and closes it, whatever
happens; so what the generator holds (a provider's stream, a permit) is given back in the task that took it. A child
writes: all that is ready leaves in one write, and where nothing is ready for a while, a comment, so that neither side
takes a long silence for a dead connection. The buffer between them is bounded: a client that reads slowly stops the
generator, nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager

import trio

from pumas.http.exchange import Receive, Scope, Send

BUFFER_BYTES = 64 << 10
"""What may wait to be written, and the size of one write."""
KEEP_ALIVE = b": keep-alive\n\n"

Headers = Iterable[tuple[bytes, bytes]]


class Answer:
    """A whole answer: an ASGI application of one response, with its length, so that a cut one shows."""

    def __init__(
        self, body: bytes, *, status: int = 200, headers: Headers = (), content_type: str = "application/json"
    ) -> None:
        self.status = status
        self.body = body
        self.headers = [
            (b"content-type", content_type.encode("latin-1")),
            (b"content-length", str(len(body)).encode()),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it. Raises: ClientGone. Blocks: while the client does not read."""
        await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": False})


class EventStream:
    """An answer whose pieces are sent as they come: an ASGI application of one response.

    The head is sent with the first piece, so an error before it still becomes an answer of its own; an error after it
    cuts the connection, without the end that would make the stream look complete. Pieces are whole events where
    `keep_alive_s` is set, since comments go between them. Nothing limits how long a piece may take.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes, None],
        *,
        status: int = 200,
        headers: Headers = (),
        content_type: str = "text/event-stream; charset=utf-8",
        keep_alive_s: float | None = 15.0,
    ) -> None:
        """Args: keep_alive_s: seconds of silence before a comment; None for bytes that must be passed as they are."""
        self._pieces = pieces
        self.status = status
        self.headers = [(b"content-type", content_type.encode("latin-1")), (b"cache-control", b"no-store"), *headers]
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the generator and send what it yields.

        Raises: what the generator raises; ClientGone.
        Blocks: until the generator ends. Cancel: the generator is closed here; nothing more is sent.
        """
        fault: Exception | None = None
        buffer = _Buffer()
        # The nursery is round the generator's whole life, so that scopes which it keeps open across a yield nest.
        async with trio.open_nursery() as nursery:
            try:
                async with _closing(self._pieces) as pieces:
                    first = await anext(pieces, b"")
                    await send({"type": "http.response.start", "status": self.status, "headers": self.headers})
                    nursery.start_soon(self._write, buffer, send)
                    await buffer.put(first)
                    async for piece in pieces:
                        await buffer.put(piece)
            except Exception as error:  # noqa: BLE001 - raised below, once what was ready has been written
                fault = error
            buffer.close(clean=fault is None)
        if fault is not None:
            raise fault

    async def _write(self, buffer: _Buffer, send: Send) -> None:
        while True:
            data, more = await buffer.take(self._keep_alive_s)
            if data is None:
                data = KEEP_ALIVE
            elif not more and not buffer.clean:
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                return
            await send({"type": "http.response.body", "body": data, "more_body": more})
            if not more:
                return


@asynccontextmanager
async def _closing(pieces: AsyncGenerator[bytes, None]) -> AsyncIterator[AsyncGenerator[bytes, None]]:
    """Close the generator on leaving. A nursery that it keeps open across a yield wraps its GeneratorExit."""
    try:
        yield pieces
    finally:
        try:
            await pieces.aclose()
        except* GeneratorExit:
            pass


class _Buffer:
    """Pieces between the generator and the writer: bounded, and taken all at once."""

    def __init__(self) -> None:
        self.clean = False
        """Closed at the generator's own end."""
        self._data = bytearray()
        self._closed = False
        self._filled = trio.Event()
        self._taken = trio.Event()

    async def put(self, piece: bytes) -> None:
        """Add a piece. Blocks: while the buffer is full; a piece larger than the buffer goes in alone."""
        while len(self._data) >= BUFFER_BYTES:
            self._taken = trio.Event()
            await self._taken.wait()
        self._data += piece
        self._filled.set()

    def close(self, *, clean: bool) -> None:
        """No more comes. Not clean: what is there is written, and then the answer is not ended."""
        self._closed = True
        self.clean = clean
        self._filled.set()

    async def take(self, patience_s: float | None) -> tuple[bytes | None, bool]:
        """Up to one write's worth of what is there, and whether more may come; None after `patience_s` of silence."""
        if not self._data and not self._closed:
            self._filled = trio.Event()
            if patience_s is None:
                await self._filled.wait()
            else:
                with trio.move_on_after(patience_s):
                    await self._filled.wait()
                if not self._data and not self._closed:
                    return None, True
        await self._settle()
        data = bytes(self._data[:BUFFER_BYTES])
        del self._data[:BUFFER_BYTES]
        self._taken.set()
        return data, bool(self._data) or not self._closed

    async def _settle(self) -> None:
        """Let the generator add what it has ready: it may take a turn of the scheduler for each piece."""
        before = -1
        while before < len(self._data) < BUFFER_BYTES and not self._closed:
            before = len(self._data)
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()  # in two turns every task that is ready has had one
