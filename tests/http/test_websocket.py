"""WebSocket, as it will be once a route uses one; until then it is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from tests.http.support import Client, Probe, Run, Server, request, running

UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


def frame(opcode: int, payload: bytes = b"", *, last: bool = True, masked: bool = True) -> bytes:
    """A client's frame. The mask is zero: it changes nothing."""
    head = bytes([opcode | (0x80 if last else 0)])
    flag = 0x80 if masked else 0
    if len(payload) < 126:
        head += bytes([flag | len(payload)])
    elif len(payload) < 65536:
        head += bytes([flag | 126]) + len(payload).to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + len(payload).to_bytes(8, "big")
    return head + (b"\0\0\0\0" if masked else b"") + payload


async def read_frame(client: Client) -> tuple[int, bytes]:
    first, size = await client.exactly(2)
    if size == 126:
        size = int.from_bytes(await client.exactly(2), "big")
    elif size == 127:
        size = int.from_bytes(await client.exactly(8), "big")
    return first & 0xF, await client.exactly(size)


async def open_websocket(server: Server, path: str = "/ws", *headers: str) -> Client:
    client = await server.connect()
    await client.get(path, *UPGRADE, *headers)
    status, answer = await client.head()
    assert status == 101
    assert "sec-websocket-extensions" not in answer
    return client


async def echo(run: Run, scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    run.begun.set()
    while True:
        message = await receive()
        run.messages.append(message)
        if message["type"] == "websocket.disconnect":
            return
        await send({"type": "websocket.send", "text": message.get("text"), "bytes": message.get("bytes")})


async def silent(run: Run, scope: Any, receive: Any, send: Any) -> None:
    """Accepts, and then neither reads nor watches."""
    await receive()
    await send({"type": "websocket.accept"})
    run.begun.set()
    await trio.sleep_forever()


async def late(run: Run, scope: Any, receive: Any, send: Any) -> None:
    await receive()
    run.begun.set()
    await run.go.wait()
    await send({"type": "websocket.accept"})
    run.messages.append(await receive())
    await send({"type": "websocket.close", "code": 4001})


async def denied(run: Run, scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.close"})


async def pushing(run: Run, scope: Any, receive: Any, send: Any) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    run.begun.set()
    while True:
        await send({"type": "websocket.send", "bytes": b"x" * 65536})


def application() -> Probe:
    probe = Probe()
    probe.routes |= {"/ws": echo, "/silent": silent, "/late": late, "/denied": denied, "/pushing": pushing}
    return probe


async def test_text_binary_and_ping_come_back() -> None:
    async with running(application(), websocket=True) as server:
        client = await open_websocket(server)
        await client.send(frame(TEXT, "caf\xe9".encode()))
        assert await read_frame(client) == (TEXT, "caf\xe9".encode())
        await client.send(frame(BINARY, b"\x00" * 70_000))
        assert await read_frame(client) == (BINARY, b"\x00" * 70_000)
        await client.send(frame(PING, b"there?"))
        assert await read_frame(client) == (PONG, b"there?")
        await client.send(frame(TEXT, b"in ", last=False) + frame(CONTINUATION, b"parts"))
        assert await read_frame(client) == (TEXT, b"in parts")


async def test_the_clients_close_code_reaches_the_application() -> None:
    async with running(application(), websocket=True) as server:
        client = await open_websocket(server)
        await client.send(frame(CLOSE, (4242).to_bytes(2, "big")))
        assert await read_frame(client) == (CLOSE, (4242).to_bytes(2, "big"))
        assert await client.rest() == b""
        run = await server.probe.run("/ws")
        await run.over.wait()
        assert run.messages == [{"type": "websocket.disconnect", "code": 4242}]


async def test_a_message_over_the_bound_is_1009() -> None:
    async with running(application(), websocket=True, websocket_message_bytes=1000) as server:
        client = await open_websocket(server)
        await client.send(frame(BINARY, b"x" * 1001))
        opcode, payload = await read_frame(client)
        assert (opcode, payload[:2]) == (CLOSE, (1009).to_bytes(2, "big"))
        run = await server.probe.run("/ws")
        await run.over.wait()
        assert run.messages == [{"type": "websocket.disconnect", "code": 1009}]


async def test_permessage_deflate_is_not_negotiated() -> None:
    async with running(application(), websocket=True) as server:
        client = await open_websocket(server, "/ws", "Sec-WebSocket-Extensions: permessage-deflate")
        await client.send(bytes([0xC0 | TEXT]) + frame(TEXT, b"compressed")[1:])
        opcode, payload = await read_frame(client)
        assert (opcode, payload[:2]) == (CLOSE, (1002).to_bytes(2, "big"))


@pytest.mark.parametrize("path", ["/ws", "/silent"])
@pytest.mark.parametrize("leave", [Client.reset, Client.close])
async def test_a_client_that_leaves_ends_the_endpoint(path: str, leave: Callable[[Client], Awaitable[None]]) -> None:
    """One that watches is told; one that does not is cancelled."""
    grace = 0.1 if path == "/silent" else 30
    async with running(application(), websocket=True, websocket_close_s=grace) as server:
        client = await open_websocket(server, path)
        run = await server.probe.run(path)
        await run.begun.wait()
        await leave(client)
        await run.over.wait()
        if path == "/ws":
            assert run.messages == [{"type": "websocket.disconnect", "code": 1006}]
        else:
            assert run.cancelled


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(TEXT, b"\xff\xfe"), 1007),
        (frame(TEXT, b"x", masked=False), 1002),
        (frame(CONTINUATION, b"x"), 1002),
        (frame(0x3, b"x"), 1002),
        (frame(PING, b"x" * 126), 1002),
        (frame(CLOSE, (999).to_bytes(2, "big")), 1002),
    ],
)
async def test_a_protocol_error_is_answered_with_its_code(data: bytes, code: int) -> None:
    async with running(application(), websocket=True) as server:
        client = await open_websocket(server)
        await client.send(data)
        opcode, payload = await read_frame(client)
        assert (opcode, payload[:2]) == (CLOSE, code.to_bytes(2, "big"))
        assert await client.rest() == b""
        run = await server.probe.run("/ws")
        await run.over.wait()
        assert run.messages[-1] == {"type": "websocket.disconnect", "code": code}


