"""Both ends of a connection back to back, through a wire that may cut the bytes anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from synapse.errors import LocalProtocolError, RemoteProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import NEED_DATA, Buffer, Connection, Event
from synapse.wire.state import Role

NONCE = "0123456789abcdef"
PID = 4711
HELLO = m.Hello(v=1, nonce=NONCE, engine=m.EngineInfo("tiny", "1"), pid=PID, max_frame=2**26)


def connection(role: Role, max_frame: int = 2**26) -> Connection:
    """A fresh end; the module's expects NONCE and PID."""
    if role is Role.MODULE:
        return Connection(role, max_frame=max_frame, nonce=NONCE, pid=PID)
    return Connection(role, max_frame=max_frame)


def feed(end: Connection, data: Buffer) -> list[Event]:
    """Give `data` to this end as a transport would; the events that came of it."""
    events: list[Event] = []
    view = memoryview(data).cast("B")
    while len(view):
        room = end.get_buffer()
        assert len(room) > 0
        count = min(len(room), len(view))
        room[:count] = view[:count]
        view = view[count:]
        end.buffer_filled(count)
        while (event := end.next_event()) is not NEED_DATA:
            events.append(event)
    return events


class Pair:
    """A module's and a worker's end. `say` sends from one and delivers to the other."""

    def __init__(self, max_frame: int = 2**26) -> None:
        self.module = connection(Role.MODULE, max_frame)
        self.worker = connection(Role.WORKER)

    def say(
        self, sender: Role, message: m.Hello | m.HelloAck | m.Request | m.Reply | m.Shutdown, *raws: Buffer
    ) -> Event:
        """The one event that this message causes at the other end."""
        ends = {Role.MODULE: self.module, Role.WORKER: self.worker}
        data = b"".join(bytes(buffer) for buffer in ends[sender].send(message, raws))
        (event,) = feed(ends[sender.peer], data)
        return event

    def greet(self) -> Pair:
        self.say(Role.WORKER, HELLO)
        self.say(Role.MODULE, m.HelloAck(v=1, accept=True, max_frame=self.module.max_frame))
        return self


def greeted(role: Role) -> Connection:
    """One end after the handshake."""
    pair = Pair().greet()
    return pair.module if role is Role.MODULE else pair.worker


def outcome(end: Connection, pieces: Iterable[Buffer], answers: Sequence[tuple[object, list[Buffer]]]) -> list[str]:
    """Everything that a stream of bytes makes of one end, as text: its events and how it failed, if it did.

    Whenever it is this end's turn, it sends the next of `answers`, until one does not fit what was asked.
    """
    seen: list[str] = []
    waiting = list(answers)

    def speak() -> None:
        while waiting and _may_speak(end):
            message, raws = waiting.pop(0)
            try:
                end.send(message, raws)  # type: ignore[arg-type]
            except LocalProtocolError as error:
                waiting.clear()
                seen.append(f"no answer: {error}")

    speak()
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while len(view):
            room = end.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            end.buffer_filled(count)
            try:
                while (event := end.next_event()) is not NEED_DATA:
                    seen.append(describe(event))
                    speak()
            except RemoteProtocolError as error:
                return [*seen, f"violation: {error}"]
    end.buffer_filled(0)
    event = end.next_event()
    assert event is not NEED_DATA
    return [*seen, describe(event)]


def describe(event: Event) -> str:
    raws = [bytes(raw).hex() for raw in getattr(event, "raws", [])]
    return f"{event} {raws}".replace("<memory at ", "").split(" raws=")[0] + f" {raws}"


def _may_speak(end: Connection) -> bool:
    from synapse.wire.state import SENDER

    return SENDER[end.state] is end.role
