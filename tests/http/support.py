"""A server with a test application, and clients that hold a raw socket and need not behave."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio
import trio.testing

from pumas.http.config import HttpConfig
from pumas.http.exchange import Message, Receive, Scope, Send
from pumas.http.listen import Listening
from pumas.http.serve import serve

BOUND_S = 60
"""What only a hang reaches."""


@dataclass
class Run:
    """One run of the application, as the test sees it."""

    path: str
    begun: trio.Event = field(default_factory=trio.Event)
    over: trio.Event = field(default_factory=trio.Event)
    go: trio.Event = field(default_factory=trio.Event)
    """Set by the test where the route waits for it."""
    cancelled: bool = False
    error: BaseException | None = None
    sent: int = 0
    sending: bool = False
    messages: list[Message] = field(default_factory=list)
    extra: Any = None


Route = Callable[[Run, Scope, Receive, Send], Awaitable[None]]


class Probe:
    """ASGI application: a route for each name; what became of each run is kept."""

    def __init__(self) -> None:
        self.routes: dict[str, Route] = {
            "/ok": ok,
            "/echo": echo,
            "/wait": wait,
            "/sse": sse,
            "/flood": flood,
            "/early": early,
            "/fault": fault,
            "/fault0": fault_at_once,
            "/return": return_early,
        }
        self.runs: list[Run] = []
        self._news = trio.Event()

    async def run(self, path: str, index: int = -1) -> Run:
        """The run of that path, once there is one."""
        while not (found := [r for r in self.runs if r.path == path]):
            self._news = trio.Event()
            await self._news.wait()
        return found[index]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        run = Run(scope["path"])
        self.runs.append(run)
        self._news.set()

        async def noted(message: Message) -> None:
            run.sending = True
            await send(message)
            run.sending = False
            run.sent += len(message.get("body", b""))

        try:
            await self.routes[run.path](run, scope, receive, noted)
        except trio.Cancelled:
            run.cancelled = True
            raise
        except BaseException as error:
            run.error = error
            raise
        finally:
            run.over.set()


async def read_all(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError("left")
        body += message["body"]
        if not message["more_body"]:
            return body


async def start(send: Send, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def body(send: Send, data: bytes, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def whole(send: Send, data: bytes, status: int = 200) -> None:
    await start(send, status, (b"content-length", str(len(data)).encode()))
    await body(send, data)


async def ok(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    await whole(send, scope["query_string"] or b"ok")


async def echo(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    run.begun.set()
    await whole(send, await read_all(receive))


async def wait(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    run.begun.set()
    await run.go.wait()
    await whole(send, b"waited")


async def sse(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    """An event at once, and one each time the test sets `go`; `extra = "end"` ends it."""
    await start(send, 200, (b"content-type", b"text/event-stream"))
    await body(send, b"data: first\n\n", True)
    run.begun.set()
    while True:
        await run.go.wait()
        run.go = trio.Event()
        if run.extra == "end":
            await body(send, b"")
            return
        await body(send, b"data: next\n\n", True)


async def flood(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    await start(send)
    run.begun.set()
    while True:
        await body(send, b"x" * 65536, True)


async def early(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    await whole(send, b"too large", 413)


async def fault(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    await start(send)
    await body(send, b"some", True)
    run.begun.set()
    raise ValueError("a fault after the headers")


async def fault_at_once(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("a fault before the headers")


async def return_early(run: Run, scope: Scope, receive: Receive, send: Send) -> None:
    await start(send)
    await body(send, b"some", True)


class Clock(trio.abc.Clock):
    """Real time, and leaps of it: a test of a deadline neither sleeps nor depends on the machine's speed."""

    def __init__(self) -> None:
        self._clock = trio.testing.MockClock(rate=1.0)

    def start_clock(self) -> None:
        self._clock.start_clock()

    def current_time(self) -> float:
        return self._clock.current_time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return self._clock.deadline_to_sleep_time(deadline)

    async def leap(self, seconds: float) -> None:
        """Let everybody come to rest, then let `seconds` pass at once."""
        await trio.testing.wait_all_tasks_blocked(0.01)
        self._clock.jump(seconds)
        await trio.testing.wait_all_tasks_blocked(0.01)


