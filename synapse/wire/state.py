"""The one table of a connection: who may send what, and what follows.

Both ends run the same table and it does not know which end it serves: a state belongs to the connection, a signal says
who sent which kind of frame. A pair that is not in the table is a violation by its sender. All transitions are here.
"""

from __future__ import annotations

from enum import Enum


class Role(Enum):
    """The two ends."""

    MODULE = "module"
    WORKER = "worker"

    @property
    def peer(self) -> Role:
        return Role.WORKER if self is Role.MODULE else Role.MODULE


class State(Enum):
    """Where a connection is. In REQUEST_RAW and REPLY_RAW the next frame is raw, elsewhere it is a control frame."""

    HELLO = "hello"
    ACK = "ack"
    IDLE = "idle"
    REQUEST_RAW = "request_raw"
    BUSY = "busy"
    REPLY_RAW = "reply_raw"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class Signal(Enum):
    """What was sent. `..._RAW`: raw frames follow; RAW: one that others follow; LAST_RAW: the last of them."""

    HELLO = "HELLO"
    ACCEPT = "HELLO_ACK accept"
    REFUSE = "HELLO_ACK refuse"
    REQUEST = "request"
    REQUEST_RAW = "request + raw"
    REPLY = "reply or ERR"
    REPLY_RAW = "reply + raw"
    RAW = "raw frame"
    LAST_RAW = "last raw frame"
    SHUTDOWN = "SHUTDOWN"


TABLE: dict[State, dict[tuple[Role, Signal], State]] = {
    State.HELLO: {(Role.WORKER, Signal.HELLO): State.ACK},
    State.ACK: {
        (Role.MODULE, Signal.ACCEPT): State.IDLE,
        (Role.MODULE, Signal.REFUSE): State.CLOSING,
    },
    State.IDLE: {
        (Role.MODULE, Signal.REQUEST): State.BUSY,
        (Role.MODULE, Signal.REQUEST_RAW): State.REQUEST_RAW,
        (Role.MODULE, Signal.SHUTDOWN): State.CLOSING,
    },
    State.REQUEST_RAW: {
        (Role.MODULE, Signal.RAW): State.REQUEST_RAW,
        (Role.MODULE, Signal.LAST_RAW): State.BUSY,
    },
    State.BUSY: {
        (Role.WORKER, Signal.REPLY): State.IDLE,
        (Role.WORKER, Signal.REPLY_RAW): State.REPLY_RAW,
    },
    State.REPLY_RAW: {
        (Role.WORKER, Signal.RAW): State.REPLY_RAW,
        (Role.WORKER, Signal.LAST_RAW): State.IDLE,
    },
    State.CLOSING: {},
    State.CLOSED: {},
    State.FAILED: {},
}
"""state → (sender, signal) → next state. The stream's end leads to CLOSED, a violation to FAILED, from anywhere."""

SENDER: dict[State, Role | None] = {
    state: next((sender for sender, _ in cells), None) for state, cells in TABLE.items()
}
"""Whose turn it is: at every moment at most one end may send."""


def as_markdown() -> str:
    """The table as docs/protocol.md shows it."""
    lines = ["| state | who | sends | next state |", "|---|---|---|---|"]
    for state, cells in TABLE.items():
        for (sender, signal), following in cells.items():
            lines.append(f"| `{state.value}` | {sender.value} | {signal.value} | `{following.value}` |")
        if not cells:
            lines.append(f"| `{state.value}` | nobody | | |")
    return "\n".join(lines) + "\n"
