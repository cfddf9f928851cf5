"""Ten thousand requests of all kinds on simulated workers, with cancels, slow readers, crashes and hangs.

The verdict comes from two journals: what callers were told, and what reached a worker. Every request has exactly one
outcome, nothing ran twice, nothing that was called not admitted ran at all, and afterwards every count is zero. Virtual
time: a run takes seconds. SYNAPSE_TEST_SEED chooses another run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from synapse import (
    Generation,
    Lane,
    Limits,
    NotAdmitted,
    OutcomeUnknown,
    Profile,
    Supervisor,
    SupervisorConfig,
    open_supervisor,
)
from synapse.policy.scheduler import Ids
from synapse.testing import SITES, FaultPlan, SimHost
from synapse.wire import messages as m
from tests.lane.lab import expected_text, expected_vectors, nothing_left
from worker_bin.faulty import arithmetic
from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import Plan

SEED = int(os.environ.get("SYNAPSE_TEST_SEED", "1"))
REQUESTS = int(os.environ.get("SYNAPSE_TEST_REQUESTS", "10000"))
ROLES = ("embed", "rerank", "generate")


def marked(number: int, length: int) -> Ids:
    """Ids that begin with the request's number, so that journals can be compared."""
    digits = [number // 250**2 % 250, number // 250 % 250, number % 250]
    return np.asarray([*digits, *([number % 7] * length)], dtype=np.int32)


def number_of(ids: Sequence[int]) -> int:
    return ids[0] * 250**2 + ids[1] * 250 + ids[2]


class Traffic:
    """Callers of all kinds, and what they were told."""

    def __init__(self, lanes: dict[str, list[Lane]], rng: random.Random) -> None:
        self.lanes, self.rng = lanes, rng
        self.outcomes: dict[int, list[str]] = {}
        self.texts: dict[int, int] = {}
        """How many texts a finite request had."""
        self.numbers = iter(range(250**3))

    async def caller(self) -> None:
        rng = self.rng
        number = next(self.numbers)
        self.outcomes[number] = []
        role = rng.choice(ROLES)
        lane = rng.choice(self.lanes[role])
        patience = rng.choice([None, None, None, 0.0, 0.001, 0.05, 3.0])
        try:
            with trio.CancelScope() as scope:
                if rng.random() < 0.1:
                    scope.deadline = trio.current_time() + rng.choice([0.0, 0.001, 0.02, 0.5])
                await self.call(role, lane, number, None if patience is None else patience)
                self.outcomes[number].append("served")
            if scope.cancelled_caught:
                self.outcomes[number].append("left")
        except NotAdmitted:
            self.outcomes[number].append("not_admitted")
        except OutcomeUnknown:
            self.outcomes[number].append("unknown")

    async def call(self, role: str, lane: Lane, number: int, max_queue: float | None) -> None:
        rng = self.rng
        if role == "embed":
            texts = [marked(number, rng.randint(0, 200)) for _ in range(rng.choice([1, 1, 1, 2, 5, 20]))]
            self.texts[number] = len(texts)
            vectors = await lane.embed(texts, max_queue=max_queue, bulk=rng.random() < 0.3)
            np.testing.assert_allclose(vectors, expected_vectors(texts), atol=1e-6)
        elif role == "rerank":
            query = marked(number, 4)
            texts = [marked(number, rng.randint(0, 100)) for _ in range(rng.randint(1, 8))]
            self.texts[number] = len(texts)
            scores = await lane.rerank(query, texts, max_queue=max_queue)
            expected = [arithmetic.score(query.tolist(), text.tolist()) for text in texts]
            np.testing.assert_allclose(scores, expected, atol=1e-6)
        else:
            await self.generate(lane, number, max_queue)

    async def generate(self, lane: Lane, number: int, max_queue: float | None) -> None:
        rng = self.rng
        prompt, n = marked(number, rng.randint(0, 150)), rng.randint(1, 200)
        reading_s = rng.choice([0.0, 0.0, 0.0, 0.2])
        text = ""
        async with lane.generate(Generation(prompt=prompt, max_tokens=n, max_queue=max_queue)) as stream:
            async for delta in stream:
                text += delta.text
                if reading_s:
                    await trio.sleep(reading_s)
        assert stream.finish_reason == "length"
        assert text == expected_text(prompt, n)

    async def run(self, requests: int, at_once: int) -> None:
        """So many requests, never more than `at_once` of them at a time; the order of arrival is random."""
        limiter = trio.CapacityLimiter(at_once)

        async def one() -> None:
            async with limiter:
                await self.caller()

        async with trio.open_nursery() as nursery:
            for _ in range(requests):
                nursery.start_soon(one)


def work_s(request: m.Request) -> float:
    """Virtual seconds: loads take half a second, units some milliseconds, reading a file none."""
    if isinstance(request, m.Ingest):
        return 0.0
    return 0.5 if isinstance(request, m.Load) else 0.005


@asynccontextmanager
async def simulated(directory: Path, plan: FaultPlan, clock: MockClock):  # type: ignore[no-untyped-def]
    """A supervisor over virtual workers with two lanes of each kind, one of which embeds and generates."""
    host = SimHost(
        lambda spec: FaultyEngine(Plan("")),
        plan,
        work_s=work_s,
        faulty=lambda spec: not spec.worker_id.startswith("text"),
    )
    counter = random.Random(SEED)
    config = SupervisorConfig(
        state_dir=directory / "state",
        cache_dir=directory / "cache",
        text_processes=1,
        threads=4,
        limits=Limits(crashes_per_key=10**6, backoff_max_s=2.0, lane_requests=200),
        entropy=counter.randbytes,
    )
    async with open_supervisor(config, host=host) as supervisor:
        lanes: dict[str, list[Lane]] = {}
        for role in ROLES:
            for copy in range(2):
                path = directory / f"{role}{copy}.gguf"
                both = " embeds=yes" if role == "generate" and copy else ""
                path.write_bytes(f"faulty role={role} copy={copy}{both}".encode())
                profile = Profile(workers=1 + copy, parallel=8 if copy else 3, argv=["virtual"])
                lanes.setdefault(role, []).append(supervisor.start(path, profile))
        lanes["embed"].append(lanes["generate"][1])
        # Files are read in threads, of which a clock that jumps knows nothing: it stands still until that is done.
        while any(lane.info is None for kind in lanes.values() for lane in kind):
            await trio.lowlevel.checkpoint()
        clock.autojump_threshold = 0
        for kind in lanes.values():
            for lane in kind:
                await lane.ready()
        yield supervisor, host, lanes
    assert host.alive == set()


def executed(host: SimHost) -> tuple[Counter[int], Counter[int]]:
    """How often a text of each finite request, and the prompt of each generation, reached a worker."""
    texts: Counter[int] = Counter()
    prompts: Counter[int] = Counter()
    for entry in host.journal:
        ids = np.frombuffer(entry.raw, dtype="<i4").tolist()
        if isinstance(entry.request, m.EmbedBatch):
            lengths, skip = [item.n_tokens for item in entry.request.items], 0
        elif isinstance(entry.request, m.Rerank):
            lengths, skip = [item.n_tokens for item in entry.request.candidates], entry.request.query_n_tokens
        elif isinstance(entry.request, m.Decode):
            lengths, skip = [start.n_tokens for start in entry.request.start], 0
        else:
            continue
        target = prompts if isinstance(entry.request, m.Decode) else texts
        at = skip
        for length in lengths:
            target[number_of(ids[at : at + 3])] += 1
            at += length
    return texts, prompts


def judge(traffic: Traffic, host: SimHost) -> None:
    """From the journals alone."""
    texts, prompts = executed(host)
    for number, outcomes in traffic.outcomes.items():
        assert len(outcomes) == 1, f"request {number} ended {outcomes}"
        ran = texts[number] + prompts[number]
        if outcomes[0] == "not_admitted":
            assert ran == 0, f"request {number} was called not admitted, but a worker had it"
        if number in traffic.texts:
            assert ran <= traffic.texts[number], f"request {number} ran twice"
            assert outcomes[0] != "served" or ran == traffic.texts[number]
        else:
            assert ran <= 1, f"generation {number} was replayed"


def all_quiet(supervisor: Supervisor, lanes: dict[str, list[Lane]]) -> bool:
    return (
        all(nothing_left(lane) for kind in lanes.values() for lane in kind) and not supervisor.health().threads_granted
    )


async def simulate(directory: Path, seed: int, requests: int, probability: float) -> tuple[Counter[str], Counter[str]]:
    """One run. Returns how often each outcome and each fault occurred."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    coin = random.Random(seed)
    # Not byte by byte: with a megabyte of ERR it takes longer than all the rest.
    armed = [site for site in SITES if coin.random() < 0.7 and site != "fragment"]
    plan = FaultPlan(seed, sites=dict.fromkeys(armed, probability))
    async with simulated(directory, plan, clock) as (supervisor, host, lanes):
        traffic = Traffic(lanes, random.Random(seed))
        await traffic.run(requests, 300)
        plan.heal()
        with trio.fail_after(300):
            while not all_quiet(supervisor, lanes):  # noqa: ASYNC110 - a state of ours that has no event
                await trio.sleep(0.1)
        judge(traffic, host)
        assert len(traffic.outcomes) == requests
        # A worker that went deaf while idle is found by its PING: within two minutes everything is well again.
        await trio.sleep(120)
        healthy = Traffic(lanes, random.Random(seed))
        await healthy.run(60, 60)
        assert {end for ends in healthy.outcomes.values() for end in ends} <= {"served", "left", "not_admitted"}
    return Counter(ends[0] for ends in traffic.outcomes.values()), plan.fired


@pytest.fixture
def autojump_clock() -> MockClock:
    """Stands still until a test lets it jump."""
    return MockClock()


async def test_ten_thousand_requests_and_every_kind_of_trouble(tmp_path: Path, autojump_clock: MockClock) -> None:
    outcomes, fired = await simulate(tmp_path, SEED, REQUESTS, 0.004)
    print(dict(outcomes), dict(fired))
    assert sum(outcomes.values()) == REQUESTS
    assert min(outcomes[kind] for kind in ("served", "left", "not_admitted", "unknown")) > 0
    assert len(fired) >= 5
