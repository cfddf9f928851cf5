"""hypercorn's HTTP/1.1 and WebSocket protocol classes, narrowed to what this server offers.

hypercorn parses and frames; nothing here touches a socket or waits for one. Everything that is to be sent goes to the
connection's buffer, so that one call of `handle` never blocks and a slow client delays nobody. What is changed against
hypercorn 0.18.0, whose classes these are (it is pinned exactly for that reason):

- HTTP/2 is never spoken, and requests that `requestline` refuses never reach an application;
- `100 Continue` is sent when the application first asks for the body, not before;
- a request that waits behind another one stays unparsed until the other one's task is over;
- permessage-deflate is not offered, bytes before the acceptance of a WebSocket wait, its close codes are told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Body, Data, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol, H11WSConnection
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import FrameTooLargeError, WSStream
from hypercorn.typing import ConnectionState
from wsproto.connection import ConnectionState as WebSocketState
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from pumas.http.config import HttpConfig
from pumas.http.requestline import Refusal, check_request, websocket_upgrade

EVENTS_BEFORE_YIELD = 64
"""Parser events after which other tasks get their turn: many tiny chunks in one packet must not hold the loop."""

PONGS_BYTES = 4 << 10
"""Bytes that may wait to be sent before a WebSocket's pings are not answered any more."""

Put = Callable[[Any], Awaitable[None]]


class Owner(Protocol):
    """What the protocol needs of its connection."""

    draining: bool

    async def spawn_app(self, app: Any, config: Config, scope: Any, send: Callable[[Any], Awaitable[None]]) -> Put:
        """Start the application on a request; the result takes what arrives for it. hypercorn's task group."""

    def ready(self) -> bool:
        """Whether the task of the request before is over."""

    def abandon(self) -> None:
        """The request that is being answered cannot go on: its client broke the protocol."""

    def backlog(self) -> int:
        """Bytes that wait to be sent."""


class SilentLog:
    """hypercorn's log, which costs an access line for each request even where nobody reads it."""

    def __init__(self, config: Config) -> None:
        pass

    async def access(self, *args: object) -> None:
        pass


def hypercorn_config(config: HttpConfig) -> Config:
    """The few settings that hypercorn's protocol classes read."""
    theirs = Config()
    theirs.logger_class = cast(Any, SilentLog)
    theirs.h11_max_incomplete_size = config.header_bytes
    theirs.keep_alive_max_requests = config.requests_per_connection
    theirs.websocket_max_message_size = config.websocket_message_bytes
    theirs.websocket_ping_interval = None
    theirs.include_server_header = False
    return theirs


class HttpStream(HTTPStream):
    """One HTTP request. `body_seen` is true once all of its body has arrived."""

    body_seen = False
    delimited = False
    """Whether the answer's end can be told from its beginning or its framing. If not, only a reset can say that it
    was cut (HTTP/1.0 without Content-Length)."""

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, EndBody):
            self.body_seen = True
        await super().handle(event)

    def unfinished(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self.state.name == "RESPONSE"


class WebSocketStream(WSStream):
    """One WebSocket. `code` is why it ended, as the client or its error put it."""

    code: int | None = None

    def accepts_data(self) -> bool:
        return self.handshake.accepted or self.closed

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed) and not self.closed and self.code is not None:
            self.closed = True
            await self._tell({"type": "websocket.disconnect", "code": self.code})
            return
        await super().handle(event)

    async def _handle_events(self) -> None:
        for seen, event in enumerate(self.connection.events(), start=1):
            if seen % EVENTS_BEFORE_YIELD == 0:
                await trio.lowlevel.checkpoint()
            if self.closed:
                return
            if isinstance(event, Message):
                try:
                    self.buffer.extend(event)
                except FrameTooLargeError:
                    await self._end(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG), CloseReason.MESSAGE_TOO_BIG)
                    return
                if event.message_finished:
                    await self._tell(self.buffer.to_message())
                    self.buffer.clear()
            elif isinstance(event, Ping):
                if cast(Owner, self.task_group).backlog() < PONGS_BYTES:  # else the newest of them is enough
                    await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                peer_closes = self.connection.state is WebSocketState.REMOTE_CLOSING
                await self._end(event.response() if peer_closes else event, event.code)
                return

    async def _tell(self, message: Any) -> None:
        if self.app_put is not None:
            await self.app_put(message)

    async def _end(self, answer: CloseConnection, code: int) -> None:
        self.code = int(code)
        await self._send_wsproto_event(answer)
        await self.send(StreamClosed(stream_id=self.stream_id))

    async def _send_wsproto_event(self, event: Any) -> None:
        try:
            data = self.connection.send(event)
        except LocalProtocolError:
            return  # the closing handshake is over: there is nobody to tell
        await self.send(Data(stream_id=self.stream_id, data=bytes(data)))


