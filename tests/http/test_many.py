"""Many clients, most of them bad: the good ones are served."""

from __future__ import annotations

import random

import trio

from tests.http.support import Client, Server, open_descriptors, post, request, running

SLOW = 500
NORMAL = 20


async def test_slow_and_silent_connections_do_not_keep_others_from_being_served() -> None:
    """500 that are silent, drip headers, hold half a body or do not read, beside 20 that behave."""
    async with running() as server:
        for i in range(SLOW):
            await _misbehave(server, i)
        assert len(server.clients) == SLOW
        async with trio.open_nursery() as nursery:
            for _ in range(NORMAL):
                nursery.start_soon(_behave, server)


async def _misbehave(server: Server, i: int) -> None:
    client = await server.connect(receive_buffer=4096)
    if i % 5 == 1:
        await client.send(b"GET /ok HTTP/1.1\r\nHo")
    elif i % 5 == 2:
        await client.send(request("/echo", "Content-Length: 100000", method="POST") + b"x" * 50_000)
    elif i % 5 == 3:
        await client.send(request("/wait"))
    elif i % 50 == 4:
        await client.send(request("/flood"))


async def _behave(server: Server) -> None:
    client = await server.connect()
    for i in range(20):
        await client.send(request(f"/ok?{i}"))
        assert await client.answer() == (200, b"%d" % i)
        await client.send(post("/echo", b"y" * 1000))
        assert await client.answer() == (200, b"y" * 1000)


SEEDS = (
    request("/ok"),
    request("/wait"),
    request("/sse"),
    request("/fault"),
    request("/flood"),
    post("/echo", b"abc" * 100),
    post("/early", b"abc" * 100),
    request("/echo", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n0\r\n\r\n",
    request("/echo", "Content-Length: 3", "Expect: 100-continue", method="POST"),
    request("/ok", version="1.0"),
    request("/fault", version="1.0"),
    request("/ok", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: x")
    + b"\x81\x80\0\0\0\0",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
)
FRAGMENTS = (b"\r\n", b"\0", b"\xff", b" ", b":", b"HTTP/2.0", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"%ff")


def mutated(rng: random.Random) -> bytes:
    """A few requests, damaged in a few places."""
    data = bytearray(b"".join(rng.choice(SEEDS) for _ in range(rng.randint(1, 3))))
    for _ in range(rng.randint(0, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[at] = rng.randrange(256)
            case 1:
                del data[at : at + rng.randint(1, 20)]
            case 2:
                data[at:at] = rng.choice(FRAGMENTS)
            case 3:
                data[at:at] = bytes(data[at : at + rng.randint(1, 200)])
        data = data or bytearray(b"x")
    return bytes(data)


async def fuzz(seed: int, connections: int, websocket: bool) -> None:
    """Damaged connections beside a stream that must go on; afterwards everything is as it was."""
    rng = random.Random(seed)
    async with running(websocket=websocket, linger_s=0.1, websocket_close_s=0.1) as server:
        bystander = await server.bystander()
        before = open_descriptors()
        for start in range(0, connections, 50):
            async with trio.open_nursery() as nursery:
                for _ in range(min(50, connections - start)):
                    nursery.start_soon(_attack, server, random.Random(rng.random()))
            await bystander.lives()
        while open_descriptors() > before:  # what was cut is being cleared away
            await trio.testing.wait_all_tasks_blocked(0.01)
        await bystander.lives()


async def _attack(server: Server, rng: random.Random) -> None:
    client = await server.connect()
    server.clients.remove(client)
    try:
        data = mutated(rng)
        cut = rng.randrange(len(data) + 1)
        await client.send(data[:cut])
        if rng.random() < 0.3:
            await trio.lowlevel.checkpoint()
        await client.send(data[cut:])
        if rng.random() < 0.5:
            with trio.move_on_after(0.05):
                await client.some()
        leave = rng.choice((Client.close, Client.reset, Client.half_close))
        await leave(client)
    except (trio.BrokenResourceError, OSError):
        pass
    finally:
        await client.close()


async def test_damaged_connections_harm_nobody() -> None:
    await fuzz(seed=1, connections=600, websocket=False)


async def test_damaged_connections_harm_nobody_where_websockets_are_offered() -> None:
    await fuzz(seed=2, connections=600, websocket=True)
