"""A whole life in a second: a supervisor over virtual workers, callers of all kinds, faults, healing, an orderly stop.

Everything above the host is the product's own code; the verdict comes from the journal.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray
from trio.testing import MockClock

from synapse import Lane, Limits, Profile, Supervisor, SupervisorConfig, open_supervisor
from synapse.testing import (
    SAFETY,
    FaultPlan,
    Healed,
    Journal,
    Recorder,
    SimHost,
    Traffic,
    healed,
    no_hang,
    verdict,
)
from synapse.wire import messages as m
from tests.lane.lab import expected_text, expected_vectors, nothing_left
from worker_bin.engine import Handler
from worker_bin.faulty import arithmetic
from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import Plan

Ids = NDArray[np.int32]
ROLES = ("embed", "rerank", "generate")
UNIT_S, LOAD_S = 5.0, 15.0
LIMITS = Limits(
    boot_s=3.0,
    load_base_s=LOAD_S,
    unit_min_s=UNIT_S,
    unit_factor=0.0,
    crashes_per_key=10**6,
    backoff_max_s=1.0,
    lane_requests=200,
)
"""Every deadline is exact, and no crash is one too many."""
RUNNING = tuple(name for name in SAFETY if name != "P15 nothing left")
"""What holds while workers live."""
LIFE_S = 5000.0
"""Virtual seconds that no life takes: only a hang reaches it."""
HEAL_S = 60.0
"""P29: how long after the last fault everything must be ready again, in virtual seconds."""


class Arithmetic:
    """What the faulty engine's answers must be; `synapse.testing.Oracle`."""

    def vectors(self, texts: Sequence[Ids], got: NDArray[np.float32]) -> str:
        return "" if np.allclose(got, expected_vectors(texts), atol=1e-6) else "wrong vectors"

    def scores(self, query: Ids, documents: Sequence[Ids], got: NDArray[np.float32]) -> str:
        expected = [arithmetic.score(query.tolist(), document.tolist()) for document in documents]
        return "" if np.allclose(got, expected, atol=1e-6) else "wrong scores"

    def text(self, prompt: Ids, max_tokens: int, got: str) -> str:
        return "" if got == expected_text(prompt, max_tokens) else "wrong text"


REAL = {"elapsed_ms": 5.0, "cold_load_ms": 500.0, "rss_mb": 10.0}
"""What an engine measures of the real world, and what stands there instead: a virtual one has no other clock."""


class Timeless(FaultyEngine):
    """The faulty engine, with nothing of the real world in its answers."""

    def __init__(self) -> None:
        super().__init__(Plan(""))
        self.handlers = {kind: _timeless(handler) for kind, handler in self.handlers.items()}


def _timeless(handler: Handler) -> Handler:
    def handle(request: Any, raw: memoryview) -> tuple[Any, Any]:
        reply, out = handler(request, raw)
        for name, value in REAL.items():
            if hasattr(reply, name):
                setattr(reply, name, value)
        return reply, out

    return handle


@dataclass
class Life:
    """One simulated run."""

    supervisor: Supervisor
    host: SimHost
    recorder: Recorder
    journal: Journal
    plan: FaultPlan
    lanes: list[Lane]
    seed: int
    traffics: int = field(default=0)

    def traffic(self, **options: object) -> Traffic:
        self.traffics += 1
        first = (self.traffics - 1) * 100_000
        return Traffic(self.lanes, self.journal, self.seed + self.traffics, oracle=Arithmetic(), first=first, **options)  # type: ignore[arg-type]

    def quiet(self) -> bool:
        return all(nothing_left(lane) for lane in self.lanes) and not self.supervisor.health().threads_granted

    def held(self) -> str:
        """What is not free, in words."""
        counts = {lane.path.stem: lane.scheduler.counts() for lane in self.lanes if not nothing_left(lane)}
        return f"{counts}, {self.supervisor.health().threads_granted} threads"

    async def heal(self) -> None:
        """End the faults; afterwards everything is ready within HEAL_S, and what is asked is served (P29)."""
        self.plan.heal()
        self.journal.add(Healed(trio.current_time()))
        until = trio.current_time() + HEAL_S
        await trio.sleep_until(until)
        for lane in self.lanes:
            assert lane.state == "loaded", f"{lane.path.name} is {lane.state} {HEAL_S:g} s after the last fault"
            for worker in lane.health().workers:
                assert worker.state == "idle", f"a worker of {lane.path.name} is {worker.state}"
        with trio.move_on_after(1) as patience:
            while not self.quiet():  # noqa: ASYNC110 - a PING, perhaps; it has no event
                await trio.sleep(0.001)
        assert not patience.cancelled_caught, (
            f"P15, not given back: {self.held()}; {verdict(self.journal, RUNNING)[:5]}"
        )
        await self.traffic().run(20, 20)


