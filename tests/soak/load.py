"""Clients with good and bad manners, over raw sockets."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import trio

from tests.http.support import Client

PATIENCE_S = 60.0
"""Of one request. It waits in the queue for 10 s at most, and a hung worker is killed after 30 (see CONFIG)."""


class Hung(Exception):
    """No answer, for longer than anything here may take."""


class Load:
    """Clients that ask again and again until `stop` is set. `seen` counts how requests ended."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._rng = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.hung: list[str] = []
        self.stop = trio.Event()

    async def run(self, clients: int) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(clients):
                nursery.start_soon(self._client)

    async def _client(self) -> None:
        kinds = [self._whole] * 5 + [self._stream] * 3 + [self._leave, self._slow, self._bad]
        while not self.stop.is_set():
            try:
                self.seen[await self._rng.choice(kinds)()] += 1
            except Hung as hung:
                self.seen["hung"] += 1
                self.hung.append(str(hung))
            except (OSError, EOFError, trio.BrokenResourceError, ValueError):
                self.seen["cut"] += 1

    def _request(self, *, stream: bool = False) -> bytes:
        rng = self._rng
        text = " ".join(rng.choice(("hello", "world", "a", "tree", "42", "no")) for _ in range(rng.randint(1, 40)))
        n = rng.randint(1, 24)
        bodies: list[tuple[str, dict[str, Any]]] = [
            ("/v1/embeddings", {"model": "minilm", "input": [text] * rng.randint(1, 8)}),
            ("/v1/rerank", {"model": "ranker", "query": text[:40], "documents": ["a", text[:60], "tree"]}),
            ("/v1/completions", {"model": "tiny", "prompt": text[:60], "max_tokens": n, "stream": stream}),
            (
                "/v1/chat/completions",
                {
                    "model": "smol",
                    "messages": [{"role": "user", "content": text}],
                    "max_tokens": n,
                    "stream": stream,
                },
            ),
        ]
        path, body = rng.choice(bodies[2:] if stream else bodies)
        data = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\n\r\n"
        )
        return head.encode() + data

    async def _answer(self, client: Client, request: bytes) -> tuple[int, bytes]:
        """The whole answer. Raises: Hung."""
        began = trio.current_time()
        with trio.move_on_after(PATIENCE_S):
            await client.send(request)
            status, body = await client.answer()
            return status, body
        raise Hung(f"from {began:.0f} on: {request!r}, read {client.buffer!r}; {await self._health()}")

    async def _health(self) -> bytes:
        client = await self._open()
        try:
            await client.get("/health")
            return (await client.answer())[1]
        finally:
            await client.close()

    async def _open(self) -> Client:
        return Client(await trio.open_tcp_stream("127.0.0.1", self._port))

    async def _whole(self) -> str:
        client = await self._open()
        try:
            for _ in range(self._rng.randint(1, 4)):
                status, _ = await self._answer(client, self._request())
            return str(status)
        finally:
            await client.close()

    async def _stream(self) -> str:
        client = await self._open()
        try:
            status, body = await self._answer(client, self._request(stream=True))
            return "stream" if status != 200 or body.rstrip().endswith(b"[DONE]") else "stream without its end"
        finally:
            await client.close()

    async def _leave(self) -> str:
        """Leaves somewhere in between, in one of three ways."""
        client = await self._open()
        try:
            await client.send(self._request(stream=self._rng.random() < 0.7))
            with trio.move_on_after(self._rng.random() * 0.5):
                await client.some()
            if self._rng.random() < 0.5:
                await client.reset()
            return "left"
        finally:
            await client.close()

    async def _slow(self) -> str:
        client = await self._open()
        try:
            await client.send(self._request(stream=True))
            with trio.move_on_after(PATIENCE_S):
                for _ in range(20):
                    if not await client.stream.receive_some(64):
                        break
                    await trio.sleep(0.1)
                return "slow"
            raise Hung(f"a slow reader got nothing; {await self._health()}")
        finally:
            await client.close()

    async def _bad(self) -> str:
        data = bytearray(self._request())
        for _ in range(self._rng.randint(1, 6)):
            data[self._rng.randrange(len(data))] = self._rng.randrange(256)
        client = await self._open()
        try:
            await client.send(bytes(data))
            with trio.move_on_after(1):
                await client.answer()
            return "bad"
        finally:
            await client.close()
