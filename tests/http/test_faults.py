"""An answer that was begun and cannot be finished never looks finished."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from tests.http.support import Client, Probe, Run, body, post, request, running, start


@pytest.mark.parametrize("path", ["/fault", "/return"])
async def test_chunked_ends_without_its_last_chunk(path: str) -> None:
    async with running() as server:
        bystander = await server.bystander()
        client = await server.connect()
        await client.get(path)
        assert (await client.head())[0] == 200
        assert await client.chunk() == b"some"
        assert await client.rest() == b""
        await bystander.lives()


async def test_content_length_ends_short() -> None:
    probe = Probe()

    async def short(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await start(send, 200, (b"content-length", b"10"))
        await body(send, b"some", True)
        raise ValueError("a fault after the headers")

    probe.routes["/short"] = short
    async with running(probe) as server:
        client = await server.connect()
        await client.get("/short")
        with pytest.raises(EOFError):
            await client.answer()


@pytest.mark.parametrize("path", ["/fault", "/return"])
async def test_http_1_0_ends_in_a_reset(path: str) -> None:
    """Its end is the connection's end, so only a reset says that this is not all."""
    async with running() as server:
        client = await server.connect()
        await client.get(path, version="1.0")
        with pytest.raises(trio.BrokenResourceError):
            await client.rest()


async def test_http_1_0_that_is_cut_by_the_shutdown_ends_in_a_reset() -> None:
    async with running(grace_s=0.1) as server:
        client = await server.connect()
        await client.get("/sse", version="1.0")
        await (await server.probe.run("/sse")).begun.wait()
        server.shutdown.set()
        with pytest.raises(trio.BrokenResourceError):
            await client.rest()


async def test_http_1_0_finishes_with_a_plain_end() -> None:
    async with running() as server:
        client = await server.connect()
        await client.get("/sse", version="1.0")
        run = await server.probe.run("/sse")
        await run.begun.wait()
        run.extra = "end"
        run.go.set()
        assert await client.answer() == (200, b"data: first\n\n")


async def test_http_1_0_over_a_unix_socket_is_whole_or_nothing(tmp_path: Path) -> None:
    """There is no reset there, so the answer is held back until its length is known."""
    async with running(host=None, unix_path=tmp_path / "private" / "http.sock") as server:
        client = await server.connect()
        await client.get("/fault", version="1.0")
        assert (await client.head())[0] == 500
        client = await server.connect()
        await client.get("/sse", version="1.0")
        run = await server.probe.run("/sse")
        await run.begun.wait()
        run.extra = "end"
        run.go.set()
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, "13")


async def test_a_fault_before_the_headers_is_a_500() -> None:
    async with running() as server:
        client = await server.connect()
        await client.get("/fault0")
        assert (await client.answer())[0] == 500


@pytest.mark.parametrize("how", ["upgrade", "prior knowledge"])
async def test_h2_is_never_spoken(how: str) -> None:
    async with running() as server:
        bystander = await server.bystander()
        client = await server.connect()
        if how == "upgrade":
            await client.get("/ok", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
            assert await client.answer() == (200, b"ok")  # in HTTP/1.1, as if nothing had been offered
        else:
            await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            assert (await client.answer())[0] == 505
        await bystander.lives()


async def test_a_body_that_breaks_the_framing_ends_the_request() -> None:
    async with running() as server:
        bystander = await server.bystander()
        client = await server.connect()
        await client.send(request("/echo", "Transfer-Encoding: chunked", method="POST") + b"5\r\nabc")
        run = await server.probe.run("/echo")
        await run.begun.wait()
        await client.send(b"zzzzzzzz\r\nnot a chunk")
        assert (await client.answer())[0] == 400
        await run.over.wait()
        assert run.cancelled
        await bystander.lives()


async def test_a_body_shorter_than_declared_is_a_disconnect() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(post("/echo", b"abc").replace(b"Content-Length: 3", b"Content-Length: 9"))
        run = await server.probe.run("/echo")
        await run.begun.wait()
        await Client.half_close(client)
        await run.over.wait()
        assert run.cancelled