def work_s(request: m.Request) -> float:
    """Virtual seconds: loads take half a second, units some milliseconds, reading a file none."""
    if isinstance(request, m.Ingest):
        return 0.0
    return 0.5 if isinstance(request, m.Load) else 0.005


@asynccontextmanager
async def life(
    directory: Path,
    plan: FaultPlan,
    *,
    seed: int = 1,
    roles: Sequence[str] = ROLES,
    limits: Limits = LIMITS,
    profile: Profile | None = None,
    pipe_bytes: int = 65536,
    latency_s: float = 0.0,
    work: Callable[[m.Request], float] = work_s,
    ready: bool = True,
    faulty: Sequence[str] = ROLES,
) -> AsyncIterator[Life]:
    """A supervisor with one lane of each role. The clock jumps from when the files are read. On leaving, everything is
    stopped, and the journal is judged.

    `faulty`: the roles whose workers the plan applies to. Must run under a MockClock that stands still
    (`autojump_clock` of tests/promises).
    """
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    host = SimHost(
        lambda spec: Timeless(),
        plan,
        work_s=work,
        faulty=lambda spec: spec.env.get("ROLE") in faulty,
        pipe_bytes=pipe_bytes,
    )
    journal = Journal()
    recorder = Recorder(host, journal)
    config = SupervisorConfig(
        state_dir=directory / "state",
        cache_dir=directory / "cache",
        text_processes=1,
        threads=4,
        limits=limits,
        entropy=random.Random(seed).randbytes,
    )
    clock.autojump_threshold = float("inf")
    async with open_supervisor(config, host=recorder) as supervisor:
        lanes = []
        for role in roles:
            path = directory / f"{role}.gguf"
            path.write_bytes(f"faulty role={role}".encode())
            chosen = replace(profile or Profile(workers=2, parallel=3), argv=["virtual"], env={"ROLE": role})
            lanes.append(lane := supervisor.start(path, chosen))
            # Files are read in threads, of which a clock that jumps knows nothing: it stands still meanwhile. One lane
            # after the other, so that which thread is faster changes nothing.
            while lane.info is None:
                await trio.lowlevel.checkpoint()
        clock.autojump_threshold, host.latency_s = 0, latency_s
        if ready:
            for lane in lanes:
                await lane.ready()
        with trio.move_on_after(LIFE_S) as bound:
            yield Life(supervisor, host, recorder, journal, plan, lanes, seed)
        assert not bound.cancelled_caught, f"P3, somebody waits for ever: {verdict(journal)[:5]}"
    assert host.alive == set()
    problems = verdict(journal)
    assert problems == [], problems[:10]


def judge_times(lived: Life, slack_s: float = 1e-6) -> None:
    """P3, exact in virtual time, and P29."""
    problems = no_hang(lived.journal, unit_s=UNIT_S, load_s=LOAD_S, slack_s=slack_s)
    if lived.journal.of(Healed):
        problems += healed(lived.journal, within_s=HEAL_S)
    assert problems == [], problems[:10]