class Http1(H11Protocol):
    """One connection's parser. `handle` takes bytes in; answers leave through the `send` of its connection."""

    stream: HttpStream | WebSocketStream | None

    def __init__(
        self,
        app: Any,
        ours: HttpConfig,
        config: Config,
        context: Any,
        owner: Owner,
        tls: bool,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[ConnectionEvent], Awaitable[None]],
    ) -> None:
        super().__init__(app, config, context, cast(Any, owner), ConnectionState({}), tls, client, server, send)
        self.ours = ours
        self.owner = owner
        self.over = False
        """Nothing more is read from this client."""
        self._head = False
        self._busy = False

    def mid_request(self) -> bool:
        """Whether a part of a request's line or headers has arrived."""
        return isinstance(self.connection, h11.Connection) and bool(self.connection.trailing_data[0])

    def waiting_bytes(self) -> int:
        """Bytes that arrived and cannot be parsed yet: behind a request, or before a WebSocket's acceptance."""
        if isinstance(self.connection, H11WSConnection):
            return len(self.connection.buffer)
        return len(self.connection.trailing_data[0])

    async def handle(self, event: ConnectionEvent) -> None:
        if isinstance(event, RawData) and self.stream is None and not self.mid_request():
            data = event.data.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a request
            if not data:
                return  # h11 would read it as the end
            event = RawData(data=data)
        await super().handle(event)

    async def proceed(self) -> None:
        """Parse what was left, now that the request before is over or the WebSocket is accepted."""
        if self.over or self._busy:
            return
        if isinstance(self.connection, h11.Connection) and self.stream is None:
            waiting = self.connection.trailing_data[0]
            if waiting[:1] in (b"\r", b"\n"):
                self.connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self.ours.header_bytes)
                self.connection.receive_data(waiting.lstrip(b"\r\n"))
        await self._handle_events()

    async def send_continue(self) -> None:
        """Invite the body, if the client waits for that (Expect: 100-continue)."""
        if self.connection.they_are_waiting_for_100_continue:
            await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response) and event.status_code >= 200:
            event = self._framed(event)
        await super().stream_send(event)

    def _framed(self, event: Response) -> Response:
        """The answer's head, with `Connection: close` where the connection cannot be used again."""
        stream = self.stream
        if not isinstance(stream, HttpStream):
            return event
        names = {name.lower() for name, _ in event.headers}
        stream.delimited = b"content-length" in names or stream.scope["http_version"] != "1.0"
        if (self.owner.draining or not stream.body_seen) and b"connection" not in names:
            return Response(
                stream_id=event.stream_id,
                headers=[*event.headers, (b"connection", b"close")],
                status_code=event.status_code,
            )
        return event

    async def _handle_events(self) -> None:
        if self._busy:
            return  # the task that is in the loop below goes on with what has come meanwhile
        self._busy = True
        try:
            seen = 0
            while not self.over and await self._step():
                seen += 1
                if seen % EVENTS_BEFORE_YIELD == 0:
                    await trio.lowlevel.checkpoint()
        finally:
            self._busy = False

    async def _step(self) -> bool:
        """Take one event from the parser; False where it needs bytes, or the application's progress."""
        connection = self.connection
        if isinstance(connection, H11WSConnection):
            return await self._websocket_step(connection)
        if self.stream is None and not self.owner.ready():
            return False
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            await self.refuse(Refusal(error.error_status_hint, str(error)))
            return False
        if isinstance(event, h11.Request):
            await self._begin(event)
            return True
        if event is h11.NEED_DATA or event is h11.PAUSED or self.stream is None:
            return False
        if isinstance(event, h11.Data):
            await self.stream.handle(Body(stream_id=STREAM_ID, data=event.data))
            return True
        if isinstance(event, h11.EndOfMessage):
            await self.stream.handle(EndBody(stream_id=STREAM_ID))
            return True
        return False

    async def _websocket_step(self, connection: H11WSConnection) -> bool:
        stream = self.stream
        if not isinstance(stream, WebSocketStream) or not stream.accepts_data():
            return False
        event = connection.next_event()
        if not isinstance(event, Data):
            return False
        try:
            await stream.handle(event)
        except RemoteProtocolError as error:
            hint = error.event_hint
            answer = hint if isinstance(hint, CloseConnection) else CloseConnection(code=CloseReason.PROTOCOL_ERROR)
            await stream._end(answer, answer.code)
        return True

    async def _begin(self, request: h11.Request) -> None:
        self._head = request.method == b"HEAD"
        headers = list(request.headers)
        refusal = check_request(request.method, request.target, request.http_version, headers, self.ours.header_bytes)
        upgrade = websocket_upgrade(request.method, headers)
        if refusal is None and upgrade and not self.ours.websocket:
            refusal = Refusal(400, "WebSocket is not offered here")
        if refusal is not None:
            await self.refuse(refusal)
            return
        kind: type[HttpStream] | type[WebSocketStream] = WebSocketStream if upgrade else HttpStream
        self.stream = stream = kind(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            STREAM_ID,
        )
        if upgrade:
            self.connection = H11WSConnection(cast(h11.Connection, self.connection))
            headers = _websocket_headers(headers)
        await stream.handle(
            Request(
                stream_id=STREAM_ID,
                headers=headers,
                http_version=request.http_version.decode("ascii"),
                method=request.method.decode("ascii").upper(),
                raw_path=request.target,
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        if upgrade and stream.closed:  # a handshake that is not one was answered
            await self.send(Closed())

    async def refuse(self, refusal: Refusal) -> None:
        """Answer for the application, where that is still possible, and end the connection."""
        self.over = True
        self.owner.abandon()
        if isinstance(self.connection, h11.Connection) and self.connection.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            body = f"{refusal.reason[:200]}\n".encode("ascii", "replace")
            head = [
                (b"content-type", b"text/plain"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            await self._send_h11_event(
                h11.Response(status_code=refusal.status, headers=[*head, *self.config.response_headers("h11")])
            )
            if not self._head:
                await self._send_h11_event(h11.Data(data=body))
            await self._send_h11_event(h11.EndOfMessage())
        await self.send(Closed())


def _websocket_headers(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Without extensions, which are never negotiated, and without subprotocols that are not ASCII."""
    return [
        (name, value)
        for name, value in headers
        if name != b"sec-websocket-extensions" and not (name == b"sec-websocket-protocol" and not value.isascii())
    ]
