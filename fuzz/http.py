"""HTTP connections, as bytes on a socket of a running server."""

from __future__ import annotations

import random
import re

import trio

from tests.http.support import BOUND_S, Client, running
from tests.http.test_many import mutated

INVARIANT = (
    "Whatever a client sends, it gets well-formed answers or none and the connection ends; others are served all "
    "the while, and nothing is left of it: no task, no descriptor."
)
_ANSWER = re.compile(rb"HTTP/1\.1 [1-5][0-9][0-9] ")


def check(data: bytes) -> None:
    """The first byte says how the client leaves and where it pauses, the rest is what it sends."""
    trio.run(_check, data[0] if data else 0, data[1:])


async def _check(chosen: int, data: bytes) -> None:
    async with running(websocket=bool(chosen & 1), linger_s=0.05, websocket_close_s=0.05, grace_s=0.05) as server:
        bystander = await server.bystander()
        await _attack(await server.connect(), random.Random(chosen), data)
        await bystander.lives()


async def _attack(client: Client, rng: random.Random, data: bytes) -> None:
    cut = rng.randrange(len(data) + 1)
    leave = rng.choice((Client.close, Client.reset, Client.half_close, Client.half_close))
    with trio.fail_after(BOUND_S):
        try:
            await client.send(data[:cut])
            await trio.lowlevel.checkpoint()
            await client.send(data[cut:])
            await leave(client)
            if leave is Client.half_close:
                await _answers(client)
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            pass  # it was shown the door before it had said everything


async def _answers(client: Client) -> None:
    """What came back: an answer's head first, or nothing."""
    first = await client.some()
    assert not first or _ANSWER.match(first), first[:100]


def generate(rng: random.Random) -> bytes:
    return bytes([rng.randrange(256)]) + mutated(rng)
