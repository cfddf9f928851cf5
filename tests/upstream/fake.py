"""A provider that misbehaves as it is told: a real HTTP server on loopback that answers with scripted bytes."""

from __future__ import annotations

import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import trio

from pumas.providers.upstream.client import Upstream
from pumas.providers.upstream.facts import Kind
from pumas.providers.upstream.provider import UpstreamProvider

Answer = Callable[["Exchange"], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Exchange:
    """One connection: the request that came, and what goes back."""

    def __init__(self, stream: trio.SocketStream, head: bytes, body: bytes) -> None:
        self.stream, self.head, self.body = stream, head, body
        self.path = head.split(b" ", 2)[1]

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            await self.stream.send_all(piece)

    async def send_json(self, value: object, status: bytes = b"200 OK") -> None:
        body = msgspec.json.encode(value)
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % (status, len(body))
        await self.send(head + body)

    async def until_closed(self) -> None:
        """Wait until the client has gone."""
        try:
            while await self.stream.receive_some(65536):
                pass
        except trio.BrokenResourceError:
            pass


class Fake:
    """The server: `answers` by path prefix; what nothing is said about is a 404."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.answers: dict[bytes, Answer] = {b"/v1/models": models, b"/props": props}
        self.requests: list[tuple[bytes, bytes]] = []
        """(head, body) of everything but the questions about models."""
        self.open = 0
        self.idle = trio.Event()

    async def handle(self, stream: trio.SocketStream) -> None:
        self.open += 1
        self.idle = trio.Event()
        try:
            async with stream:
                data = b""
                while b"\r\n\r\n" not in data:
                    piece = await stream.receive_some(65536)
                    if not piece:
                        return
                    data += piece
                head, _, body = data.partition(b"\r\n\r\n")
                length = next((int(h[15:]) for h in head.lower().split(b"\r\n") if h.startswith(b"content-length:")), 0)
                while len(body) < length:
                    body += await stream.receive_some(65536)
                exchange = Exchange(stream, head, body)
                if not exchange.path.startswith((b"/v1/models", b"/props", b"/api/")):
                    self.requests.append((head, body))
                answer = next((a for prefix, a in self.answers.items() if exchange.path.startswith(prefix)), missing)
                await answer(exchange)
        except trio.BrokenResourceError:
            pass
        finally:
            self.open -= 1
            if not self.open:
                self.idle.set()


async def missing(exchange: Exchange) -> None:
    await exchange.send_json({"error": {"message": "no such route"}}, b"404 Not Found")


async def models(exchange: Exchange) -> None:
    architecture = {"input_modalities": ["text"], "output_modalities": ["text"]}
    await exchange.send_json({"data": [{"id": "there", "architecture": architecture, "meta": {"n_embd": 3}}]})


async def props(exchange: Exchange) -> None:
    await exchange.send_json({"default_generation_settings": {"n_ctx": 512}, "total_slots": 1})


@asynccontextmanager
async def fake() -> AsyncIterator[Fake]:
    """A running fake; leaving waits until no connection to it is open: all were released."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = Fake(listeners[0].socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.handle, listeners)
        yield server
        if server.open:
            with trio.fail_after(30):
                await server.idle.wait()
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def provider(
    server: Fake,
    kind: Kind = "llama-server",
    recorded: Sequence[str] = (),
    name: str = "there",
    key: str | None = None,
    **more: Any,
) -> AsyncIterator[UpstreamProvider]:
    """A provider of the fake's model, observed once."""
    upstream = Upstream("fake", server.url, key=key)
    made = UpstreamProvider("here", "default", kind, upstream, name=name, recorded=tuple(recorded), **more)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.watch)
        await made.settled()
        yield made
        nursery.cancel_scope.cancel()


@contextmanager
def fake_in_thread() -> Iterator[Fake]:
    """A fake for tests that run no loop of their own: it serves from a thread until the block ends."""
    ready: queue.Queue[tuple[Fake, trio.lowlevel.TrioToken, trio.Event]] = queue.Queue()

    async def serve() -> None:
        async with fake() as server:
            stop = trio.Event()
            ready.put((server, trio.lowlevel.current_trio_token(), stop))
            await stop.wait()

    thread = threading.Thread(target=trio.run, args=(serve,), name="fake")
    thread.start()
    server, token, stop = ready.get(timeout=60)
    try:
        yield server
    finally:
        token.run_sync_soon(stop.set)
        thread.join(60)


def sends(*pieces: bytes) -> Answer:
    """Send these bytes, then close."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(*pieces)

    return answer


def answers_json(value: object, status: bytes = b"200 OK") -> Answer:
    async def answer(exchange: Exchange) -> None:
        await exchange.send_json(value, status)

    return answer


def event(value: object) -> bytes:
    data = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return b"data: " + data + b"\n\n"


def said(text: str | None = None, finish: str | None = None) -> bytes:
    """One event of a chat completion."""
    delta = {} if text is None else {"content": text}
    return event({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


DONE = event(b"[DONE]")
GOOD = said("Hel") + said("lo") + said(finish="stop") + DONE
