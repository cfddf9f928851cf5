"""What happens at one exact moment: a deadline to the tick, a cancellation at every checkpoint, a stop at any step."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from synapse import EngineCrashed, Generation, Lane, Profile, SynapseError
from synapse.ports import WorkerSpec
from synapse.testing import FaultPlan, SimHost, marked
from synapse.wire import messages as m
from synapse.worker import open_worker
from tests.lane.lab import nothing_left
from tests.promises.lives import LIMITS, life
from tests.promises.scale import measured, scaled
from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import Plan

DEADLINE_S = 1.0
TICK_S = 1e-6


@pytest.mark.parametrize(
    ("takes_s", "ends"),
    [(DEADLINE_S - TICK_S, {"reply"}), (DEADLINE_S, {"reply", "timeout"}), (DEADLINE_S + TICK_S, {"timeout"})],
)
async def test_a_reply_one_tick_around_its_deadline(autojump_clock: MockClock, takes_s: float, ends: set[str]) -> None:
    """B3, 45: before it is a reply, after it is a timeout, and at it one of both; at its deadline it is over."""
    autojump_clock.autojump_threshold = 0
    host = SimHost(lambda spec: FaultyEngine(Plan("")), work_s=lambda request: takes_s)
    async with open_worker(host, WorkerSpec("w1", ["virtual"], "0" * 16), LIMITS) as worker:
        for number in range(20):
            began = trio.current_time()
            try:
                await worker.call(m.Ping(req_id=str(number)), timeout_s=DEADLINE_S)
                end = "reply"
            except EngineCrashed as crash:
                end = crash.stage
            assert end in ends
            assert trio.current_time() - began <= DEADLINE_S + TICK_S / 2
            if end == "timeout":
                break


class CancelAfter(trio.abc.Instrument):
    """Cancels a scope when a task (None: any) is about to be run for the n-th time."""

    def __init__(self, scope: trio.CancelScope, steps: int, task: trio.lowlevel.Task | None) -> None:
        self.scope, self.left, self.task = scope, steps, task

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.task is None or task is self.task:
            self.left -= 1
            if self.left == 0:
                self.scope.cancel()


async def _steps_until_done(call: Callable[[], Awaitable[object]], steps: int) -> bool:
    """Cancel a call at its n-th step; True where it was over before."""
    with trio.CancelScope() as scope:
        instrument = CancelAfter(scope, steps, trio.lowlevel.current_task())
        trio.lowlevel.add_instrument(instrument)
        try:
            await call()
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return not scope.cancelled_caught


async def _generate(lane: Lane) -> None:
    async with lane.generate(Generation(prompt=marked(7, 50), max_tokens=100, max_queue=None)) as stream:
        async for _ in stream:
            await trio.sleep(0.001)


async def test_a_caller_cancelled_at_every_checkpoint(tmp_path: Path, autojump_clock: MockClock) -> None:
    """B3, 46, and P16: each kind of call is cancelled at its first step, its second, ... until it is over before. Each
    time everything that it held is given back, and the lane serves on."""
    steps = 0
    async with life(tmp_path, FaultPlan(0, sites={}), profile=Profile(parallel=2)) as lived:
        embed, rerank, generate = lived.lanes
        calls: list[tuple[Lane, Callable[[], Awaitable[object]]]] = [
            (embed, lambda: embed.embed([marked(5, 200)] * 5, max_queue=None)),
            (rerank, lambda: rerank.rerank(marked(6, 3), [marked(6, 90)] * 4, max_queue=None)),
            (generate, lambda: _generate(generate)),
        ]
        for lane, call in calls:
            for step in range(1, 10_000):
                done = await _steps_until_done(call, step)
                with trio.fail_after(60):
                    while not nothing_left(lane):  # noqa: ASYNC110 - a state of ours that has no event
                        await trio.sleep(0.01)
                steps += 1
                if done:
                    break
    assert steps > 10
    measured("P16", f"cancelled at each of {steps} steps, everything given back")


async def test_a_stop_at_any_step(tmp_path: Path, autojump_clock: MockClock) -> None:
    """B3, 49, and P2: the supervisor is stopped at its first step, its second, ... through spawn, handshake, load, work
    and kill: nothing is left, and every caller was answered or has left."""
    rng = random.Random(1)
    total = await _run_until(tmp_path, autojump_clock, 10**9, hang=False)
    moments = sorted(rng.sample(range(1, total), min(scaled(25, 2000), total - 1)))
    for number, step in enumerate(moments):
        await _run_until(tmp_path, autojump_clock, step, hang=number % 2 == 1)
    measured("P2", f"stopped at {len(moments)} of {total} steps, nothing left")


async def _run_until(directory: Path, clock: MockClock, steps: int, *, hang: bool) -> int:
    """One life with traffic, stopped at that step of any task. Returns how many steps there were."""
    plan = FaultPlan(steps, sites={"hang": 0.2, "crash_in_load": 0.2} if hang else {})
    with trio.CancelScope() as scope:
        instrument = CancelAfter(scope, steps, None)
        try:
            async with life(directory, plan, ready=False) as lived:
                trio.lowlevel.add_instrument(instrument)
                for lane in lived.lanes:
                    try:
                        await lane.ready()
                    except SynapseError:
                        assert hang
                await lived.traffic().run(10, 10)
                await lived.traffic().run(10, 10)
        finally:
            trio.lowlevel.remove_instrument(instrument)
    return steps - instrument.left
