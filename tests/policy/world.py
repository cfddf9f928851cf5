"""A world around one scheduler: callers, workers with an engine of their own, a clock. It carries out effects, lets
workers work, and checks every promise after every event. Both the state machine and the seeded run drive it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import numpy as np

from synapse.errors import EngineCrashed, EngineRefused, LaneUnavailable, NotAdmitted, Overloaded, SynapseError
from synapse.policy.scheduler import (
    Admitted,
    AnyUnit,
    BatchUnit,
    BatchWork,
    Completed,
    ControlUnit,
    DecodeUnit,
    Effect,
    Failed,
    GenerateUnit,
    GenerateWork,
    Progressed,
    Rejected,
    Scheduler,
    SchedulerConfig,
    StartUnit,
    State,
    Work,
)
from synapse.wire.messages import Measured, SequenceError, SequenceProgress

MAX_UNIT_S = 0.25
STARVED_S = 8 * MAX_UNIT_S + 4 * MAX_UNIT_S
"""Bulk has a ninth of the time: the others may use eight units' time between two of its own, and what is under way."""


@dataclass
class Resident:
    """One sequence as the engine has it."""

    kv: list[int]
    work: GenerateWork | None = None
    generated: int = 0
    last: int = -1
    """Drawn, not evaluated yet."""

    @property
    def running(self) -> bool:
        return self.work is not None


@dataclass
class Engine:
    """What a worker's process does with a DECODE. It trusts nothing that the scheduler says."""

    measured: Measured
    random: random.Random
    seats: dict[int, Resident] = field(default_factory=dict)

    def quantum(self, unit: DecodeUnit) -> list[SequenceProgress]:
        for seat in unit.drop:
            self.seats.pop(seat, None)
        for seat in unit.park:
            assert self.seats[seat].running, "parked what does not run"
            self.seats[seat].work = None
        reused: dict[int, int] = {}
        # The sources first: the order in which an engine copies must not matter.
        copies = {
            start.seat: list(self.seats[start.reuse.seq].kv[: start.reuse.n])
            for start in unit.start
            if start.reuse is not None
        }
        for start in unit.start:
            old = self.seats.get(start.seat)
            assert old is None or not old.running, "started where another one runs"
            kv: list[int] = []
            if start.reuse is not None:
                assert self.measured.reuse_equal
                kv = copies[start.seat]
                assert len(kv) == start.reuse.n < len(start.work.prompt), "reuses more than is there"
                assert kv == start.work.prompt[: start.reuse.n].tolist(), "reuses what is not its prefix"
                reused[start.seat] = start.reuse.n
            self.seats[start.seat] = Resident(kv, start.work)
        assert len(self.seats) <= self.measured.parallel
        moving = [*unit.continue_, *(start.seat for start in unit.start)]
        assert len(set(moving)) == len(moving)
        out = [self.advance(seat, unit.max_steps, reused.get(seat, 0)) for seat in moving]
        if self.measured.cells:
            assert sum(len(it.kv) for it in self.seats.values()) <= self.measured.cells, "more cells than there are"
        return out

    def advance(self, seat: int, steps: int, n_reused: int) -> SequenceProgress:
        it = self.seats[seat]
        work = it.work
        assert work is not None, "continues what has ended"
        ids: list[int] = []
        finish = None
        for _ in range(self.random.randint(1, steps)):
            if len(it.kv) < len(work.prompt):
                chunk = self.random.randint(1, 64)
                it.kv.extend(work.prompt[len(it.kv) : len(it.kv) + chunk].tolist())
                if len(it.kv) < len(work.prompt):
                    continue
            elif it.last >= 0:
                it.kv.append(it.last)
            it.last = self.random.randint(0, 3)
            ids.append(it.last)
            it.generated += 1
            if it.generated == work.max_tokens or self.random.random() < 0.02:
                finish = "length" if it.generated == work.max_tokens else "stop"
                it.work = None
                break
        return SequenceProgress(
            seq=seat,
            text="x" * len(ids),
            ids=ids,
            n_prompt_done=min(len(it.kv), len(work.prompt)),
            n_reused=n_reused,
            n_gen=it.generated,
            finish_reason=finish,
        )


