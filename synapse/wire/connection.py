"""One end of a connection, without I/O: bytes in, events out; messages in, buffers out.

The transport receives into what `get_buffer` lends, says how much with `buffer_filled` and asks `next_event` until it
is told NEED_DATA. `send` gives the buffers of one message with its raw frames, never joined. The states and who may
speak are `state.TABLE`; sizes and pairs are `rules.REQUESTS`. Whatever the peer sends leads to an event or to
RemoteProtocolError, and a stream gives the same events however it is cut. # P9
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from enum import Enum
from typing import Final, Literal

import msgspec

from synapse.errors import LocalProtocolError, RemoteProtocolError
from synapse.wire import control
from synapse.wire import messages as m
from synapse.wire.frames import FrameReader, prefix
from synapse.wire.rules import ITEM_BYTES, REQUESTS, RequestRule, all_finite
from synapse.wire.state import SENDER, TABLE, Role, Signal, State

Buffer = bytes | bytearray | memoryview

MAX_HANDSHAKE_FRAME_BYTES = 64 * 1024
"""Bound of HELLO and HELLO_ACK: the peer is not known yet."""
MIN_MAX_FRAME_BYTES = 4 * 1024
"""No worker can work with less."""


class HelloReceived(msgspec.Struct, frozen=True):
    """To the module: the worker is who it should be."""

    hello: m.Hello


class AckReceived(msgspec.Struct, frozen=True):
    """To the worker: accepted or not."""

    ack: m.HelloAck


class RequestReceived(msgspec.Struct, frozen=True):
    """To the worker: one request with its raw frames."""

    request: m.Request
    raws: list[memoryview]


class RequestUnreadable(msgspec.Struct, frozen=True):
    """To the worker: answer ERR with this code; the raw frames have been read already (W4)."""

    req_id: str
    code: str
    msg: str


class ShutdownReceived(msgspec.Struct, frozen=True):
    """To the worker: exit 0."""


class ReplyReceived(msgspec.Struct, frozen=True):
    """To the module: the reply (or Err) to its request, with its raw frames."""

    reply: m.Reply
    raws: list[memoryview]


class Closed(msgspec.Struct, frozen=True):
    """The stream ended. `mid_frame`: inside a frame. Whether that was in order is for the caller to judge."""

    mid_frame: bool


class NeedData(Enum):
    NEED_DATA = "NEED_DATA"


NEED_DATA: Final = NeedData.NEED_DATA

Event = HelloReceived | AckReceived | RequestReceived | RequestUnreadable | ShutdownReceived | ReplyReceived | Closed


class Connection:
    """One end. Not thread-safe.

    Args:
        role: which end this is.
        max_frame: the largest raw frame that this end takes, in bytes; the handshake lowers it to the smaller one.
        nonce, pid: what HELLO must say; for the module only.
    """

    def __init__(
        self,
        role: Role,
        *,
        max_frame: int = m.DEFAULT_MAX_FRAME_BYTES,
        nonce: str | None = None,
        pid: int | None = None,
    ) -> None:
        self.role = role
        self.max_frame = max_frame
        self._nonce, self._pid = nonce, pid
        self._state = State.HELLO
        self._reader = FrameReader()
        self._eof = False
        self._violation: str | None = None
        # The request in flight: None while idle; for the worker also one that cannot be served.
        self._request: m.Request | control.Unreadable | None = None
        self._reply: m.Reply | None = None
        self._raws: list[memoryview] = []
        self._raws_due = 0
        self._raw_size: int | None = None

    @property
    def state(self) -> State:
        return self._state

    # --- receiving ---------------------------------------------------------------------------------------------------

    def get_buffer(self) -> memoryview:
        """Where the transport receives to next; never empty. Call it again after every `buffer_filled`."""
        return self._reader.get_buffer()

    def buffer_filled(self, count: int) -> None:
        """So many bytes came into the lent buffer; 0 is the end of the stream. `next_event` must follow."""
        if count:
            self._reader.buffer_filled(count)
        else:
            self._eof = True

    def next_event(self) -> Event | Literal[NeedData.NEED_DATA]:
        """What the received bytes mean. Raises RemoteProtocolError, and from then on nothing else."""
        if self._violation is not None:
            raise RemoteProtocolError(self._violation)
        try:
            return self._advance()
        except RemoteProtocolError as error:
            self._violation, self._state = str(error), State.FAILED
            raise

    def _advance(self) -> Event | Literal[NeedData.NEED_DATA]:
        while True:
            if self._eof:
                self._state = State.CLOSED
                return Closed(mid_frame=self._reader.started)
            if (length := self._reader.length) is not None:
                self._accept_length(length)
            if (payload := self._reader.take()) is None:
                return NEED_DATA
            event = self._on_raw(payload) if self._raw_is_next else self._on_control(payload)
            if event is not None:
                return event

    @property
    def _raw_is_next(self) -> bool:
        return self._state in (State.REQUEST_RAW, State.REPLY_RAW)

    def _accept_length(self, length: int) -> None:
        """Decide about a frame by its length alone, before anything is allocated for it."""
        if SENDER[self._state] is not self.role.peer:
            raise RemoteProtocolError(f"a frame of {length} bytes in state {self._state.value}, out of turn")
        if self._raw_is_next:
            self._check_raw_length(length)
            self._reader.expect_raw()
            return
        limit = self._control_limit
        if not 0 < length <= limit:
            raise RemoteProtocolError(f"a control frame of {length} bytes; 1 to {limit} are allowed")
        self._reader.expect_control()

    @property
    def _control_limit(self) -> int:
        if self._state in (State.HELLO, State.ACK):
            return MAX_HANDSHAKE_FRAME_BYTES
        return min(m.MAX_JSON_FRAME_BYTES, self.max_frame)

    def _check_raw_length(self, length: int) -> None:
        if length > self.max_frame:
            raise RemoteProtocolError(f"a raw frame of {length} bytes; the limit is {self.max_frame}")
        if isinstance(self._request, control.Unreadable):
            return
        if self._raw_size is None:
            if length % ITEM_BYTES:
                raise RemoteProtocolError(f"a raw frame of {length} bytes, not a whole number of items")
        elif length != self._raw_size:
            raise RemoteProtocolError(f"a raw frame of {length} bytes; its header announced {self._raw_size}")

    def _on_control(self, payload: memoryview) -> Event | None:
        try:
            match self._state:
                case State.HELLO:
                    return self._on_hello(control.decode_hello(payload))
                case State.ACK:
                    return self._on_ack(control.decode_ack(payload))
                case State.IDLE:
                    return self._on_request(control.decode_request(payload))
                case _:
                    return self._on_reply(control.decode_reply(payload))
        except control.Malformed as error:
            raise RemoteProtocolError(f"malformed control frame: {error}") from None

    def _on_hello(self, hello: m.Hello) -> Event:
        if hello.v != m.PROTOCOL_VERSION:
            raise RemoteProtocolError(f"HELLO speaks version {hello.v}, not {m.PROTOCOL_VERSION}")
        if self._nonce is not None and not hmac.compare_digest(hello.nonce.encode(), self._nonce.encode()):
            raise RemoteProtocolError("HELLO has another nonce")
        if self._pid is not None and hello.pid != self._pid:
            raise RemoteProtocolError(f"HELLO names pid {hello.pid}, but {self._pid} was started")
        self._lower_max_frame(hello.max_frame)
        self._move(self.role.peer, Signal.HELLO)
        return HelloReceived(hello)

    def _on_ack(self, ack: m.HelloAck) -> Event:
        if ack.v != m.PROTOCOL_VERSION:
            raise RemoteProtocolError(f"HELLO_ACK speaks version {ack.v}, not {m.PROTOCOL_VERSION}")
        if ack.accept:
            self._lower_max_frame(ack.max_frame)
        self._move(self.role.peer, Signal.ACCEPT if ack.accept else Signal.REFUSE)
        return AckReceived(ack)

    def _lower_max_frame(self, other: int) -> None:
        if not MIN_MAX_FRAME_BYTES <= other < 2**32:
            raise RemoteProtocolError(f"max_frame is {other}; {MIN_MAX_FRAME_BYTES} to {2**32 - 1} are allowed")
        self.max_frame = min(self.max_frame, other)

    def _on_request(self, request: m.Request | m.Shutdown | control.Unreadable) -> Event | None:
        if isinstance(request, m.Shutdown):
            self._move(self.role.peer, Signal.SHUTDOWN)
            return ShutdownReceived()
        self._begin_request(request)
        self._move(self.role.peer, Signal.REQUEST_RAW if self._raws_due else Signal.REQUEST)
        return None if self._raws_due else self._request_event()

    def _begin_request(self, request: m.Request | control.Unreadable) -> None:
        self._request, self._raws = request, []
        if isinstance(request, control.Unreadable):
            self._raws_due, self._raw_size = request.raws, None
            return
        rule = REQUESTS[type(request)]
        self._raws_due, self._raw_size = rule.raws, rule.size(request) if rule.size else None

    def _request_event(self) -> Event:
        request, raws = self._request, self._raws
        self._raws = []
        if isinstance(request, control.Unreadable):
            return RequestUnreadable(request.req_id, request.code, request.msg)
        assert request is not None
        return RequestReceived(request, raws)

    def _on_reply(self, reply: m.Reply) -> Event | None:
        if problem := self._begin_reply(reply):
            raise RemoteProtocolError(problem)
        self._move(self.role.peer, Signal.REPLY_RAW if self._raws_due else Signal.REPLY)
        return None if self._raws_due else self._reply_event()

    def _begin_reply(self, reply: m.Reply) -> str | None:
        """Take up a reply to the request in flight; what is wrong with it, if anything."""
        request = self._request
        assert request is not None
        if reply.req_id != request.req_id:
            return f"a reply to {reply.req_id[:80]!r}; {request.req_id!r} is in flight"
        self._reply, self._raws, self._raws_due, self._raw_size = reply, [], 0, None
        if isinstance(reply, m.Err):
            return None
        rule = self._rule
        if rule is None or type(reply) is not rule.reply:
            return f"{type(reply).__name__} does not answer {type(request).__name__}"
        if getattr(reply, "raw", rule.reply_raws) != rule.reply_raws:
            return f"{type(reply).__name__} announces another number of raw frames than {rule.reply_raws}"
        self._raws_due = rule.reply_raws
        if rule.reply_size is not None:
            self._raw_size = rule.reply_size(request, reply)
            if self._raw_size is None:
                return f"{type(reply).__name__} does not fit its request"
        return None

    @property
    def _rule(self) -> RequestRule | None:
        return REQUESTS[type(self._request)] if isinstance(self._request, m.Request) else None

    def _reply_event(self) -> Event:
        reply, raws = self._reply, self._raws
        assert reply is not None
        self._request, self._reply, self._raws = None, None, []
        return ReplyReceived(reply, raws)

    def _on_raw(self, payload: memoryview) -> Event | None:
        rule = self._rule
        if self._state is State.REPLY_RAW and rule is not None and rule.floats and not all_finite(payload):
            raise RemoteProtocolError("a NaN or infinity in a raw frame")
        replying = self._state is State.REPLY_RAW
        if not isinstance(self._request, control.Unreadable):
            self._raws.append(payload)
        self._raws_due -= 1
        self._move(self.role.peer, Signal.RAW if self._raws_due else Signal.LAST_RAW)
        if self._raws_due:
            return None
        return self._reply_event() if replying else self._request_event()

    # --- sending -----------------------------------------------------------------------------------------------------

    def send(self, message: msgspec.Struct, raws: Sequence[Buffer] = ()) -> list[bytes | memoryview]:
        """The buffers of one message and its raw frames, in order; large ones are not copied.

        Raises LocalProtocolError for what is not our turn, not complete or what the peer would have to refuse; the
        connection is then as it was.
        """
        if SENDER[self._state] is not self.role:
            raise LocalProtocolError(f"{type(message).__name__} in state {self._state.value}: not our turn")
        try:
            payload = control.encode(message)
        except control.Malformed as error:
            raise LocalProtocolError(str(error)) from None
        limit = self._control_limit
        if len(payload) > limit:
            raise LocalProtocolError(f"a control frame of {len(payload)} bytes; the limit is {limit}")
        views = [memoryview(raw).cast("B") for raw in raws]
        self._move_by(message, views)
        buffers: list[bytes | memoryview] = [prefix(len(payload)) + payload]
        for view in views:
            buffers += [prefix(len(view)), view]
        return buffers

    def _move_by(self, message: msgspec.Struct, views: list[memoryview]) -> None:
        with_raws = bool(views)
        match message:
            case m.Hello():
                signal = Signal.HELLO
            case m.HelloAck():
                signal = Signal.ACCEPT if message.accept else Signal.REFUSE
            case m.Shutdown():
                signal = Signal.SHUTDOWN
            case m.Reply():
                signal = Signal.REPLY_RAW if with_raws else Signal.REPLY
            case _:
                signal = Signal.REQUEST_RAW if with_raws else Signal.REQUEST
        if (self.role, signal) not in TABLE[self._state]:
            raise LocalProtocolError(f"{type(message).__name__} in state {self._state.value}")
        if isinstance(message, m.Request):
            self._check_own(message, views)
        elif isinstance(message, m.Reply):
            self._check_own_reply(message, views)
        elif with_raws:
            raise LocalProtocolError(f"{type(message).__name__} has no raw frames")
        if isinstance(message, m.HelloAck) and message.accept:
            self.max_frame = min(self.max_frame, message.max_frame)
        self._move(self.role, signal)
        if with_raws:
            for _ in views[1:]:
                self._move(self.role, Signal.RAW)
            self._move(self.role, Signal.LAST_RAW)

    def _check_own(self, request: m.Request, views: list[memoryview]) -> None:
        self._begin_request(request)
        try:
            self._check_own_raws(request, views)
        except LocalProtocolError:
            self._request = None
            raise

    def _check_own_reply(self, reply: m.Reply, views: list[memoryview]) -> None:
        if problem := self._begin_reply(reply):
            raise LocalProtocolError(problem)
        self._check_own_raws(reply, views)
        rule = self._rule
        if rule is not None and rule.floats and not all(all_finite(view) for view in views):
            raise LocalProtocolError("a NaN or infinity in a raw frame")
        self._request = self._reply = None

    def _check_own_raws(self, message: msgspec.Struct, views: list[memoryview]) -> None:
        if len(views) != self._raws_due:
            raise LocalProtocolError(f"{type(message).__name__} needs {self._raws_due} raw frames, not {len(views)}")
        for view in views:
            try:
                self._check_raw_length(len(view))
            except RemoteProtocolError as error:
                raise LocalProtocolError(str(error)) from None

    def _move(self, sender: Role, signal: Signal) -> None:
        self._state = TABLE[self._state][sender, signal]
