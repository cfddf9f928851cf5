"""Waiting works in order, and whose turn it is among the flows of one worker."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Literal

from synapse.policy.scheduler.work import State, Work

ServedFlow = Literal["batch", "decode", "bulk"]

WEIGHTS: dict[ServedFlow, float] = {"batch": 4.0, "decode": 4.0, "bulk": 1.0}
"""Shares of a worker's time while all of them have something to do. Ties go to the one that stands first."""


class WorkQueue:
    """Works by `place`, the earliest first. A work's key must not change while it is in here."""

    def __init__(self) -> None:
        self._works: list[Work] = []

    def __len__(self) -> int:
        return len(self._works)

    def __iter__(self) -> Iterator[Work]:
        return iter(self._works)

    def __contains__(self, work: Work) -> bool:
        at = bisect_left(self._works, work.place, key=_place)
        return at < len(self._works) and self._works[at] is work

    def add(self, work: Work) -> None:
        insort(self._works, work, key=_place)

    def remove(self, work: Work) -> None:
        """Take it out; it must be in here."""
        at = bisect_left(self._works, work.place, key=_place)
        if at >= len(self._works) or self._works[at] is not work:
            raise LookupError("not in this queue")
        del self._works[at]


def _place(work: Work) -> tuple[float, int]:
    return work.place


class Deadlines:
    """The latest starts of what waits. Works that left the queue are forgotten when they come up."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Work]] = []

    def add(self, work: Work) -> None:
        if work.deadline is not None:
            heapq.heappush(self._heap, (work.deadline, work.order, work))

    @property
    def next(self) -> float | None:
        """When the next one must have started."""
        while self._heap and self._heap[0][2].state is not State.QUEUED:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[Work]:
        """Take out those whose latest start has come."""
        works = []
        while (deadline := self.next) is not None and deadline <= now:
            works.append(heapq.heappop(self._heap)[2])
        return works


class Turns:
    """Stride scheduling among the flows of one worker: each moves on by the time it used over its weight, the one that
    is furthest behind is next. A flow that comes back after a pause starts level with the others: it neither owes nor
    has saved anything. So a flow that always has something to do gets at least its share, less one unit."""

    def __init__(self) -> None:
        self._passed: dict[ServedFlow, float] = dict.fromkeys(WEIGHTS, 0.0)
        self._active: set[ServedFlow] = set()
        self._level = 0.0

    def pick(self, ready: set[ServedFlow]) -> ServedFlow:
        """Whose turn it is. `ready` is not empty."""
        for flow in ready - self._active:
            self._passed[flow] = max(self._passed[flow], self._level)
        self._active = set(ready)
        flow = min((flow for flow in WEIGHTS if flow in ready), key=self._passed.__getitem__)
        self._level = self._passed[flow]
        return flow

    def charge(self, flow: ServedFlow, seconds: float) -> None:
        """A unit of this flow took so long. An empty one costs a little, so that turns always move on."""
        self._passed[flow] += max(seconds, 0.001) / WEIGHTS[flow]
