"""HTTP/1.1 as it should be, and as it is abused; whatever one client does, another's stream goes on."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.http.support import Clock, Probe, Run, body, post, request, running, start

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def test_the_connection_is_used_again_after_a_stream_and_its_idle_deadline_holds(clock: Clock) -> None:
    async with running(idle_s=20) as server:
        bystander = await server.bystander()
        bystander.run.extra = "end"
        bystander.run.go.set()
        assert await bystander.client.chunk() is None
        await clock.leap(15)
        await bystander.client.get("/ok")
        assert await bystander.client.answer() == (200, b"ok")
        await clock.leap(21)
        assert await bystander.client.rest() == b""  # closed when nothing came


async def test_slow_headers_are_cut(clock: Clock) -> None:
    """A header line now and then puts nothing off."""
    async with running(header_s=20) as server:
        bystander = await server.bystander()
        client = await server.connect()
        await client.send(b"GET /ok HTTP/1.1\r\nHost: localhost\r\n")
        for _ in range(3):
            await clock.leap(6)
            await client.send(b"X: y\r\n")
        await clock.leap(6)
        await client.ended()
        assert [run.path for run in server.probe.runs] == ["/sse"]
        await bystander.lives()


async def test_a_silent_connection_is_cut(clock: Clock) -> None:
    async with running(idle_s=20) as server:
        client = await server.connect()
        await clock.leap(21)
        assert await client.rest() == b""


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(b"".join(request(f"/ok?{i}") if i % 2 else post("/echo", b"%d" % i) for i in range(50)))
        for i in range(50):
            assert await client.answer() == (200, b"%d" % i)


async def test_one_request_at_a_time() -> None:
    """The next one begins when the task of the one before is over, not when its answer is out."""
    probe = Probe()

    async def tail(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await start(send, 200, (b"content-length", b"2"))
        await body(send, b"ok")
        run.begun.set()
        await run.go.wait()

    probe.routes["/tail"] = tail
    async with running(probe) as server:
        client = await server.connect()
        await client.send(request("/tail") + request("/ok"))
        assert await client.answer() == (200, b"ok")
        run = await probe.run("/tail")
        await run.begun.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.send, post("/echo", b"x" * 1_000_000))  # more than is held: it waits
            await trio.testing.wait_all_tasks_blocked(0.02)
            assert len(probe.runs) == 1
            run.go.set()
            assert await client.answer() == (200, b"ok")
            assert await client.answer() == (200, b"x" * 1_000_000)


@pytest.mark.parametrize("split", [False, True])
async def test_headers_over_the_bound_are_431(split: bool) -> None:
    """Also where they arrive in one packet."""
    async with running() as server:
        client = await server.connect()
        data = request("/ok", *(f"X-{i}: {'y' * 1000}" for i in range(60)))
        if split:
            await client.send(data[:30_000])
            await trio.testing.wait_all_tasks_blocked(0.01)
            await client.send(data[30_000:])
        else:
            await client.send(data)
        assert (await client.answer())[0] == 431
        assert not server.probe.runs


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /ok HTTP/1.1\r\n\r\n", 400),
        (b"GET /ok HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /ok HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /ok HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        (b"GET /ok HTTP/1.2\r\nHost: a\r\n\r\n", 505),
        (request("/echo", "Content-Length: 3", "Transfer-Encoding: chunked", method="POST"), 400),
        (request("/echo", "Content-Length: 3", "Content-Length: 4", method="POST"), 400),
        (request("/echo", "Content-Length: -1", method="POST"), 400),
        (request("/echo", "Transfer-Encoding: gzip, chunked", method="POST"), 501),
        (request("/echo", "Transfer-Encoding: chunked", method="POST", version="1.0"), 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"CONNECT /ok HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (request("http://evil.example/ok"), 400),
        (request("ok"), 400),
        (request("*", method="OPTIONS"), 400),
        (request("/%ff"), 400),
        (request("/%00"), 400),
        (request("/a%0d%0ab"), 400),
        (request("/caf\xe9"), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET  /ok HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (request("/ok", "Bad Header: x"), 400),
        (request("/ok", "X: a\x00b"), 400),
        (request("/ok", *UPGRADE), 400),
    ],
)
async def test_refused_before_any_application_sees_it(data: bytes, status: int) -> None:
    async with running() as server:
        bystander = await server.bystander()
        client = await server.connect()
        await client.send(data + b"\r\n\r\n")
        assert (await client.answer())[0] == status
        assert await client.rest() == b""
        assert [run.path for run in server.probe.runs] == ["/sse"]
        await bystander.lives()


async def test_a_refused_head_request_has_no_body() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(request("/%ff", method="HEAD"))
        assert (await client.head())[0] == 400
        assert await client.rest() == b""


async def test_empty_lines_before_a_request_are_ignored() -> None:
    async with running() as server:
        client = await server.connect()
        await client.send(b"\r\n" + request("/ok") + b"\r\n\r\n" + request("/ok?1"))
        assert await client.answer() == (200, b"ok")
        assert await client.answer() == (200, b"1")
        await client.send(b"\r\n")
        await client.send(request("/ok?2"))
        assert await client.answer() == (200, b"2")


async def test_utf8_paths_are_decoded() -> None:
    async with running() as server:
        seen = []

        async def app(run: Run, scope: Any, receive: Any, send: Any) -> None:
            seen.append((scope["path"], scope["raw_path"], scope["asgi"]["spec_version"]))
            await start(send, 200, (b"content-length", b"0"))
            await body(send, b"")

        server.probe.routes["/caf\xe9"] = app
        client = await server.connect()
        await client.get("/caf%C3%A9?x=%ff")
        assert await client.answer() == (200, b"")
        assert seen == [("/caf\xe9", b"/caf%C3%A9", "2.4")]


async def test_head_and_connection_close() -> None:
    async with running() as server:
        client = await server.connect()
        await client.get("/ok", method="HEAD")
        status, headers = await client.head()
        assert (status, headers["content-length"]) == (200, "2")
        await client.get("/ok", "Connection: close")
        assert await client.answer() == (200, b"ok")
        assert await client.rest() == b""


async def test_a_connection_serves_a_bounded_number_of_requests() -> None:
    async with running(requests_per_connection=3) as server:
        client = await server.connect()
        answered = 0
        while True:
            await client.get("/ok")
            _, headers = await client.head()
            assert await client.exactly(2) == b"ok"
            answered += 1
            if headers.get("connection") == "close":
                break
        assert await client.rest() == b""
        assert answered == 3


async def test_a_small_answer_is_one_write() -> None:
    """Head, body and end leave together."""
    async with running() as server:
        client = await server.connect()
        await client.get("/ok")
        first = await client.some()
        assert first.endswith(b"\r\n\r\nok")


H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def h2_headers(stream: int, block: bytes, flags: int = 0x4) -> bytes:
    return len(block).to_bytes(3, "big") + b"\x01" + bytes([flags]) + stream.to_bytes(4, "big") + block


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request("/ok", *UPGRADE) + b"\x00", id="websocket bytes before the acceptance"),
        pytest.param(request("/ok", *UPGRADE, "Sec-WebSocket-Extensions: \xff\xfe"), id="non-ascii extension"),
        pytest.param(request("/ok", *UPGRADE, "Sec-WebSocket-Protocol: \xff"), id="non-ascii subprotocol"),
        pytest.param(
            request("/ok", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: !!!!"),
            id="h2c upgrade with bad settings",
        ),
        pytest.param(H2_PREFACE + SETTINGS + h2_headers(1, b"\x82\x84\x04\x03/\xff\xfe"), id="h2 non-ascii path"),
        pytest.param(
            H2_PREFACE + SETTINGS + h2_headers(1, b"\x83\x84\x86") + b"\x00\x00\x03\x00\x01\x00\x00\x00\x01abc",
            id="h2 data after an early answer",
        ),
        pytest.param(H2_PREFACE + SETTINGS + h2_headers(1, b"\x02\x07CONNECT"), id="h2 connect"),
        pytest.param(
            H2_PREFACE
            + SETTINGS
            + b"".join(b"\x00\x00\x05\x02\x00" + (2 * i + 1).to_bytes(4, "big") + b"\0\0\0\0\1" for i in range(2000)),
            id="h2 priority flood",
        ),
    ],
)
@pytest.mark.parametrize("websocket", [False, True])
async def test_a_bystander_survives(data: bytes, websocket: bool) -> None:
    """Inputs each of which ends a stock hypercorn server, or freezes it."""
    async with running(websocket=websocket) as server:
        bystander = await server.bystander()
        for _ in range(8):
            client = await server.connect()
            await client.send(data)
            await client.half_close()
            await client.ended()
        await bystander.lives()
        fresh = await server.connect()
        await fresh.get("/ok")
        assert await fresh.answer() == (200, b"ok")
