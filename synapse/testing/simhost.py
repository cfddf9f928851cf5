"""A host without an operating system: workers are coroutines, sockets are memory, time is whatever trio's clock says.

`SimHost` implements `ports.Host`, so everything above it (`worker.py`, lanes, the supervisor) runs unchanged, and under
`trio.testing.MockClock(autojump_threshold=0)` a day takes a second. A virtual worker speaks the real protocol through
`wire.Connection` around an engine that the caller provides, and misbehaves as its `FaultPlan` says:

    host = SimHost(lambda spec: MyEngine(), FaultPlan(seed))
    async with open_supervisor(config, host=host) as supervisor: ...

An engine has `info` and `handlers` (message type → function of request and raw frame, giving reply and raw frame), as
those of worker_bin have. A handler's exception with a `code` and a `message` is answered as ERR; any other one ends the
worker. Handlers run in no time; `work_s` says how long the virtual worker takes.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from synapse.errors import EngineCrashed
from synapse.ports import WorkerProcess, WorkerSpec
from synapse.testing.faultplan import FaultPlan
from synapse.testing.simstream import PIPE_BYTES
from synapse.testing.simworker import SimEngine, SimProcess
from synapse.wire import messages as m

__all__ = ["Entry", "SimEngine", "SimHost"]


@dataclass(frozen=True)
class Entry:
    """One line of the journal: a request that reached a worker. `raw` is its raw frame."""

    time: float
    worker_id: str
    pid: int
    request: m.Request
    raw: bytes


class SimHost:
    """See the module.

    Args:
        engine: makes the engine of a worker that is spawned; it may look at the spec's argv.
        plan: the faults; None: none.
        work_s: seconds that a request takes; None: 1 ms each.
        faulty: which workers the plan applies to; None: all.
        pipe_bytes: how much a direction of a connection holds before sending blocks.
        latency_s: before what was sent can be received.
        deaf: every worker stops reading once it has been greeted.
        boot_status: how a worker exits that ends at boot.

    Attributes:
        journal: every request that reached a worker, in order.
        alive: virtual processes that have not ended.
    """

    def __init__(
        self,
        engine: Callable[[WorkerSpec], SimEngine],
        plan: FaultPlan | None = None,
        *,
        work_s: Callable[[m.Request], float] | None = None,
        faulty: Callable[[WorkerSpec], bool] | None = None,
        pipe_bytes: int = PIPE_BYTES,
        latency_s: float = 0.0,
        deaf: bool = False,
        boot_status: int = 1,
    ) -> None:
        self.journal: list[Entry] = []
        self.alive: set[int] = set()
        self.pipe_bytes, self.latency_s = pipe_bytes, latency_s
        self.deaf, self.boot_status = deaf, boot_status
        self._engine = engine
        self._plan = plan or FaultPlan(0, sites={})
        self._work_s = work_s or (lambda request: 0.001)
        self._faulty = faulty or (lambda spec: True)
        self._pids = itertools.count(1001)
        self._places: dict[int, str] = {}

    @asynccontextmanager
    async def spawn(self, spec: WorkerSpec) -> AsyncIterator[WorkerProcess]:
        """`ports.Host.spawn`: leaving kills and reaps, whatever happened inside."""
        plan = self._plan if self._faulty(spec) else FaultPlan(0, sites={})
        if plan.strikes("spawn_fails", "spawn"):
            raise EngineCrashed("spawn", "simulated: out of processes")
        process = SimProcess(next(self._pids), self, spec, plan)
        self.alive.add(process.pid)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.live, self._engine(spec), self._work_s)
                try:
                    yield process
                finally:
                    process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()
                    process.stream.close()
                    self._places.pop(process.pid, None)
        except BaseExceptionGroup as group:  # the process raises nothing: this is the block's own, bare
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise

    def place(self, pid: int) -> str:
        """What a virtual process is doing: `boot`, `HELLO`, `idle`, `SHUTDOWN` or a request's type."""
        return self._places.get(pid, "spawn")

    def moved(self, pid: int, place: str) -> None:
        """A virtual process does something else now."""
        self._places[pid] = place

    def received(self, worker_id: str, pid: int, request: m.Request, raw: bytes) -> None:
        """A request reached a virtual worker."""
        self.journal.append(Entry(trio.current_time(), worker_id, pid, request, raw))
