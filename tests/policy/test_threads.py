"""Threads over all lanes: never more than cores, in turn, and a hanging unit stops nobody for long (G6)."""

from __future__ import annotations

import random

import numpy as np

from synapse.policy.scheduler import BatchWork, GenerateWork, Scheduler, StartUnit
from synapse.policy.threads import Threads
from synapse.wire.messages import Measured


def test_a_flexible_unit_takes_what_is_free() -> None:
    threads = Threads(4)
    first, second, third = (threads.share() for _ in range(3))
    assert first.take(1, 4, 0.0) == 4
    assert second.take(1, 4, 0.0) is None
    first.give(4)
    assert second.take(1, 3, 0.1) == 3
    assert third.take(1, 4, 0.1) == 1


def test_nobody_overtakes_who_waits_for_more() -> None:
    woken: list[str] = []
    threads = Threads(2)
    small = threads.share(lambda: woken.append("small"))
    large = threads.share(lambda: woken.append("large"))
    other = threads.share(lambda: woken.append("other"))
    assert small.take(1, 1, 0.0) == 1
    assert large.take(2, 2, 0.0) is None
    assert other.take(1, 1, 0.0) is None, "one is free, but it is the large one's turn"
    small.give(1)
    assert woken == ["large"]
    assert large.take(2, 2, 0.2) == 2
    large.give(2)
    assert woken == ["large", "other"]


def test_who_has_nothing_to_do_leaves_the_line() -> None:
    woken: list[str] = []
    threads = Threads(1)
    busy, bored, next_one = threads.share(), threads.share(), threads.share(lambda: woken.append("next"))
    assert busy.take(1, 1, 0.0) == 1
    assert bored.take(1, 1, 0.0) is None
    assert next_one.take(1, 1, 0.0) is None
    busy.give(1)
    assert woken == [], "it is the other one's turn"
    bored.renounce()
    assert woken == ["next"]


def test_patience_ends_behind_a_unit_that_hangs() -> None:
    threads = Threads(2, patience_s=1.0)
    hung, waiting = threads.share(), threads.share()
    assert hung.take(2, 2, 0.0) == 2
    assert waiting.take(1, 2, 0.0) is None
    assert waiting.retry_at == 1.0
    assert waiting.take(1, 2, 0.9) is None
    assert waiting.take(1, 2, 1.0) == 1
    waiting.give(1)
    hung.give(2)
    assert threads.granted == 0


def test_three_lanes_share_two_cores() -> None:
    """Schedulers over one `Threads`: at most two threads at a time, every lane gets its turn, all come back."""
    rng = random.Random(5)
    threads = Threads(2, patience_s=1e9)
    due: set[int] = set()
    generate = Measured(context=256, parallel=4, threads=2, decode=True, threads_equal=True)
    fixed = Measured(context=256, micro_batch=256, parallel=4, threads=2, embed_budget=64)
    lanes = [Scheduler(threads=threads.share(lambda number=number: due.add(number))) for number in range(3)]
    running: dict[int, StartUnit] = {}
    done = [0, 0, 0]
    now = 0.0

    def take(lane: int, effects: list[object]) -> None:
        for effect in effects:
            if isinstance(effect, StartUnit):
                running[lane] = effect

    for lane, measured in enumerate((generate, fixed, fixed)):
        take(lane, list(lanes[lane].worker_ready(0, measured, now)))
    for _ in range(60):
        inputs = [np.zeros(50, dtype=np.int32)]
        take(0, list(lanes[0].submit(GenerateWork(prompt=inputs[0], max_tokens=5, max_queue=None), now)))
        take(1, list(lanes[1].submit(BatchWork(inputs=inputs, max_queue=None), now)))
        take(2, list(lanes[2].submit(BatchWork(inputs=inputs, max_queue=None), now)))
    while running:
        assert sum(start.unit.threads for start in running.values()) == threads.granted <= 2
        lane = rng.choice(sorted(running))
        start = running.pop(lane)
        done[lane] += 1
        lanes[lane].handed_over(0)
        now += 0.05
        progress = []
        if lane == 0:
            from synapse.wire.messages import SequenceProgress

            seats = [*start.unit.continue_, *(one.seat for one in start.unit.start)]  # type: ignore[union-attr]
            progress = [SequenceProgress(seq=seat, ids=[1], n_gen=1, finish_reason="length") for seat in seats]
        take(lane, list(lanes[lane].unit_done(0, now, elapsed=0.05, progress=progress)))
        while due:
            number = due.pop()
            take(number, list(lanes[number].tick(now)))
    assert threads.granted == 0
    assert all(lane.counts().requests == 0 for lane in lanes)
    assert done[1] == done[2] == 60
