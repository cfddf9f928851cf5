"""One request and its answer: the application's `receive` and `send`, and the scope that a hang-up cancels."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import trio

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

MESSAGE_OVERHEAD_BYTES = 128
"""What a held WebSocket message counts for beside its payload."""
BUFFERED_BYTES = 32 << 20
"""Bound on an answer that is held back whole because its client could not tell a cut one from a finished one."""


class ClientGone(OSError):
    """The client has left: whatever is sent from now on reaches nobody."""


class AnswerCut(Exception):
    """The application cannot finish the answer that it has begun, and has said why elsewhere: cut the connection."""


class Link(Protocol):
    """What an exchange needs of its connection."""

    async def flush(self) -> None:
        """Send what is buffered. Raises: ClientGone. Cancel: the connection is torn and gets reset."""

    async def want_body(self) -> None:
        """The application waits for more of the body: invite it and start the stall deadline."""

    def got_body(self) -> None:
        """The application has what it waited for."""

    async def accepted(self) -> None:
        """A WebSocket was accepted: bytes that waited for it can be parsed."""


class Exchange:
    """What arrives for one request, and where its answer stands. Single writer: the tasks of its connection."""

    def __init__(
        self, link: Link, scope: Scope, put_out: Callable[[Message | None], Awaitable[None]], *, buffered: bool
    ) -> None:
        self.scope = scope
        self.cancel = trio.CancelScope()
        self.gone = False
        """The client has left, or broke the protocol."""
        self.handed_over = False
        """The answer's last message was given to the connection."""
        self.complete = False
        """The answer's last byte was given to the system."""
        self.body_done = False
        self._link = link
        self._put_out = put_out
        self._http = scope["type"] == "http"
        self._body = bytearray()
        self._told_end = False
        self._messages: deque[Message] = deque()
        self._held = 0
        self._news = trio.Event()
        self._buffer: list[Message] | None = [] if buffered else None
        self._buffered = 0

    # --- the connection's side ---------------------------------------------------------------------------------------

    def held(self) -> int:
        """Bytes that the application has not taken yet."""
        return 0 if self.handed_over else len(self._body) + self._held

    async def put(self, message: Message) -> None:
        """Take what hypercorn's stream has for the application. Never blocks: the reader looks at `held`."""
        kind = message["type"]
        if kind == "http.disconnect":
            if not self.handed_over:
                self.hang_up()
        elif kind == "http.request":
            self.body_done = not message["more_body"]
            if not self.handed_over:  # else the answer did not wait for the body: drop it
                self._body += message["body"]
        else:
            self._messages.append(message)
            self._held += _size(message)
            if kind == "websocket.disconnect":
                self.gone = True
        self._news.set()

    def hang_up(self, websocket_close_s: float = 0.0) -> None:
        """The client has left: cancel the application, unless only its bookkeeping is left to do.

        A WebSocket endpoint is told in a message and has `websocket_close_s` to end by itself.
        """
        self.gone = True
        if not self._http:
            self.cancel.deadline = min(self.cancel.deadline, trio.current_time() + websocket_close_s)
        elif not self.handed_over:
            self.cancel.cancel()  # before the news, so that a waiting `receive` ends in it
        self._news.set()

    # --- the application's side --------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """ASGI's receive. After the body, and after a WebSocket's end, it waits for the hang-up and tells it again."""
        await trio.lowlevel.checkpoint_if_cancelled()
        waiting = False
        while (message := self._take()) is None:
            if self._http and not waiting and not self.body_done and not self.handed_over:
                waiting = True
                await self._link.want_body()
                continue
            self._news = trio.Event()
            await self._news.wait()
        self._link.got_body()
        if self.gone or self.handed_over:
            await trio.lowlevel.checkpoint()  # who asks again and again must not hold the loop
        return message

    def _take(self) -> Message | None:
        if not self._http:
            if self._messages:
                message = self._messages.popleft()
                self._held -= _size(message)
                return message
            return {"type": "websocket.disconnect", "code": 1006} if self.gone else None
        if self.gone or self.handed_over:
            return {"type": "http.disconnect"}
        if self._body or (self.body_done and not self._told_end):
            body, self._body = bytes(self._body), bytearray()
            self._told_end = self.body_done
            return {"type": "http.request", "body": body, "more_body": not self.body_done}
        return None

    async def send(self, message: Message) -> None:
        """ASGI's send: always a checkpoint, blocks while the client does not read.

        Raises: ClientGone. Cancel: before anything of the message was taken nothing has happened; afterwards the
        connection is torn: it is reset and never used again.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.gone:
            await trio.lowlevel.checkpoint()
            raise ClientGone("the client has left")
        if self._buffer is None:
            await self._forward(message)
            return
        await trio.lowlevel.checkpoint()
        self._buffer.append(message)
        self._buffered += len(message.get("body", b""))
        if self._buffered > BUFFERED_BYTES:
            raise RuntimeError(f"an HTTP/1.0 answer without Content-Length is over {BUFFERED_BYTES} bytes")
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            for held in _with_length(self._buffer):
                await self._forward(held)

    async def _forward(self, message: Message) -> None:
        kind = message["type"]
        last = kind == "http.response.body" and not message.get("more_body", False)
        if last:
            self.handed_over = True  # from here on a hang-up breaks the write but cancels nothing
            self._body.clear()
        await self._put_out(message)
        if kind == "http.response.start":
            return  # it leaves with the body's first piece, in one write
        await self._link.flush()
        if kind == "websocket.accept":
            await self._link.accepted()
        if last:
            self.complete = True


def _size(message: Message) -> int:
    return MESSAGE_OVERHEAD_BYTES + len(message.get("bytes") or message.get("text") or "")


def _with_length(messages: list[Message]) -> list[Message]:
    """A whole answer as two messages whose end is known from the beginning."""
    start, *rest = messages
    body = b"".join(bytes(m.get("body", b"")) for m in rest)
    names = {name.lower() for name, _ in start["headers"]}
    if b"content-length" not in names:
        start["headers"] = [*start["headers"], (b"content-length", str(len(body)).encode())]
    return [start, {"type": "http.response.body", "body": body, "more_body": False}]