class Client:
    """One raw socket."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self.stream = stream
        self.buffer = b""

    @property
    def socket(self) -> trio.socket.SocketType:
        stream = self.stream.transport_stream if isinstance(self.stream, trio.SSLStream) else self.stream
        return stream.socket

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def get(self, target: str, *headers: str, version: str = "1.1", method: str = "GET") -> None:
        await self.send(request(target, *headers, version=version, method=method))

    async def some(self) -> bytes:
        """What comes next; empty at the end."""
        if self.buffer:
            data, self.buffer = self.buffer, b""
            return data
        return bytes(await self.stream.receive_some(65536))

    async def until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError(f"ended before {mark!r}: {self.buffer!r}")
            self.buffer += data
        found, _, self.buffer = self.buffer.partition(mark)
        return found + mark

    async def exactly(self, n: int) -> bytes:
        while len(self.buffer) < n:
            data = await self.stream.receive_some(65536)
            if not data:
                raise EOFError(f"ended after {len(self.buffer)} of {n} bytes")
            self.buffer += data
        found, self.buffer = self.buffer[:n], self.buffer[n:]
        return found

    async def rest(self) -> bytes:
        """Everything up to the end. A reset raises."""
        data = b""
        while piece := await self.some():
            data += piece
        return data

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.until(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split(" ")[1]), headers

    async def answer(self) -> tuple[int, bytes]:
        """One whole answer: its status and body. Raises: EOFError where it is cut."""
        status, headers = await self.head()
        if status in (100, 204):
            return status, b""
        if "content-length" in headers:
            return status, await self.exactly(int(headers["content-length"]))
        if headers.get("transfer-encoding") != "chunked":
            return status, await self.rest()
        data = b""
        while (piece := await self.chunk()) is not None:
            data += piece
        return status, data

    async def chunk(self) -> bytes | None:
        """One chunk; None for the last, empty one."""
        size = int(await self.until(b"\r\n"), 16)
        data = await self.exactly(size + 2)
        return data[:-2] if size else None

    async def ended(self) -> bool:
        """Wait for the connection's end: True if it was reset, False if it was closed. Drops what comes before."""
        try:
            await self.rest()
        except trio.BrokenResourceError:
            return True
        return False

    async def reset(self) -> None:
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    async def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    async def close(self) -> None:
        await self.stream.aclose()


def request(target: str, *headers: str, version: str = "1.1", method: str = "GET") -> bytes:
    lines = [f"{method} {target} HTTP/{version}", "Host: localhost", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def post(target: str, data: bytes, *headers: str) -> bytes:
    return request(target, f"Content-Length: {len(data)}", *headers, method="POST") + data


class Server:
    """A running server; clients that it makes are closed with it."""

    def __init__(self, listening: Listening, config: HttpConfig, shutdown: trio.Event, app: Any) -> None:
        self.listening, self.config, self.shutdown, self.app = listening, config, shutdown, app
        self.stopped = trio.Event()
        self.clients: list[Client] = []

    @property
    def probe(self) -> Probe:
        assert isinstance(self.app, Probe)
        return self.app

    async def connect(self, receive_buffer: int | None = None) -> Client:
        if self.config.unix_path is not None:
            return self.keep(Client(await trio.open_unix_socket(os.fspath(self.config.unix_path))))
        assert self.listening.port is not None
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            await sock.connect(("127.0.0.1", self.listening.port))
        except BaseException:
            sock.close()
            raise
        return self.keep(Client(trio.SocketStream(sock)))

    def keep(self, client: Client) -> Client:
        self.clients.append(client)
        return client

    async def bystander(self) -> Bystander:
        """A client in the middle of a stream."""
        client = await self.connect()
        await client.get("/sse")
        status, _ = await client.head()
        assert status == 200
        assert await client.chunk() == b"data: first\n\n"
        return Bystander(client, await self.probe.run("/sse"))


class Bystander:
    def __init__(self, client: Client, run: Run) -> None:
        self.client, self.run = client, run

    async def lives(self) -> None:
        """Its stream goes on."""
        self.run.go.set()
        assert await self.client.chunk() == b"data: next\n\n"


@asynccontextmanager
async def running(app: Any = None, **settings: Any) -> AsyncIterator[Server]:
    """A server for one test. Leaving shuts it down and checks that nothing of it is left."""
    settings.setdefault("port", 0)
    settings.setdefault("grace_s", 0.5)
    settings.setdefault("linger_s", 30.0)
    settings.setdefault("websocket_close_s", 30.0)
    config = HttpConfig(**settings)
    app = app or Probe()
    shutdown = trio.Event()
    tasks, descriptors = count_tasks(), open_descriptors()
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            started: Any = await nursery.start(start_server, app, config, shutdown)
            server: Server = started
            try:
                yield server
            finally:
                with trio.CancelScope(shield=True):
                    for client in server.clients:
                        await client.close()
                shutdown.set()
            await server.stopped.wait()
            nursery.cancel_scope.cancel()
        assert count_tasks() == tasks, "tasks were left behind"
        assert open_descriptors() == descriptors, "descriptors were left behind"


async def start_server(app: Any, config: HttpConfig, shutdown: trio.Event, task_status: Any) -> None:
    async with trio.open_nursery() as nursery:
        listening: Any = await nursery.start(partial(serve, app, config, shutdown=shutdown))
        server = Server(listening, config, shutdown, app)
        task_status.started(server)
    server.stopped.set()


def count_tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


def open_descriptors() -> int:
    """Sockets and event descriptors of this process."""
    directory = Path("/proc/self/fd")
    count = 0
    for entry in directory.iterdir() if directory.exists() else []:
        try:
            target = os.readlink(entry)
        except OSError:
            continue
        count += target.startswith(("socket:", "anon_inode:"))
    return count
