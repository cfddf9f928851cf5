"""A client that leaves ends its request, in whatever state and style it leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from pumas.http.exchange import ClientGone
from tests.http.support import Client, Probe, Run, body, post, request, running, start

Leave = Callable[[Client], Awaitable[None]]


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.half_close])
async def test_while_the_first_byte_is_awaited(leave: Leave) -> None:
    async with running() as server:
        client = await server.connect()
        await client.get("/wait")
        run = await server.probe.run("/wait")
        await run.begun.wait()
        await leave(client)
        await run.over.wait()
        assert run.cancelled


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.half_close])
async def test_in_mid_stream(leave: Leave) -> None:
    async with running() as server:
        client = (await server.bystander()).client
        run = await server.probe.run("/sse")
        await leave(client)
        await run.over.wait()
        assert run.cancelled


@pytest.mark.parametrize("leave", [Client.close, Client.half_close])
@pytest.mark.parametrize("behind", [b"\r\n", b"G", request("/ok"), request("/ok") * 20])
async def test_while_waiting_with_bytes_behind_the_request(leave: Leave, behind: bytes) -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/wait") + behind)
        run = await server.probe.run("/wait")
        await run.begun.wait()
        await leave(client)
        await run.over.wait()
        assert run.cancelled
        assert [r.path for r in server.probe.runs] == ["/wait"]


async def test_in_mid_stream_with_a_pipelined_request_behind() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/sse") + request("/ok"))
        assert (await client.head())[0] == 200
        run = await server.probe.run("/sse")
        await client.close()
        await run.over.wait()
        assert run.cancelled


@pytest.mark.parametrize("size", [100_000, 290_000])
async def test_with_a_body_that_the_application_never_reads(size: int) -> None:
    """Also where more has come than is read ahead, so that the end lies behind unread bytes."""
    async with running() as server:
        client = await server.connect()
        await client.send(post("/wait", b"x" * size))
        run = await server.probe.run("/wait")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.half_close()
        await run.over.wait()
        assert run.cancelled


async def test_more_behind_a_request_than_is_held_ends_the_connection() -> None:
    """A client that sends on and on could leave without its end ever getting through."""
    async with running() as server:
        client = await server.connect()
        await client.get("/wait")
        run = await server.probe.run("/wait")
        await run.begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send_for_ever, client, request("/ok") * 1000)
            await client.ended()
            nursery.cancel_scope.cancel()
        await run.over.wait()
        assert run.cancelled
        assert len(server.probe.runs) == 1


async def _send_for_ever(client: Client, data: bytes) -> None:
    try:
        while True:
            await client.send(data)
    except trio.BrokenResourceError:
        pass


async def test_send_after_the_disconnect_raises() -> None:
    probe = Probe()

    async def stubborn(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await start(send, 200)
        await body(send, b"first", True)
        run.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for _ in range(3):
                    with pytest.raises(ClientGone):
                        await body(send, b"more", True)
                run.extra = "raised"

    probe.routes["/stubborn"] = stubborn
    async with running(probe) as server:
        client = await server.connect()
        await client.get("/stubborn")
        run = await probe.run("/stubborn")
        await run.begun.wait()
        await client.close()
        await run.over.wait()
        assert run.extra == "raised"


@pytest.mark.parametrize("leave", [Client.half_close, Client.reset])
async def test_a_client_that_does_not_read_leaves(leave: Leave) -> None:
    async with running() as server:
        client = await server.connect(receive_buffer=4096)
        await client.get("/flood")
        run = await server.probe.run("/flood")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert run.sending
        await leave(client)
        await run.over.wait()
        assert run.cancelled or isinstance(run.error, ClientGone)


async def test_receive_tells_the_disconnect_as_often_as_it_is_asked() -> None:
    probe = Probe()

    async def watcher(
        run: Run, scope: object, receive: Callable[[], Awaitable[dict[str, object]]], send: object
    ) -> None:
        assert (await receive())["type"] == "http.request"
        run.begun.set()
        with trio.CancelScope(shield=True):
            for _ in range(3):
                run.messages.append(await receive())

    probe.routes["/watcher"] = watcher
    async with running(probe) as server:
        client = await server.connect()
        await client.get("/watcher")
        run = await probe.run("/watcher")
        await run.begun.wait()
        await client.close()
        await run.over.wait()
        assert [m["type"] for m in run.messages] == ["http.disconnect"] * 3


async def test_what_follows_the_last_byte_is_not_cancelled() -> None:
    """Bookkeeping behind the answer goes on although the client, which has all of it, is gone."""
    probe = Probe()

    async def bookkeeper(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await start(send, 200, (b"content-length", b"2"))
        await body(send, b"ok")
        run.begun.set()
        await run.go.wait()
        run.extra = "written"

    probe.routes["/books"] = bookkeeper
    async with running(probe) as server:
        client = await server.connect()
        await client.get("/books")
        assert await client.answer() == (200, b"ok")
        run = await probe.run("/books")
        await run.begun.wait()
        await client.close()
        await trio.testing.wait_all_tasks_blocked(0.01)
        run.go.set()
        await run.over.wait()
        assert run.extra == "written"
