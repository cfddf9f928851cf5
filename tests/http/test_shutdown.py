"""Shutdown is complete within its grace, whatever the clients do."""

from __future__ import annotations

import trio

from pumas.http.config import HttpConfig
from pumas.http.exchange import ClientGone
from tests.http.support import BOUND_S, Clock, Probe, open_descriptors, running, start_server


async def test_a_client_that_does_not_read_cannot_hold_it_up() -> None:
    async with running(grace_s=0.2) as server:
        client = await server.connect(receive_buffer=4096)
        await client.get("/flood")
        run = await server.probe.run("/flood")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert run.sending
        server.shutdown.set()
        await server.stopped.wait()
        assert run.cancelled or isinstance(run.error, ClientGone)
        await client.ended()


async def test_idle_connections_close_at_once() -> None:
    async with running(grace_s=10 * BOUND_S) as server:
        fresh = await server.connect()
        plain = await server.connect()
        await plain.get("/ok")
        assert await plain.answer() == (200, b"ok")
        streamed = await server.bystander()
        streamed.run.extra = "end"
        streamed.run.go.set()
        assert await streamed.client.chunk() is None
        half = await server.connect()
        await half.send(b"GET /ok HT")
        await trio.testing.wait_all_tasks_blocked(0.02)
        server.shutdown.set()
        for client in (fresh, plain, streamed.client, half):
            assert await client.rest() == b""
        await server.stopped.wait()


async def test_a_stream_is_cut_at_the_grace_without_its_last_chunk(clock: Clock) -> None:
    async with running(grace_s=20) as server:
        bystander = await server.bystander()
        server.shutdown.set()
        await clock.leap(15)
        await bystander.lives()
        await clock.leap(6)
        assert await bystander.client.rest() == b""
        await server.stopped.wait()
        assert bystander.run.cancelled


async def test_a_running_request_is_answered_and_its_connection_closed() -> None:
    async with running(grace_s=10 * BOUND_S) as server:
        client = await server.connect()
        await client.get("/wait")
        run = await server.probe.run("/wait")
        await run.begun.wait()
        server.shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        run.go.set()
        status, headers = await client.head()
        assert (status, headers["connection"]) == (200, "close")
        assert await client.rest() == b"waited"
        await server.stopped.wait()


async def test_nobody_is_accepted_any_more() -> None:
    async with running(grace_s=10 * BOUND_S) as server:
        bystander = await server.bystander()
        server.shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        try:
            await server.connect()
        except OSError:
            refused = True
        else:
            refused = False
        assert refused
        bystander.run.extra = "end"
        bystander.run.go.set()
        await server.stopped.wait()


async def test_many_busy_connections_end_together() -> None:
    async with running(grace_s=0.2) as server:
        clients = [await server.connect() for _ in range(50)]
        for client in clients:
            await client.get("/wait")
        while len(server.probe.runs) < len(clients):
            await trio.testing.wait_all_tasks_blocked(0.01)
        server.shutdown.set()
        await server.stopped.wait()
        assert all(run.cancelled for run in server.probe.runs)


async def test_cancelling_the_server_closes_everything_at_once() -> None:
    probe = Probe()
    before = open_descriptors()
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            config = HttpConfig(port=0, grace_s=10 * BOUND_S)
            server = await nursery.start(start_server, probe, config, trio.Event())
            blocked = await server.connect(receive_buffer=4096)
            await blocked.get("/flood")
            streaming = await server.bystander()
            idle = await server.connect()
            await (await probe.run("/flood")).begun.wait()
            nursery.cancel_scope.cancel()
        assert await streaming.client.rest() == b""
        for client in (blocked, idle, streaming.client):
            await client.ended()
            await client.close()
    assert all(run.over.is_set() for run in probe.runs)
    assert open_descriptors() == before
