"""A client that reads slowly blocks its own request, which stays cancellable."""

from __future__ import annotations

from typing import Any

import trio

from tests.http.support import Probe, Run, body, request, running, start


async def test_a_blocked_client_blocks_send_and_nothing_more_is_accepted() -> None:
    async with running() as server:
        bystander = await server.bystander()
        client = await server.connect(receive_buffer=4096)
        await client.get("/flood")
        run = await server.probe.run("/flood")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        accepted = run.sent
        assert run.sending
        assert accepted < 32 << 20
        await bystander.lives()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert run.sent == accepted
        while run.sent == accepted:
            assert await client.some()  # once it reads, the answer goes on


async def test_an_own_cancel_scope_ends_a_blocked_send_and_the_connection_is_reset() -> None:
    probe = Probe()

    async def impatient(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await start(send)
        run.begun.set()
        with trio.CancelScope() as run.extra:
            while True:
                await body(send, b"x" * 65536, True)
        await body(send, b"y")

    probe.routes["/impatient"] = impatient
    async with running(probe) as server:
        client = await server.connect(receive_buffer=4096)
        await client.send(request("/impatient"))
        run = await probe.run("/impatient")
        await run.begun.wait()
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert run.sending
        run.extra.cancel()
        await run.over.wait()
        assert await client.ended(), "a torn answer must not look like a finished one"