async def test_a_client_that_does_not_read_blocks_send_and_can_leave() -> None:
    async with running(application(), websocket=True, websocket_close_s=0.1) as server:
        bystander = await server.bystander()
        client = await open_websocket(server, "/pushing")
        run = await server.probe.run("/pushing")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert run.sending
        await bystander.lives()
        await client.reset()
        await run.over.wait()


async def test_an_endpoint_that_does_not_read_blocks_its_client() -> None:
    async with running(application(), websocket=True, websocket_close_s=0.1) as server:
        bystander = await server.bystander()
        client = await open_websocket(server, "/silent")
        with trio.move_on_after(0.2) as blocked:
            for _ in range(1000):
                await client.send(frame(BINARY, b"x" * 65536))
        assert blocked.cancelled_caught
        await bystander.lives()


@pytest.mark.parametrize("what", [frame(TEXT, b""), frame(PING, b"x" * 100)])
async def test_a_flood_and_a_reset_do_not_freeze_the_loop(what: bytes) -> None:
    async with running(application(), websocket=True, websocket_close_s=0.1) as server:
        bystander = await server.bystander()
        client = await open_websocket(server, "/ws")
        with trio.move_on_after(0.2):
            while True:
                await client.send(what * 500)
        await bystander.lives()
        await client.reset()
        run = await server.probe.run("/ws")
        await run.over.wait()
        await bystander.lives()


async def test_bytes_before_the_acceptance_wait_for_it() -> None:
    async with running(application(), websocket=True) as server:
        client = await server.connect()
        await client.send(request("/late", *UPGRADE) + frame(TEXT, b"early"))
        run = await server.probe.run("/late")
        await run.begun.wait()
        run.go.set()
        assert (await client.head())[0] == 101
        assert await read_frame(client) == (CLOSE, (4001).to_bytes(2, "big"))
        assert run.messages == [{"type": "websocket.receive", "text": "early", "bytes": None}]


async def test_a_denied_client_that_sends_on_harms_nobody() -> None:
    async with running(application(), websocket=True) as server:
        bystander = await server.bystander()
        client = await server.connect()
        await client.send(request("/denied", *UPGRADE))
        assert (await client.answer())[0] == 403
        await client.send(frame(TEXT, b"x") * 100)
        await client.half_close()
        assert await client.rest() == b""
        await bystander.lives()


@pytest.mark.parametrize("missing", ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="])
async def test_half_a_handshake_is_400(missing: str) -> None:
    async with running(application(), websocket=True) as server:
        client = await server.connect()
        await client.get("/ws", *(line for line in UPGRADE if line != missing))
        assert (await client.answer())[0] == 400
        assert await client.rest() == b""
        assert not server.probe.runs


async def test_an_endpoint_that_fails_closes_with_1011() -> None:
    probe = application()

    async def failing(run: Run, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        raise ValueError("a fault in the endpoint")

    probe.routes["/failing"] = failing
    async with running(probe, websocket=True) as server:
        client = await open_websocket(server, "/failing")
        assert await read_frame(client) == (CLOSE, (1011).to_bytes(2, "big"))


async def test_refused_where_no_route_uses_one() -> None:
    async with running(application()) as server:
        client = await server.connect()
        await client.get("/ws", *UPGRADE)
        status, text = await client.answer()
        assert (status, text) == (400, b"WebSocket is not offered here\n")


async def test_shutdown_ends_open_ones() -> None:
    async with running(application(), websocket=True, grace_s=0.1) as server:
        client = await open_websocket(server, "/silent")
        server.shutdown.set()
        await server.stopped.wait()
        await client.ended()
