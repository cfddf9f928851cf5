"""What the HTTP side costs: `python -m tests.bench.http`.

Ratios within one run, on processor seconds of the server's process, which other load on the machine disturbs little:
our layers against the bare serve loop, per request and per stream event; stock hypercorn beside them for scale. And
the median latency of 20 normal clients with 500 slow connections against without; and embedding answers as JSON
against base64.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import numpy as np
import trio
from starlette.routing import Route, Router

from pumas.http.body import read_body
from pumas.http.config import HttpConfig
from pumas.http.exchange import AsgiApp, Receive, Scope, Send
from pumas.http.guard import Guard, Policy
from pumas.http.serve import serve
from pumas.http.stream import Answer, EventStream
from pumas.openai.embeddings import embeddings_answer, parse_embeddings
from pumas.operations import Embeddings

BODY = msgspec.json.encode({"model": "m", "input": {"kind": "text", "text": "hello " * 20}, "stream": False})
REPLY = msgspec.json.encode({"result": {"kind": "text", "text": "hello"}, "usage": {"prompt_tokens": 20}})
EVENT = b'event: delta\ndata: {"kind":"delta","request_id":"example:1","text":" token"}\n\n'
FORMATS = ("base64", "float")
EVENTS = {"/burst": 4000, "/paced": 400}
ROUTES = 23


async def read_whole(receive: Receive) -> bytes:
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    return body


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """The least that an application can do."""
    if scope["path"] in EVENTS:
        await _events_by_hand(send, scope["path"])
    else:
        msgspec.json.decode(await read_whole(receive))
        head = [(b"content-type", b"application/json"), (b"content-length", str(len(REPLY)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": REPLY})


async def _events_by_hand(send: Send, path: str) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(EVENTS[path]):
        if path == "/paced":
            await trio.sleep(0.001)
        await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


async def _events(path: str) -> AsyncGenerator[bytes, None]:
    for _ in range(EVENTS[path]):
        if path == "/paced":
            await trio.sleep(0.001)
        yield EVENT


def layered() -> AsgiApp:
    """Guard with a key, router with as many routes as the gateway has, bounded body, answer helpers."""

    class Endpoint:
        def __init__(self, answer: Any) -> None:
            self._answer = answer

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            await self._answer(scope, receive, send)

    async def operation(scope: Scope, receive: Receive, send: Send) -> None:
        msgspec.json.decode(await read_body(receive))
        await Answer(REPLY)(scope, receive, send)

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await EventStream(_events(scope["path"]))(scope, receive, send)

    routes = [Route(f"/route/{i}", Endpoint(operation), methods=["POST"]) for i in range(ROUTES - 3)]
    routes += [Route(path, Endpoint(stream), methods=["GET"]) for path in ("/burst", "/paced")]
    routes.append(Route("/operation", Endpoint(operation), methods=["POST"]))
    return Guard(Router(routes), Policy(api_keys=(b"secret",)))


async def run_server(kind: str) -> None:
    """Serve until the parent closes our stdin; print the port, then take commands: a line asks for our CPU seconds."""
    async with trio.open_nursery() as nursery:
        if kind == "stock":
            import hypercorn.trio
            from hypercorn.config import Config

            config = Config()
            config.bind = ["127.0.0.1:0"]
            config.errorlog = None
            binds: Any = await nursery.start(partial(hypercorn.trio.serve, bare, config, mode="asgi"))  # type: ignore[arg-type]
            port = int(binds[0].rsplit(":", 1)[1])
        else:
            app: AsgiApp = bare if kind == "bare" else layered()
            settings = HttpConfig(port=0)
            listening: Any = await nursery.start(partial(serve, app, settings, shutdown=trio.Event()))
            port = listening.port
        print(port, flush=True)
        stdin = trio.lowlevel.FdStream(os.dup(0))
        while await stdin.receive_some(1):
            used = resource.getrusage(resource.RUSAGE_SELF)
            print(used.ru_utime + used.ru_stime, flush=True)
        nursery.cancel_scope.cancel()


class Target:
    """A server process and how to ask it."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.http", "--serve", kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.port = int(self._line())

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def cpu(self) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(b"?")
        self._process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def post(path: str) -> bytes:
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Authorization: Bearer secret",
        "Content-Type: application/json",
    ]
    return ("\r\n".join([*lines, f"Content-Length: {len(BODY)}"]) + "\r\n\r\n").encode() + BODY


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\r\n".encode()


@asynccontextmanager
async def connected(target: Target) -> AsyncIterator[trio.SocketStream]:
    async with await trio.open_tcp_stream("127.0.0.1", target.port) as stream:
        yield stream


