"""What happened, in order: what callers asked and were told, what went to workers and came back, who lived and died.

The verdict over a run is given from its journal alone (`synapse.testing.checkers`). `Traffic` writes the callers'
lines, `Recorder` the workers'; your own code may take the place of either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from synapse.wire import messages as m

Outcome = Literal["served", "left", "not_admitted", "unknown"]


@dataclass(frozen=True)
class Event:
    """Base of all lines. `time` is trio's, in seconds."""

    time: float


@dataclass(frozen=True)
class Asked(Event):
    """A caller began to wait for operation `operation`.

    Attributes:
        parts: how many texts or documents it has; a generation has one.
        max_queue_s: within which it has to start, None for any time.
    """

    operation: int
    kind: Literal["embed", "rerank", "generate"]
    parts: int
    max_queue_s: float | None


@dataclass(frozen=True)
class Ended(Event):
    """What the caller was told. `wrong`: the answer is not what it should be."""

    operation: int
    outcome: Outcome
    wrong: str = ""


@dataclass(frozen=True)
class Spawned(Event):
    worker_id: str
    pid: int


@dataclass(frozen=True)
class Greeted(Event):
    """The first request may go out: HELLO_ACK was sent."""

    pid: int


@dataclass(frozen=True)
class Requested(Event):
    """A request's first byte was handed to a worker's connection; `raw` is its raw frame, in whole."""

    pid: int
    request: m.Request
    raw: bytes


@dataclass(frozen=True)
class Replied(Event):
    """A whole reply came back. `kind` is its type, as in `VECTORS`."""

    pid: int
    kind: str


@dataclass(frozen=True)
class Broke(Event):
    """What came back cannot be read."""

    pid: int
    why: str


@dataclass(frozen=True)
class Exited(Event):
    """A worker is gone and reaped."""

    pid: int
    status: int | None


@dataclass(frozen=True)
class Healed(Event):
    """The faults have ended; what is asked from here on must succeed."""


E = TypeVar("E", bound=Event)


class Journal:
    """An append-only list of events."""

    def __init__(self) -> None:
        self._events: list[Event] = []

    def add(self, event: Event) -> None:
        self._events.append(event)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def of(self, kind: type[E]) -> list[E]:
        """All events of one kind, in order."""
        return [event for event in self._events if isinstance(event, kind)]
