"""One client's connection: who reads, who writes, which deadline runs, and how it ends.

Two tasks at most. The reader always has a receive pending (or watches for the hang-up while it must not read on), so
that a client that leaves is noticed at once; the application's task writes. Parsing never waits (see `protocol`), so
the reader is never stuck behind an application.

How it ends:
- a client that leaves (FIN, half-close or reset, all the same) cancels its request, and nothing more is sent;
- an answer after which the connection cannot be used is followed by a FIN, and what the client still sends is dropped
  for a bounded while, so that the answer reaches a client that writes everything before it reads;
- an answer that was begun and cannot be finished is never finished: a FIN where the framing shows the cut, a reset
  where it would not (HTTP/1.0 without Content-Length);
- a write that was cut short by a cancellation poisons the connection: it is reset.
"""

from __future__ import annotations

import logging
import math
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import parse_socket_addr

from pumas.http.config import HttpConfig
from pumas.http.exchange import AnswerCut, AsgiApp, ClientGone, Exchange, Message
from pumas.http.hangup import HangUps
from pumas.http.outgoing import Outgoing
from pumas.http.protocol import Http1, HttpStream, WebSocketStream

log = logging.getLogger(__name__)

RECEIVE_BYTES = 64 << 10


class Connection:
    """Serves one accepted socket until it is gone. Leaves no descriptor and no task behind."""

    def __init__(
        self,
        app: AsgiApp,
        config: HttpConfig,
        theirs: Config,
        context: WorkerContext,
        hang_ups: HangUps,
        tls: ssl.SSLContext | None,
        transport: trio.SocketStream,
    ) -> None:
        self.draining = False
        self.exchange: Exchange | None = None
        self._app, self._config, self._theirs, self._context = app, config, theirs, context
        self._hang_ups = hang_ups
        self._socket = transport.socket
        self._tls = trio.SSLStream(transport, tls, server_side=True, https_compatible=True) if tls else None
        self._stream: trio.abc.Stream = self._tls or transport
        self._answer: HttpStream | WebSocketStream | None = None
        self._reading = trio.CancelScope()
        self._lingering = trio.CancelScope()
        self._out = Outgoing(self._stream)
        self._moved = trio.Event()
        self._heading = False
        """A request's first bytes have arrived and its headers have not ended."""
        self._stalling = False
        """The application waits for a part of the body."""
        self._patience_s = 0.0
        """For how long it may still wait: waiting spends it, bytes earn it back."""
        self._ended = False
        """The connection ends once what is buffered is sent."""
        self._idle_since = trio.current_time()
        self._hung_up = False
        self._spoiled = False
        """A plain end would say that what was sent is all: reset."""
        self._closed = False

    async def run(self) -> None:
        """Serve. Whatever goes wrong here ends this connection only."""
        try:
            async with trio.open_nursery() as self._nursery:
                with self._reading:
                    self._deadline(self._config.handshake_s if self._tls else self._config.idle_s)
                    if await self._open():
                        await self._read()
                await self._leave()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as gone:
            log.debug("connection lost: %r", gone.exceptions)
        except* (Exception, GeneratorExit):
            log.exception("fault in a connection")
        finally:
            self.cut()

    async def _open(self) -> bool:
        if self._tls is not None:
            try:
                await self._tls.do_handshake()
            except trio.BrokenResourceError:
                return False
            self._deadline(self._config.idle_s)
        if self._socket.family != socket.AF_UNIX:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        client = parse_socket_addr(self._socket.family, self._socket.getpeername())
        server = parse_socket_addr(self._socket.family, self._socket.getsockname())
        self._protocol = Http1(
            self._app, self._config, self._theirs, self._context, self, self._tls is not None, client, server, self._put
        )
        return True

    # --- reading -----------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        """Feed the parser until the client leaves. Cancelled by its scope when the connection ends otherwise."""
        while True:
            if self._full() and not await self._room():
                return
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                data = b""
            if not data:
                self._hung_up = True
                return
            self._arrived(len(data))
            await self._protocol.handle(RawData(bytes(data)))
            if self._ended:
                self._deadline(self._config.linger_s)
                await self._flush_alone()
            elif self._out.held_bytes and not self._out.being_written():
                self._nursery.start_soon(self._flush_alone)
            if self._piles_up():
                self._spoiled = True
                return

    def _full(self) -> bool:
        """Whether reading must wait: for the application to take some of its body, or, where only its bookkeeping
        is left, for its end."""
        exchange = self.exchange
        if exchange is None:
            return False
        if exchange.handed_over:
            return exchange.body_done and self._waits_behind()
        return exchange.held() > self._config.read_ahead_bytes

    def _piles_up(self) -> bool:
        """Whether the client sends more behind an unanswered request than is held. Were it left unread, the client's
        end would hide behind it, so it is cut off instead."""
        exchange = self.exchange
        if exchange is None or exchange.handed_over:
            return False
        return (exchange.body_done or isinstance(self._answer, WebSocketStream)) and self._waits_behind()

    def _waits_behind(self) -> bool:
        return self._protocol.waiting_bytes() > self._config.pipeline_bytes

    async def _room(self) -> bool:
        """Wait until the application has taken some of what is here. False: the client has left."""
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                await self._hang_ups.wait(self._socket)
                self._hung_up = True
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            while self._full():
                self._moved = trio.Event()
                await self._moved.wait()
            nursery.cancel_scope.cancel()
        return not self._hung_up

    # --- deadlines: one scope round the reader, whose deadline follows the state ------------------------------------

    def _deadline(self, seconds: float) -> None:
        self._reading.deadline = math.inf if seconds == math.inf else trio.current_time() + seconds

    def _arrived(self, n: int) -> None:
        if self.exchange is None:
            if not self._heading:
                self._heading = True
                self._deadline(self._config.header_s)
            return
        earned = n / self._config.body_rate_bytes
        if self._stalling:
            earned += self._reading.deadline - trio.current_time()
            self._deadline(min(earned, self._config.body_stall_s))
        else:
            self._patience_s = min(earned + self._patience_s, self._config.body_stall_s)

    async def want_body(self) -> None:
        """See `exchange.Link`."""
        await self._protocol.send_continue()
        if self._out.held_bytes:
            await self.flush()
        exchange = self.exchange
        if exchange is not None and not exchange.body_done:
            self._stalling = True
            self._deadline(self._patience_s)

    def got_body(self) -> None:
        """See `exchange.Link`."""
        if self._stalling:
            self._stalling = False
            self._patience_s = self._reading.deadline - trio.current_time()
            self._deadline(math.inf)
        self._moved.set()

    async def accepted(self) -> None:
        """See `exchange.Link`."""
        await self._proceed()

    # --- requests ----------------------------------------------------------------------------------------------------

    def ready(self) -> bool:
        """See `protocol.Owner`."""
        return self.exchange is None

    async def spawn_app(
        self, app: Any, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]
    ) -> Callable[[Message], Awaitable[None]]:
        """See `protocol.Owner`."""
        scope["asgi"]["spec_version"] = "2.4"  # send raises after a disconnect
        # A Unix socket knows no reset, so such an answer is sent whole or not at all.
        buffered = scope["http_version"] == "1.0" and self._socket.family == socket.AF_UNIX
        self.exchange = exchange = Exchange(self, scope, send, buffered=buffered)
        self._answer = answer = self._protocol.stream
        self._heading = False
        self._patience_s = self._config.body_stall_s
        self._deadline(math.inf)
        self._nursery.start_soon(self._serve, exchange, answer, send)
        return exchange.put

    async def _serve(self, exchange: Exchange, answer: Any, put_out: Callable[[Any], Awaitable[None]]) -> None:
        """The request's own task: the application, then whatever is to follow."""
        try:
            with exchange.cancel:
                await self._app(exchange.scope, exchange.receive, exchange.send)
        except* (ClientGone, AnswerCut):
            pass
        except* (Exception, GeneratorExit):  # a generator that was closed inside a nursery raises the latter
            log.exception("fault in the application: %s", exchange.scope["path"])
        if isinstance(answer, HttpStream) and exchange.complete:
            await self._next()
            return
        self._spoiled = self._spoiled or _cut_unseen(answer)
        if isinstance(answer, WebSocketStream) or not exchange.gone:
            # The answer is missing or unfinished: hypercorn writes a 500 where nothing has begun (a WebSocket's
            # close frame), else it ends the connection without ending the answer.
            await put_out(None)
        self.exchange = None
        if not self._spoiled:
            await self._flush_alone()
        self._reading.cancel()

    async def _next(self) -> None:
        """The request is over: await the next one, or parse it if it has come already."""
        self.exchange = self._answer = None
        self._idle_since = trio.current_time()
        self._moved.set()
        if self.draining:
            self._reading.cancel()
        if self._ended:
            return
        self._deadline(self._config.idle_s)
        await self._proceed()
        if self.exchange is None and self._protocol.mid_request():
            self._heading = True
            self._deadline(self._config.header_s)

    async def _proceed(self) -> None:
        await self._protocol.proceed()
        if self._out.held_bytes:
            await self._flush_alone()

    def abandon(self) -> None:
        """See `protocol.Owner`."""
        if self.exchange is not None:
            self.exchange.hang_up(self._config.websocket_close_s)

    # --- writing -----------------------------------------------------------------------------------------------------

    def backlog(self) -> int:
        """See `protocol.Owner`."""
        return self._out.held_bytes

    async def _put(self, event: Event) -> None:
        """Take what the protocol wants to send. Never blocks."""
        if isinstance(event, RawData):
            if event.data:
                self._out.add(event.data)
        elif isinstance(event, Closed):
            self._ended = True

    async def flush(self) -> None:
        """See `exchange.Link`."""
        try:
            await self._out.flush()
        except ClientGone:
            self._hung_up = True
            self._reading.cancel()
            raise
        except BaseException:
            if self._out.torn:
                self.cut()
                self._reading.cancel()
            raise
        if self._ended:
            self._reading.cancel()

    async def _flush_alone(self) -> None:
        """Flush where nobody waits for the outcome: the reader sees for itself that the client has left."""
        try:
            await self.flush()
        except ClientGone:
            pass

    # --- ending ------------------------------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """The reader is done: with a client that left, an answer that was the last, or a deadline."""
        exchange = self.exchange
        if exchange is not None and not exchange.complete:
            await self._protocol.handle(Closed())
            exchange.hang_up(self._config.websocket_close_s)
        if self._ended and not (self._hung_up or self._spoiled or self._closed):
            await self._linger()
        self.cut()

    async def _linger(self) -> None:
        left = self._config.linger_bytes
        self._lingering.deadline = trio.current_time() + self._config.linger_s
        with self._lingering:
            try:
                self._socket.shutdown(socket.SHUT_WR)
                while left > 0 and (data := await self._socket.recv(RECEIVE_BYTES)):
                    left -= len(data)
            except (OSError, trio.ClosedResourceError) as error:
                log.debug("gone while its answer was under way: %r", error)

    def idle_s(self) -> float:
        """For how long nothing has been asked here; -1 while a request is being answered."""
        return -1.0 if self.exchange is not None else trio.current_time() - self._idle_since

    def drop_idle(self) -> None:
        """Leave, if no request is being answered: somebody else needs the place."""
        self._lingering.cancel()
        if self.exchange is None:
            self._reading.cancel()

    def drain(self) -> None:
        """The server shuts down: leave now if no request is being answered, else after its answer."""
        self.draining = True
        self.drop_idle()

    def cut(self) -> None:
        """Close the socket now; whoever waits on it wakes. Resets it where a plain close could pass for an end."""
        if self._closed:
            return
        self._closed = True
        if self._spoiled or self._out.torn or (self.exchange is not None and _cut_unseen(self._answer)):
            try:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            except OSError as error:
                log.debug("no reset: %r", error)
        self._socket.close()


def _cut_unseen(answer: HttpStream | WebSocketStream | None) -> bool:
    """Whether a plain close would make a part of this answer look like all of it."""
    return isinstance(answer, HttpStream) and answer.unfinished() and not answer.delimited
