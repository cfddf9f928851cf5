"""The scheduler under everything at once: Hypothesis chooses, `World` checks every promise after each step.

The same seed gives the same steps: SYNAPSE_TEST_SEED chooses another one; a failure prints its steps, shrunk.
"""

from __future__ import annotations

import os
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from synapse.policy.scheduler import BatchWork, Budgets, GenerateWork, SchedulerConfig
from synapse.wire.messages import Measured
from tests.policy.world import World, prompt

SEED = int(os.environ.get("SYNAPSE_TEST_SEED", "1"))
STEPS, EXAMPLES = 120, 260
MAX_QUEUE = st.sampled_from([None, None, 10.0, 1.0, 0.1, 0.0])


class SchedulerMachine(RuleBasedStateMachine):
    steps = 0

    @initialize(
        parallel=st.sampled_from([1, 2, 4, 8]),
        workers=st.integers(1, 3),
        decode=st.sampled_from([True, True, True, False]),
        reuse=st.booleans(),
        tight=st.booleans(),
        texts=st.sampled_from([0, 3]),
        number=st.integers(0, 2**32),
    )
    def build(
        self, parallel: int, workers: int, decode: bool, reuse: bool, tight: bool, texts: int, number: int
    ) -> None:
        measured = Measured(
            context=256,
            micro_batch=512,
            parallel=parallel,
            cells=256 * max(1, parallel // 2) if tight else 0,
            max_texts=texts,
            decode=decode,
            decode_step_ms=10.0,
            embed_budget=256,
            reuse_equal=reuse,
        )
        budgets = Budgets(requests=12, tokens=3000, bytes=11_000)
        self.world = World(measured, SchedulerConfig(budgets=budgets, shared=parallel > 1), workers, number)
        self.world.boot(0)

    @rule(
        lengths=st.lists(st.integers(1, 300), min_size=1, max_size=12),
        bulk=st.booleans(),
        max_queue=MAX_QUEUE,
        query=st.sampled_from([0, 0, 0, 5]),
    )
    def submit_texts(self, lengths: list[int], bulk: bool, max_queue: float | None, query: int) -> None:
        self.count()
        work = BatchWork(
            kind="rerank" if query else "embed",
            query=np.zeros(query, dtype=np.int32) if query else None,
            inputs=[np.zeros(length, dtype=np.int32) for length in lengths],
            bulk=bulk,
            max_queue=max_queue,
        )
        self.world.submit(work)

    @rule(length=st.integers(1, 200), max_tokens=st.integers(1, 60), max_queue=MAX_QUEUE, number=st.integers(0, 99))
    def submit_prompt(self, length: int, max_tokens: int, max_queue: float | None, number: int) -> None:
        self.count()
        ids = prompt(random.Random(number), length)
        work = GenerateWork(prompt=ids, max_tokens=min(max_tokens, 256 - length), max_queue=max_queue, stop=("end",))
        self.world.submit(work)

    @precondition(lambda self: self.world.made)
    @rule(number=st.integers(0, 99), max_queue=MAX_QUEUE)
    def submit_turn(self, number: int, max_queue: float | None) -> None:
        self.count()
        work = self.world.next_turn(random.Random(number), max_queue)
        if work is not None:
            self.world.submit(work)

    @precondition(lambda self: self.world.live())
    @rule(number=st.integers(0, 99))
    def withdraw(self, number: int) -> None:
        self.count()
        live = self.world.live()
        self.world.withdraw(live[number % len(live)])

    @precondition(lambda self: self.world.live())
    @rule(number=st.integers(0, 99), slow=st.booleans())
    def reader(self, number: int, slow: bool) -> None:
        self.count()
        live = [work for work in self.world.live() if isinstance(work, GenerateWork)]
        if live:
            work = live[number % len(live)]
            if slow:
                self.world.scheduler.reader_slow(work)
            else:
                self.world.do(self.world.scheduler.reader_ready(work, self.world.now))

    @precondition(lambda self: self.world.units)
    @rule(number=st.integers(0, 9), what=st.sampled_from(["send", "work", "work", "work", "refuse", "no room"]))
    def unit(self, number: int, what: str) -> None:
        self.count()
        world = self.world
        worker = sorted(world.units)[number % len(world.units)]
        if worker not in world.sent:
            world.send(worker)
        if worker not in world.sent or what == "send":
            return
        if what == "work":
            world.finish(worker)
        elif what == "no room":
            world.no_room(worker)
        else:
            world.refuse(worker)

    @rule(seconds=st.sampled_from([0.001, 0.05, 0.5, 3.0, 31.0]))
    def pass_time(self, seconds: float) -> None:
        self.count()
        self.world.pass_time(seconds)

    @precondition(lambda self: self.world.alive)
    @rule(number=st.integers(0, 9), back_in=st.sampled_from([None, 0.5, 5.0, 30.0]))
    def die(self, number: int, back_in: float | None) -> None:
        self.count()
        worker = sorted(self.world.alive)[number % len(self.world.alive)]
        self.world.die(worker, None if back_in is None else self.world.now + back_in)

    @rule(number=st.integers(0, 2))
    def boot(self, number: int) -> None:
        self.count()
        worker = number % len(self.world.workers)
        if worker not in self.world.alive and not self.world.closed:
            self.world.boot(worker)

    @precondition(lambda self: self.world.alive)
    @rule(number=st.integers(0, 9))
    def ping(self, number: int) -> None:
        self.count()
        worker = sorted(self.world.alive)[number % len(self.world.alive)]
        if self.world.scheduler.idle(worker):
            self.world.do(self.world.scheduler.control(worker, "ping", self.world.now))
            assert worker in self.world.units

    @rule(number=st.integers(0, 9))
    def park_or_reopen(self, number: int) -> None:
        self.count()
        if self.world.closed:
            self.world.open()
        elif number == 0:
            self.world.close()

    def count(self) -> None:
        type(self).steps += 1

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.heal()


def test_every_promise_over_20_000_steps() -> None:
    SchedulerMachine.steps = 0
    machine = seed(SEED)(SchedulerMachine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    assert SchedulerMachine.steps >= 20_000


@pytest.mark.parametrize("number", range(4))
def test_a_seeded_run_replays(number: int) -> None:
    """The same seed, the same ends: what failed once can be had again."""
    assert seeded_run(number, 400) == seeded_run(number, 400)


def seeded_run(number: int, steps: int) -> list[str]:
    """Everything that the machine does, chosen by a plain generator: fast, for long runs."""
    rng = random.Random(number)
    parallel = rng.choice([1, 2, 4, 8])
    measured = Measured(
        context=256,
        micro_batch=512,
        parallel=parallel,
        cells=rng.choice([0, 256 * max(1, parallel // 2)]),
        max_texts=rng.choice([0, 3]),
        decode=rng.random() < 0.8,
        decode_step_ms=10.0,
        embed_budget=256,
        reuse_equal=rng.random() < 0.5,
    )
    budgets = Budgets(requests=12, tokens=3000, bytes=11_000)
    world = World(measured, SchedulerConfig(budgets=budgets, shared=parallel > 1), rng.randint(1, 3), number)
    world.boot(0)
    for _ in range(steps):
        one_step(world, rng)
    world.heal()
    return [world.ends.get(work, "withdrawn") for work in world.works]


def one_step(world: World, rng: random.Random) -> None:
    max_queue = rng.choice([None, None, 10.0, 1.0, 0.1, 0.0])
    live, choice = world.live(), rng.random()
    if choice < 0.05:
        work = world.next_turn(rng, max_queue)
        if work is not None:
            world.submit(work)
    elif choice < 0.15:
        length = rng.randint(1, 200)
        ids = prompt(rng, length)
        world.submit(GenerateWork(prompt=ids, max_tokens=rng.randint(1, 56), max_queue=max_queue, stop=("end",)))
    elif choice < 0.3:
        query = np.zeros(5, dtype=np.int32) if rng.random() < 0.25 else None
        inputs = [np.zeros(rng.randint(1, 300), dtype=np.int32) for _ in range(rng.randint(1, 12))]
        kind = "embed" if query is None else "rerank"
        bulk = rng.random() < 0.5
        world.submit(BatchWork(kind=kind, query=query, inputs=inputs, bulk=bulk, max_queue=max_queue))
    elif choice < 0.35 and live:
        world.withdraw(rng.choice(live))
    elif choice < 0.4 and live:
        work = rng.choice(live)
        if isinstance(work, GenerateWork):
            if rng.random() < 0.4:
                world.scheduler.reader_slow(work)
            else:
                world.do(world.scheduler.reader_ready(work, world.now))
    elif choice < 0.45:
        world.pass_time(rng.choice([0.001, 0.05, 0.5, 3.0, 31.0]))
    elif choice < 0.47 and world.alive:
        world.die(rng.choice(sorted(world.alive)), rng.choice([None, world.now + 0.5, world.now + 30.0]))
    elif choice < 0.5:
        worker = rng.choice(world.workers)
        if worker not in world.alive and not world.closed:
            world.boot(worker)
    elif choice < 0.51 and world.alive:
        worker = rng.choice(sorted(world.alive))
        if world.scheduler.idle(worker):
            world.do(world.scheduler.control(worker, "ping", world.now))
    elif choice < 0.515:
        world.close() if not world.closed else world.open()
    elif world.units:
        worker = rng.choice(sorted(world.units))
        what = rng.random()
        if worker not in world.sent:
            world.send(worker)
        if worker not in world.sent or what < 0.1:
            return
        if what < 0.14:
            world.refuse(worker)
        elif what < 0.2:
            world.no_room(worker)
        else:
            world.finish(worker)