async def ask(stream: trio.SocketStream, data: bytes, end: bytes) -> float:
    """Seconds until an answer that ends in `end`."""
    began = time.perf_counter()
    await stream.send_all(data)
    tail = b""
    while not tail.endswith(end):
        piece = await stream.receive_some(1 << 20)
        if not piece:
            raise EOFError(tail[-200:])
        tail = (tail + piece)[-200:]
    return time.perf_counter() - began


async def requests(target: Target, clients: int, each: int) -> list[float]:
    """Latencies of `clients` connections that ask one after the other."""
    taken: list[float] = []

    async def client() -> None:
        async with connected(target) as stream:
            for _ in range(each):
                taken.append(await ask(stream, post("/operation"), REPLY))

    async with trio.open_nursery() as nursery:
        for _ in range(clients):
            nursery.start_soon(client)
    return taken


async def stream_once(target: Target, path: str) -> None:
    async with connected(target) as stream:
        await ask(stream, get(path), b"0\r\n\r\n")


async def per_request(target: Target) -> float:
    before = target.cpu()
    taken = await requests(target, clients=8, each=100)
    return (target.cpu() - before) / len(taken)


async def per_event(target: Target, path: str) -> float:
    before = target.cpu()
    await stream_once(target, path)
    return (target.cpu() - before) / EVENTS[path]


async def costs(targets: list[Target], rounds: int) -> None:
    for title, measure in (
        ("request (POST, JSON in and out)", per_request),
        ("stream event, in bursts", partial(per_event, path="/burst")),
        ("stream event, one at a time", partial(per_event, path="/paced")),
    ):
        found: dict[str, list[float]] = {target.kind: [] for target in targets}
        for number in range(rounds + 1):
            for target in targets:
                seconds = await measure(target)
                if number:
                    found[target.kind].append(seconds)
        base = found["bare"]
        print(f"CPU per {title}: bare {statistics.median(base) * 1e6:.0f} us")
        for kind, values in found.items():
            share = statistics.median(a / b for a, b in zip(values, base, strict=True))
            print(f"  {kind:8} x{share:.2f}")


@asynccontextmanager
async def slow_connections(target: Target, count: int) -> AsyncIterator[None]:
    """Silent ones, half a request line, half a body, and streams that are not read."""
    held = []
    for i in range(count):
        stream = await trio.open_tcp_stream("127.0.0.1", target.port)
        held.append(stream)
        starts = (b"", b"POST /oper", post("/operation")[:-10], get("/burst") if i % 10 == 3 else b"GET")
        if starts[i % 4]:
            await stream.send_all(starts[i % 4])
    try:
        yield
    finally:
        for stream in held:
            await stream.aclose()


async def crowd(target: Target, rounds: int, slow: int = 500, normal: int = 20) -> None:
    ratios = []
    alone = 0.0
    for _ in range(rounds):
        alone = statistics.median(await requests(target, normal, 30))
        async with slow_connections(target, slow):
            beside = statistics.median(await requests(target, normal, 30))
        ratios.append(beside / alone)
    share = statistics.median(ratios)
    print(
        f"median latency of {normal} clients: {alone * 1e3:.1f} ms alone, x{share:.2f} beside {slow} slow connections"
    )


def vectors(rounds: int, count: int = 256, width: int = 1024) -> None:
    """A whole embeddings answer of both formats, and the plainest JSON encoder beside it for scale."""
    values = np.random.default_rng(1).standard_normal((count, width)).astype(np.float32)
    result = Embeddings(values / np.linalg.norm(values, axis=1, keepdims=True), 1)
    requests = {word: parse_embeddings({"model": "m", "input": ["x"], "encoding_format": word}) for word in FORMATS}
    ways: dict[str, Callable[[], bytes]] = {
        word: partial(embeddings_answer, request, result, "m") for word, request in requests.items()
    }
    ways["msgspec over lists"] = lambda: msgspec.json.encode(result.vectors.tolist())
    spent: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds * 4):
        for name, way in ways.items():
            started = time.process_time()
            way()
            spent[name].append(time.process_time() - started)
    base = statistics.median(spent["base64"])
    shares = ", ".join(f"{name} x{statistics.median(times) / base:.1f}" for name, times in spent.items())
    print(f"{count} vectors of {width}: base64 {base * 1e3:.1f} ms; relative to it: {shares}")


async def main(rounds: int) -> None:
    targets = [Target(kind) for kind in ("bare", "layers", "stock")]
    try:
        await costs(targets, rounds)
        await crowd(targets[1], rounds)
        vectors(rounds)
    finally:
        for target in targets:
            target.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", choices=["bare", "layers", "stock"])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    trio.run(run_server, options.serve) if options.serve else trio.run(main, options.rounds)
