"""Whole lives in virtual time: swarms of faults, quarantine, overload, replay (docs/PROMISES.md)."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from trio.testing import MockClock

from synapse import EngineCrashed, LaneUnavailable, Limits, NotAdmitted, Profile, Quarantined
from synapse.testing import FaultPlan, Journal, marked, outcomes
from synapse.testing.simworker import UNKILLABLE_S
from tests.promises.lives import LIMITS, judge_times, life
from tests.promises.scale import measured, scaled

SEED = int(os.environ.get("SYNAPSE_TEST_SEED", "1"))
ROOT = Path(__file__).parents[2]
UNWRITTEN = 10_000_000
"""Operations from here on are not in the journal."""


async def test_swarms_of_faults(tmp_path: Path, autojump_clock: MockClock) -> None:
    """P3 to P7, P15, P16, P29 over many lives; in each of them other faults are armed (two coins)."""
    lives, operations = scaled(8, 1000), 100
    ended: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    for seed in range(SEED * 10_000, SEED * 10_000 + lives):
        plan = FaultPlan(seed, probability=0.02, armed=0.5)
        latency_s = 0.002 if seed % 3 == 0 else 0.0
        async with life(
            tmp_path, plan, seed=seed, latency_s=latency_s, pipe_bytes=512 if seed % 4 == 0 else 65536
        ) as lived:
            await lived.traffic().run(operations, 40)
            await lived.heal()
        judge_times(lived, slack_s=UNKILLABLE_S + 1 if plan.fired["unkillable"] else 0.5)
        ended.update(outcomes(lived.journal))
        fired.update(plan.fired)
    assert min(ended[kind] for kind in ("served", "left", "not_admitted", "unknown")) > 0
    figure = f"{lives} lives, {sum(ended.values())} operations {dict(ended)}, {sum(fired.values())} faults"
    for promise in ("P3", "P4", "P5", "P6", "P7", "P16", "P29"):
        measured(promise, f"0 violations in {figure}")


async def test_quarantine_is_local(tmp_path: Path, autojump_clock: MockClock) -> None:
    """P12: one model crashes for ever and is quarantined; the other one beside it serves everything."""
    plan = FaultPlan(1, sites={"crash_in_request": 1.0})
    limits = replace(LIMITS, crashes_per_key=3)
    operations = scaled(50, 5000)
    async with life(
        tmp_path, plan, roles=["embed", "rerank"], limits=limits, profile=Profile(), faulty=["embed"]
    ) as lived:
        bad, good = lived.lanes
        for _ in range(3):
            with pytest.raises(EngineCrashed):
                await bad.embed([marked(UNWRITTEN, 3)], max_queue=None)
        with pytest.raises(Quarantined):
            await bad.embed([marked(UNWRITTEN, 3)], max_queue=None)
        lived.lanes = [good]
        await lived.traffic(leaving=0.0, patience_s=[None]).run(operations, 50)
        assert outcomes(lived.journal) == Counter(served=operations)
        assert bad.state == "quarantined"
    measured("P12", f"{operations} of {operations} operations of the model beside it served")


async def test_a_quarantine_and_what_is_asked_at_that_moment(tmp_path: Path, autojump_clock: MockClock) -> None:
    """B3, 48: a probe and a request at one moment, in both orders: each is answered, nothing hangs."""
    plan = FaultPlan(1, sites={"crash_in_load": 1.0})
    limits = replace(LIMITS, crashes_per_key=3)
    async with life(tmp_path, plan, roles=["embed"], limits=limits, profile=Profile(), ready=False) as lived:
        (lane,) = lived.lanes
        with pytest.raises(Quarantined):
            await lane.ready()
        for order in (0, 1):
            ends: list[str] = []

            async def probe(ends: list[str] = ends) -> None:
                try:
                    await lane.probe()
                except Quarantined:
                    ends.append("quarantined again")

            async def ask(ends: list[str] = ends) -> None:
                with pytest.raises(LaneUnavailable):
                    await lane.embed([marked(UNWRITTEN, 3)], max_queue=None)
                ends.append("refused")

            async with trio.open_nursery() as nursery:
                for call in (probe, ask) if order else (ask, probe):
                    nursery.start_soon(call)
            assert sorted(ends) == ["quarantined again", "refused"]
        plan.heal()
        await lane.probe()
        assert (await lane.embed([marked(UNWRITTEN, 3)])).shape == (1, 8)


async def test_overload_is_polite(tmp_path: Path, autojump_clock: MockClock) -> None:
    """P30: ten times the capacity for a minute: the queue stays within its bound, refusals come at once, and as much
    is served as without the overload."""
    seconds = scaled(1, 60)
    limits = replace(LIMITS, lane_requests=64)
    usual, _ = await _offered(tmp_path, limits, 16, seconds)
    served, refused = await _offered(tmp_path, limits, 160, seconds)
    assert refused > 0
    assert served >= 0.9 * usual
    measured(
        "P30",
        f"{seconds} virtual s at ten times the capacity: {served / usual:.0%} of the goodput, all refusals at once",
    )


async def _offered(directory: Path, limits: Limits, callers: int, seconds: float) -> tuple[int, int]:
    """So many callers ask again and again for a while: how many were served, how many refused."""
    ended: Counter[str] = Counter()
    async with life(
        directory, FaultPlan(0, sites={}), roles=["embed"], limits=limits, profile=Profile(parallel=1)
    ) as lived:
        (lane,) = lived.lanes
        until = trio.current_time() + seconds

        async def caller(number: int) -> None:
            while (began := trio.current_time()) < until:
                try:
                    await lane.embed([marked(UNWRITTEN + number, 5)], max_queue=None)
                    ended["served"] += 1
                except NotAdmitted:
                    ended["refused"] += 1
                    assert trio.current_time() - began <= 0.020
                    await trio.sleep(0.02)
                assert lane.health().queued <= limits.lane_requests

        async with trio.open_nursery() as nursery:
            for number in range(callers):
                nursery.start_soon(caller, number)
    return ended["served"], ended["refused"]


async def test_a_stalled_event_loop_hangs_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    """B3, 58: the loop stands still for five seconds, again and again. What it costs is typed; then all is well."""
    stalls = 0

    async with life(tmp_path, FaultPlan(0, sites={})) as lived:
        done = trio.Event()

        async def stall() -> None:
            nonlocal stalls
            while not done.is_set():
                await trio.sleep(0.05)
                autojump_clock.jump(5.0)
                stalls += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stall)
            while stalls < scaled(3, 100):
                await lived.traffic().run(50, 20)
            done.set()
        await lived.heal()
    judge_times(lived, slack_s=30.0)
    measured("B3", f"58, the event loop stalled: {stalls} times")


async def _at_once(call: Callable[..., object], *args: object, **options: object) -> object:
    """In place of a thread, whose speed would decide who is first."""
    await trio.lowlevel.checkpoint()
    return call(*args)


def trace_of(seed: int) -> str:
    """A digest over everything that happened in a life, times included."""
    from trio._core import _run

    clock = MockClock()
    _run._ALLOW_DETERMINISTIC_SCHEDULING = True
    _run._r.seed(seed)
    found: list[Journal] = []

    async def main(directory: Path) -> None:
        plan = FaultPlan(seed, probability=0.03)
        async with life(directory, plan, seed=seed) as lived:
            await lived.traffic().run(60, 20)
            await lived.heal()
        found.append(lived.journal)

    threaded = trio.to_thread.run_sync
    trio.to_thread.run_sync = _at_once
    try:
        with TemporaryDirectory() as directory:
            trio.run(main, Path(directory), clock=clock)
            lines = [repr(event).replace(directory, "DIR") for event in found[0]]
    finally:
        trio.to_thread.run_sync = threaded
        _run._ALLOW_DETERMINISTIC_SCHEDULING = False
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def test_a_seed_replays_in_every_interpreter() -> None:
    """P26: the same seed, the same journal to the last digit of each time, twice here and in an interpreter with other
    hashes."""
    seeds = range(SEED, SEED + scaled(2, 200))
    here = [trace_of(seed) for seed in seeds]
    assert [trace_of(seed) for seed in seeds] == here
    assert len(set(here)) == len(here)
    code = "import sys; from tests.promises.test_lives import trace_of\nfor s in sys.argv[1:]: print(trace_of(int(s)))"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, seeds)],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == here
    measured("P26", f"{len(here)} seeds equal, three times each, in two interpreters")


def test_the_wall_clock_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """P25: a clock that jumps by a day, backwards too, and crawls: the same journal."""
    before = trace_of(SEED)
    real, calls = time.time, 0

    def mad() -> float:
        nonlocal calls
        calls += 1
        return real() + (-1) ** calls * 86_400.0 * calls

    monkeypatch.setattr(time, "time", mad)
    assert trace_of(SEED) == before
    measured("P25", "no event moved while the wall clock jumped by days")
