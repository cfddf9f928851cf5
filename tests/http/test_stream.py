"""Event streams: coalesced, kept alive, closed in their own task, never ended by a fault."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
import trio

from pumas.contract.errors import ContractError
from pumas.http.exchange import Scope
from pumas.http.guard import Guard
from pumas.http.stream import KEEP_ALIVE, Answer, EventStream
from tests.http.support import Client, Clock, Server, running


class Source:
    """A generator that the test drives, and what became of it."""

    def __init__(self, *pieces: bytes) -> None:
        self.send, self.receive = trio.open_memory_channel[Any](1000)
        for piece in pieces:
            self.send.send_nowait(piece)
        self.closed = trio.Event()
        self.task: Any = None
        self.closed_in: Any = None
        self.yielded = 0

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        self.task = trio.lowlevel.current_task()
        try:
            async with trio.open_nursery():  # as a provider's stream may hold one across its yields
                async for piece in self.receive:
                    if isinstance(piece, BaseException):
                        raise piece
                    yield piece
                    self.yielded += len(piece)
        finally:
            self.closed_in = trio.lowlevel.current_task()
            self.closed.set()

    def app(self, **options: Any) -> Any:
        async def app(scope: Scope, receive: Any, send: Any) -> None:
            await EventStream(self.pieces(), **options)(scope, receive, send)

        return app


async def opened(server: Server) -> Client:
    client = await server.connect()
    await client.get("/")
    status, headers = await client.head()
    assert (status, headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    return client


async def test_pieces_that_are_ready_together_leave_in_one_write() -> None:
    source = Source(*[b"data: x\n\n"] * 500)
    async with running(source.app()) as server:
        client = await opened(server)
        chunks = [await client.chunk() or b""]
        while sum(map(len, chunks)) < 500 * 9:
            chunks.append(await client.chunk() or b"")
        assert b"".join(chunks) == b"data: x\n\n" * 500
        assert len(chunks) < 5
        source.send.send_nowait(b"data: y\n\n")
        assert await client.chunk() == b"data: y\n\n"
        source.send.close()
        assert await client.chunk() is None
        assert source.closed_in is source.task


async def test_the_last_pieces_and_the_end_leave_together() -> None:
    source = Source(b"data: x\n\n", b"data: y\n\n")
    source.send.close()
    async with running(source.app()) as server:
        client = await server.connect()
        await client.get("/")
        assert (await client.some()).endswith(b"\r\n\r\n12\r\ndata: x\n\ndata: y\n\n\r\n0\r\n\r\n")


async def test_a_large_piece_is_written_in_bounded_ones() -> None:
    source = Source(b"x" * 200_000)
    async with running(source.app()) as server:
        client = await opened(server)
        sizes = [len(await client.chunk() or b"") for _ in range(4)]
        assert sizes == [65536, 65536, 65536, 200_000 - 3 * 65536]


async def test_silence_is_filled_with_comments_as_long_as_it_lasts(clock: Clock) -> None:
    source = Source(b"data: x\n\n")
    async with running(source.app(keep_alive_s=10)) as server:
        client = await opened(server)
        assert await client.chunk() == b"data: x\n\n"
        for _ in range(4):
            await clock.leap(11)
            assert await client.chunk() == KEEP_ALIVE
        source.send.send_nowait(b"data: y\n\n")
        assert await client.chunk() == b"data: y\n\n"


async def test_no_comments_where_bytes_are_passed_as_they_are(clock: Clock) -> None:
    source = Source(b"data: x\n")
    async with running(source.app(keep_alive_s=None)) as server:
        client = await opened(server)
        assert await client.chunk() == b"data: x\n"
        await clock.leap(30)
        source.send.send_nowait(b"\n")
        assert await client.chunk() == b"\n"


async def test_an_error_before_the_first_piece_is_an_answer_of_its_own() -> None:
    source = Source()
    source.send.send_nowait(ContractError("capability_unavailable", "the queue is full"))
    async with running(Guard(source.app())) as server:
        client = await server.connect()
        await client.get("/")
        assert (await client.answer())[0] == 503
        await source.closed.wait()


@pytest.mark.parametrize("error", [ContractError("provider_failure", "crashed"), ValueError("a bug")])
async def test_an_error_after_it_sends_what_was_ready_and_cuts(error: Exception) -> None:
    source = Source(b"data: x\n\n", b"data: y\n\n")
    source.send.send_nowait(error)
    async with running(Guard(source.app())) as server:
        client = await opened(server)
        assert await client.chunk() == b"data: x\n\ndata: y\n\n"
        assert await client.rest() == b""
        assert source.closed_in is source.task


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.half_close])
async def test_a_client_that_leaves_closes_the_generator_in_its_task(leave: Any) -> None:
    source = Source(b"data: x\n\n")
    async with running(source.app()) as server:
        client = await opened(server)
        await leave(client)
        await source.closed.wait()
        assert source.closed_in is source.task


async def test_a_client_that_reads_slowly_stops_the_generator() -> None:
    source = Source(*[b"x" * 60_000] * 1000)
    async with running(source.app()) as server:
        client = await server.connect(receive_buffer=4096)
        await client.get("/")
        await trio.testing.wait_all_tasks_blocked(0.05)
        stopped_at = source.yielded
        assert stopped_at < 32 << 20
        while source.yielded == stopped_at:
            assert await client.some()
        await client.half_close()
        await source.closed.wait()


async def test_an_empty_stream_is_an_empty_answer() -> None:
    source = Source()
    source.send.close()
    async with running(source.app()) as server:
        client = await server.connect()
        await client.get("/")
        assert await client.answer() == (200, b"")


async def test_a_whole_answer_has_its_length_and_large_ones_arrive() -> None:
    body = bytes(range(256)) * 8_000

    async def app(scope: Scope, receive: Any, send: Any) -> None:
        await Answer(body, status=201, headers=[(b"x-a", b"b")], content_type="x/y")(scope, receive, send)

    async with running(app) as server:
        client = await server.connect()
        await client.get("/")
        status, headers = await client.head()
        assert (status, headers["x-a"], headers["content-type"]) == (201, "b", "x/y")
        assert await client.exactly(len(body)) == body