class World:
    def __init__(self, measured: Measured, config: SchedulerConfig, workers: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.measured, self.config = measured, config
        self.scheduler = Scheduler(config)
        self.now = 0.0
        self.workers = range(workers)
        self.alive: dict[int, Engine] = {}
        self.units: dict[int, AnyUnit] = {}
        self.sent: set[int] = set()
        self.ends: dict[Work, str] = {}
        self.admitted: set[Work] = set()
        self.withdrawn: set[Work] = set()
        self.works: list[Work] = []
        self.handed: set[tuple[Work, int]] = set()
        self.back: set[tuple[Work, int]] = set()
        self.made: dict[Work, list[int]] = {}
        self.unserved: dict[tuple[int, str], float] = {}
        self.closed = False

    # --- effects -----------------------------------------------------------------------------------------------------

    def do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, StartUnit):
                self.started(effect.worker, effect.unit)
                continue
            work = effect.work
            assert work not in self.ends, "answered twice, or after its end"
            assert work not in self.withdrawn, "answered after its caller left"
            if isinstance(effect, Admitted):
                assert work not in self.admitted
                self.admitted.add(work)
            elif isinstance(effect, Progressed):
                assert work in self.admitted
                self.made.setdefault(work, []).extend(effect.progress.ids)
                assert len(self.made[work]) == effect.progress.n_gen, "progress lost or doubled"
            elif isinstance(effect, Rejected):
                assert work not in self.admitted, "called not admitted what was handed over"
                assert not any(handed is work for handed, _ in self.handed)
                assert isinstance(effect.error, NotAdmitted)
                self.ends[work] = "rejected"
            elif isinstance(effect, Failed):
                assert work in self.admitted
                assert isinstance(effect.error, SynapseError)
                self.ends[work] = "failed"
            else:
                assert isinstance(effect, Completed)
                assert work in self.admitted
                if isinstance(work, BatchWork):
                    assert all((work, at) in self.back for at in range(len(work.inputs)))
                self.ends[work] = "completed"
        self.check()

    def started(self, worker: int, unit: AnyUnit) -> None:
        assert worker in self.alive
        assert worker not in self.units, "two units with one worker"
        self.units[worker] = unit
        if isinstance(unit, BatchUnit):
            self.well_formed(unit)
        flows = {"batch": self.waiting_texts(bulk=False), "bulk": self.waiting_texts(bulk=True)}
        for flow, waiting in flows.items():
            if unit.flow == flow or not waiting:
                self.unserved.pop((worker, flow), None)
            else:
                self.unserved.setdefault((worker, flow), 0.0)

    def well_formed(self, unit: BatchUnit) -> None:
        works = {work for work, _ in unit.items}
        assert unit.items
        assert len(set(unit.items)) == len(unit.items)
        assert len({work.kind for work in works}) == 1
        assert len({work.bulk for work in works}) == 1
        if unit.query is not None or not self.config.shared:
            assert len(works) == 1
        budget = min(self.measured.embed_budget or 384, self.measured.micro_batch or 384)
        assert len(unit.items) == 1 or unit.n_tokens <= budget
        assert len(unit.items) <= (self.measured.max_texts or 256)
        lengths = [len(work.inputs[at]) for work, at in unit.items]
        assert lengths == sorted(lengths)

    # --- events ------------------------------------------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        before = self.scheduler.counts()
        self.works.append(work)
        effects = self.scheduler.submit(work, self.now)
        budgets = self.config.budgets
        more = (1, 4 * self.tokens_of(work) + work.extra_bytes, self.tokens_of(work))
        used = (before.requests, before.bytes, before.tokens)
        limits = (budgets.requests, budgets.bytes, budgets.tokens)
        over = before.requests > 0 and any(u + m > limit for u, m, limit in zip(used, more, limits, strict=True))
        first = effects[0] if effects else None
        refused = isinstance(first, Rejected) and first.work is work
        if not self.closed:
            budget = refused and isinstance(first.error, Overloaded) and first.error.budget != "max_queue"  # type: ignore[union-attr]
            assert over == budget, "a budget is not exact"
        else:
            assert refused
        self.do(effects)

    def next_turn(self, rng: random.Random, max_queue: float | None) -> GenerateWork | None:
        """A prompt that goes on where an earlier sequence is or ended, as a chat's next turn does."""
        earlier = [work for work in self.made if isinstance(work, GenerateWork) and len(work.prompt) < 150]
        if not earlier:
            return None
        work = rng.choice(earlier)
        more = [rng.randint(0, 3) for _ in range(rng.randint(0, 5))]
        ids = np.asarray([*work.prompt.tolist(), *self.made[work], *more], dtype=np.int32)[:200]
        return GenerateWork(prompt=ids, max_tokens=rng.randint(1, 56), max_queue=max_queue)

    def withdraw(self, work: Work) -> None:
        if work not in self.ends:
            self.withdrawn.add(work)
        self.do(self.scheduler.withdraw(work, self.now))

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.scheduler.tick(self.now))

    def boot(self, worker: int) -> None:
        self.alive[worker] = Engine(self.measured, self.random)
        self.do(self.scheduler.worker_ready(worker, self.measured, self.now))

    def send(self, worker: int) -> None:
        """The worker's task takes its unit: what was withdrawn by now is not in it."""
        unit = self.scheduler.confirm(worker, self.now)
        if unit is None:
            del self.units[worker]
            self.do(self.scheduler.unit_done(worker, self.now))
            return
        for work, at in self.parts(unit):
            assert work not in self.withdrawn, "withdrawn work starts"
            assert work not in self.ends
            assert (work, at) not in self.handed, "handed over twice"
            self.handed.add((work, at))
        self.sent.add(worker)
        self.do(self.scheduler.handed_over(worker))

    def finish(self, worker: int) -> None:
        unit = self.units.pop(worker)
        self.sent.discard(worker)
        elapsed = 0.0 if isinstance(unit, ControlUnit) else self.random.uniform(0.0, MAX_UNIT_S)
        self.now += elapsed
        self.charge(worker, unit, elapsed)
        progress: list[SequenceProgress] = []
        if isinstance(unit, BatchUnit):
            self.back.update(unit.items)
        elif isinstance(unit, DecodeUnit):
            progress = self.alive[worker].quantum(unit)
        elif isinstance(unit, GenerateUnit):
            n = unit.work.max_tokens
            progress = [SequenceProgress(seq=0, text="x", ids=[1] * n, n_gen=n, finish_reason="length")]
        self.do(
            self.scheduler.unit_done(
                worker, self.now, elapsed=elapsed, progress=progress, steps=3, elapsed_ms=1000 * elapsed
            )
        )

    def no_room(self, worker: int) -> None:
        """The engine has no place for a start: it says so in the sequence's error, having made nothing."""
        unit = self.units[worker]
        if not isinstance(unit, DecodeUnit) or not unit.start or worker not in self.sent:
            return
        victim = unit.start[0].seat
        work = unit.start[0].work
        progress = self.alive[worker].quantum(unit)
        self.alive[worker].seats.pop(victim, None)
        error = SequenceError("oom", "no room")
        progress = [one for one in progress if one.seq != victim] + [SequenceProgress(seq=victim, error=error)]
        del self.units[worker]
        self.sent.discard(worker)
        if not work.retried:
            self.handed.discard((work, 0))
        self.do(self.scheduler.unit_done(worker, self.now, elapsed=0.01, progress=progress, steps=1, elapsed_ms=10.0))

    def refuse(self, worker: int) -> None:
        unit = self.units.pop(worker)
        self.sent.discard(worker)
        if isinstance(unit, DecodeUnit):
            # An ERR touches nothing that is resident; started ones are not there.
            for start in unit.start:
                self.alive[worker].seats.pop(start.seat, None)
        self.do(self.scheduler.unit_refused(worker, EngineRefused("engine_failed", "nan"), self.now, elapsed=0.01))

    def die(self, worker: int, back_at: float | None) -> None:
        self.alive.pop(worker)
        unit = self.units.pop(worker, None)
        self.sent.discard(worker)
        self.unserved = {key: value for key, value in self.unserved.items() if key[0] != worker}
        error = EngineCrashed("request" if unit is not None else "idle", "gone")
        self.do(self.scheduler.worker_dead(worker, error, self.now, back_at))

    def close(self) -> None:
        self.closed = True
        error = LaneUnavailable("quarantined", "enough")
        self.do(self.scheduler.close(error, self.now, EngineCrashed("request", "the last one")))
        for worker in list(self.alive):
            self.die(worker, None)

    def open(self) -> None:
        self.closed = False
        self.scheduler.open()

    def heal(self) -> None:
        """Everything works again and everybody reads: all that is asked must be answered."""
        self.open()
        for worker in self.workers:
            if worker not in self.alive:
                self.boot(worker)
        for work in self.live():
            if isinstance(work, GenerateWork):
                self.do(self.scheduler.reader_ready(work, self.now))
        for _ in range(100_000):
            if not self.units:
                break
            for worker in sorted(self.units):
                if worker in self.units and worker not in self.sent:
                    self.send(worker)
                if worker in self.sent:
                    self.finish(worker)
        assert not self.live(), "never answered"
        counts = self.scheduler.counts()
        assert (counts.requests, counts.bytes, counts.tokens, counts.units, counts.sequences) == (0, 0, 0, 0, 0)

    # --- the promises ------------------------------------------------------------------------------------------------

    def live(self) -> list[Work]:
        return [work for work in self.works if work not in self.ends and work not in self.withdrawn]

    def parts(self, unit: AnyUnit) -> list[tuple[Work, int]]:
        if isinstance(unit, BatchUnit):
            return [(work, at) for work, at in unit.items]
        if isinstance(unit, DecodeUnit):
            return [(start.work, 0) for start in unit.start]
        return [(unit.work, 0)] if isinstance(unit, GenerateUnit) else []

    def tokens_of(self, work: Work) -> int:
        """Tokens of it that were not handed over."""
        if isinstance(work, BatchWork):
            return sum(len(ids) for at, ids in enumerate(work.inputs) if (work, at) not in self.handed)
        assert isinstance(work, GenerateWork)
        return 0 if (work, 0) in self.handed or work.retried else len(work.prompt)

    def waiting(self) -> list[Work]:
        """Works of which something was not handed over."""
        return [
            work
            for work in self.live()
            if (
                any((work, at) not in self.handed for at in range(len(work.inputs)))
                if isinstance(work, BatchWork)
                else (work, 0) not in self.handed and not (isinstance(work, GenerateWork) and work.retried)
            )
        ]

    def waiting_texts(self, *, bulk: bool) -> bool:
        in_units = {part for unit in self.units.values() for part in self.parts(unit)}
        return any(
            (work, at) not in self.handed and (work, at) not in in_units
            for work in self.live()
            if isinstance(work, BatchWork) and work.bulk == bulk
            for at in range(len(work.inputs))
        )

    def charge(self, worker: int, unit: AnyUnit, elapsed: float) -> None:
        for key in self.unserved:
            if key[0] == worker and key[1] != unit.flow:
                self.unserved[key] += elapsed
                assert self.unserved[key] <= STARVED_S, f"{key[1]} starves"

    def check(self) -> None:
        waiting = self.waiting()
        counts = self.scheduler.counts()
        budgets = self.config.budgets
        assert counts.requests == len(waiting), "the count of requests is wrong"
        assert counts.tokens == sum(self.tokens_of(work) for work in waiting)
        assert counts.bytes == sum(4 * self.tokens_of(work) + work.extra_bytes for work in waiting)
        assert counts.requests <= budgets.requests
        if len(waiting) > 1:
            largest = max(self.tokens_of(work) for work in waiting)
            assert counts.tokens <= budgets.tokens or largest > budgets.tokens
        assert counts.units == len(self.units)
        in_units = {part for unit in self.units.values() for part in self.parts(unit)}
        for work in self.live():
            starting = any(part[0] is work for part in in_units)
            if work.state is State.QUEUED and work.deadline is not None and not starting:
                assert work.deadline > self.now, "waits although it had to start by now"
        idle = [worker for worker in self.alive if worker not in self.units]
        if idle:
            assert not self.waiting_texts(bulk=False), "a worker idles while texts wait"
            assert not self.waiting_texts(bulk=True), "a worker idles while bulk texts wait"


def prompt(rng: random.Random, length: int) -> np.ndarray:
    """One of few beginnings, then its own: prefixes are shared often."""
    base = np.full(length, rng.randint(0, 2), dtype=np.int32)
    own = rng.randint(0, length)
    base[own:] = np.asarray([rng.randint(0, 3) for _ in range(length - own)], dtype=np.int32)
    return base
