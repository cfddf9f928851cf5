"""The scheduler of one lane: events in, effects out; time is an argument. No process, clock or socket.

Every public method is an event and returns the effects that the shell has to carry out, in order. Between two events
nothing happens. The promises, each an invariant of tests/policy:

1. one unit at most is with each worker;
2. each work gets exactly one of Completed, Rejected and Failed, unless its caller withdrew it, and nothing after it;
3. Rejected means that nothing of it was handed over; nothing is ever handed over twice;
4. what was withdrawn never starts;
5. the budgets of `Admission` are exact;
6. no flow starves: see `Turns`; within a flow later arrivals overtake for AGE_S at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from synapse.errors import (
    EngineRefused,
    LaneUnavailable,
    NotAdmitted,
    Overloaded,
    SynapseError,
)
from synapse.policy.costs import Costs
from synapse.policy.scheduler import batches
from synapse.policy.scheduler.admission import Admission, Budgets
from synapse.policy.scheduler.queues import Deadlines, ServedFlow, Turns, WorkQueue
from synapse.policy.scheduler.sequences import Sequences
from synapse.policy.scheduler.work import (
    AGE_S,
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
    StartUnit,
    State,
    Work,
)
from synapse.policy.threads import ThreadShare
from synapse.wire.messages import Measured, SequenceProgress


@dataclass(frozen=True)
class SchedulerConfig:
    """Numbers of one lane. `shared`: several callers may be in one unit (D5)."""

    budgets: Budgets = field(default_factory=Budgets)
    quantum_ms: float = 50.0
    unit_ms: float = 250.0
    shared: bool = True


@dataclass(eq=False)
class _Worker:
    number: int
    measured: Measured
    limits: batches.BatchLimits
    sequences: Sequences
    turns: Turns = field(default_factory=Turns)
    unit: AnyUnit | None = None
    controls: list[Literal["ping", "unload"]] = field(default_factory=list)
    costs: Costs = field(default_factory=Costs)


@dataclass(frozen=True)
class Counts:
    """What a lane holds. All zero when nothing is left."""

    requests: int
    bytes: int
    tokens: int
    units: int
    sequences: int
    """Running ones, held ones included."""
    parked: int


class Scheduler:
    """See the module. Not thread-safe; one lane owns it."""

    def __init__(self, config: SchedulerConfig | None = None, threads: ThreadShare | None = None) -> None:
        self.config = config or SchedulerConfig()
        self._threads = threads
        self._admission = Admission(self.config.budgets)
        self._queues: dict[ServedFlow, WorkQueue] = {
            "batch": WorkQueue(),
            "decode": WorkQueue(),
            "bulk": WorkQueue(),
        }
        self._queued: set[Work] = set()
        """Works that hold a place of the admission."""
        self._deadlines = Deadlines()
        self._workers: dict[int, _Worker] = {}
        self._back_at: dict[int, float] = {}
        self._arrivals = 0
        self._closed: LaneUnavailable | None = None
        self._wanting = False
        """A worker had something to do and got no threads."""

    # --- what the shell may ask --------------------------------------------------------------------------------------

    @property
    def next_deadline(self) -> float | None:
        """When `tick` is due at the latest."""
        times = [self._deadlines.next, None if self._threads is None else self._threads.retry_at]
        return min((time for time in times if time is not None), default=None)

    def counts(self) -> Counts:
        seats = [seat for worker in self._workers.values() for seat in worker.sequences.seats]
        return Counts(
            requests=self._admission.requests,
            bytes=self._admission.bytes,
            tokens=self._admission.tokens,
            units=sum(worker.unit is not None for worker in self._workers.values()),
            sequences=sum(seat.work is not None for seat in seats),
            parked=sum(len(seat.known) > 0 for seat in seats),
        )

    def knows(self, worker: int) -> bool:
        """This worker is ready or busy, not dead or starting."""
        return worker in self._workers

    def idle(self, worker: int) -> bool:
        """Nothing is with this worker and nothing waits for it (PING belongs here, W10)."""
        it = self._workers.get(worker)
        return it is not None and it.unit is None and not it.controls and not self._ready(it, math.inf)

    def expected_s(self, worker: int) -> float:
        """How long the unit with this worker should take, as measured (its deadline is a multiple of it, D15)."""
        it = self._workers[worker]
        unit = it.unit
        if isinstance(unit, BatchUnit):
            return it.costs.batch_s(unit.n_tokens)
        if isinstance(unit, DecodeUnit):
            return it.costs.quantum_s(unit.target_ms)
        if isinstance(unit, GenerateUnit):
            return it.costs.answer_s(len(unit.work.prompt), unit.work.max_tokens)
        return 0.0

    # --- events from callers -----------------------------------------------------------------------------------------

    def submit(self, work: Work, now: float) -> list[Effect]:
        """A caller's request. It is queued or rejected, and may start at once."""
        self._arrivals += 1
        work.arrive(now, self._arrivals)
        refusal = self._refusal(work, now)
        if refusal is not None:
            work.state = State.DONE
            return [Rejected(work, refusal)]
        self._admission.take(work)
        self._queued.add(work)
        self._queue_of(work).add(work)
        self._deadlines.add(work)
        return self._dispatch(now)

    def withdraw(self, work: Work, now: float) -> list[Effect]:
        """Its caller has left. Queued work is gone; a sequence ends in the next quantum; a result is thrown away."""
        if work.state in (State.NEW, State.DONE):
            return []
        self._end(work)
        return self._dispatch(now)

    def reader_slow(self, work: GenerateWork) -> None:
        """Leave its sequence out of the next quanta."""
        work.held = True

    def reader_ready(self, work: GenerateWork, now: float) -> list[Effect]:
        """Its reader has room again."""
        work.held = False
        return self._dispatch(now)

    # --- events from workers -----------------------------------------------------------------------------------------

    def worker_ready(self, worker: int, measured: Measured, now: float) -> list[Effect]:
        """A worker has loaded the model and can take units."""
        limits = batches.BatchLimits.of(measured, self.config.shared)
        costs = Costs(step_ms=measured.decode_step_ms)
        self._workers[worker] = _Worker(worker, measured, limits, Sequences(measured), costs=costs)
        self._back_at.pop(worker, None)
        return self._dispatch(now)

    def confirm(self, worker: int) -> AnyUnit | None:
        """What is to be sent now: the unit without what was withdrawn since it was formed. None: nothing is left of it,
        and the worker counts as having done it."""
        it = self._workers[worker]
        unit = it.unit
        if isinstance(unit, BatchUnit):
            kept = [(work, index) for work, index in unit.items if work.state is not State.DONE]
            unit.items[:] = kept
            return unit if kept else None
        if isinstance(unit, DecodeUnit):
            for start in [start for start in unit.start if start.work.state is State.DONE]:
                unit.start.remove(start)
                it.sequences.cancel_start(start)
            unit.continue_ = [seat for seat in unit.continue_ if not it.sequences.seats[seat].leaving]
            return unit if unit.start or unit.continue_ or unit.drop or unit.park else None
        if isinstance(unit, GenerateUnit):
            return unit if unit.work.state is not State.DONE else None
        return unit

    def handed_over(self, worker: int) -> list[Effect]:
        """The first byte of its unit is going out: the line between not_admitted and unknown (C3)."""
        unit = self._workers[worker].unit
        if unit is None or unit.handed_over:
            return []
        unit.handed_over = True
        effects: list[Effect] = []
        if isinstance(unit, BatchUnit):
            for work, index in unit.items:
                if work.state is State.DONE:
                    continue
                self._admission.give_tokens(work.hand_over(index))
                self._admit(work, effects)
                if work.waiting == 0:
                    self._leave_queue(work)
        elif isinstance(unit, DecodeUnit):
            for start in unit.start:
                if start.work.state is not State.DONE:
                    self._leave_queue(start.work)
                    self._admit(start.work, effects)
        elif isinstance(unit, GenerateUnit) and unit.work.state is not State.DONE:
            self._leave_queue(unit.work)
            self._admit(unit.work, effects)
        return effects

    def unit_done(
        self,
        worker: int,
        now: float,
        *,
        elapsed: float = 0.0,
        progress: Sequence[SequenceProgress] = (),
        steps: int = 0,
        elapsed_ms: float = 0.0,
    ) -> list[Effect]:
        """The unit's answer was read and is in order. `elapsed`: seconds it took; the rest is DECODED's."""
        it, unit, effects = self._finish_unit(worker, elapsed)
        if isinstance(unit, BatchUnit):
            if unit.items:
                it.costs.batch_took(unit.n_tokens, elapsed)
            for work, _ in unit.items:
                work.in_units -= 1
                work.done += 1
                if work.state is not State.DONE and work.finished:
                    work.state = State.DONE
                    effects.append(Completed(work))
        elif isinstance(unit, DecodeUnit):
            it.costs.quantum_took(steps, elapsed_ms)
            for one in progress:
                self._progressed(it, one, now, effects)
        elif isinstance(unit, GenerateUnit) and unit.work.state is not State.DONE:
            unit.work.state = State.DONE
            effects += [*(Progressed(unit.work, one) for one in progress), Completed(unit.work)]
        return effects + self._dispatch(now)

    def unit_refused(self, worker: int, error: SynapseError, now: float, *, elapsed: float = 0.0) -> list[Effect]:
        """The worker answered ERR, or its answer was not what was asked for: everything in the unit fails; what else is
        resident stays."""
        it, unit, effects = self._finish_unit(worker, elapsed)
        if isinstance(unit, DecodeUnit):
            it.sequences.refused(unit)
        for work in self._works_in(it, unit):
            self._fail(work, error, effects)
        return effects + self._dispatch(now)

    def worker_dead(self, worker: int, error: SynapseError, now: float, back_at: float | None = None) -> list[Effect]:
        """A worker died or was killed, idle or not. What it had taken over fails; what never went out waits again.

        `back_at`: not before when it can be there again (the back-off); what must start before is refused at once.
        """
        it = self._workers.pop(worker, None)
        self._back_at[worker] = now if back_at is None else back_at
        effects: list[Effect] = []
        if it is not None:
            if it.unit is not None:
                self._give_threads(it.unit)
                if it.unit.handed_over:
                    for work in self._works_in(it, it.unit):
                        self._fail(work, error, effects)
                else:
                    self._take_back(it, it.unit)
            for resident in it.sequences.works():
                self._fail(resident, error, effects)
        return effects + self._expire(now) + self._dispatch(now)

    def control(self, worker: int, kind: Literal["ping", "unload"], now: float) -> list[Effect]:
        """A step for this worker at its next unit boundary, before anything else."""
        self._workers[worker].controls.append(kind)
        return self._dispatch(now)

    # --- events of the lane ------------------------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed, or threads were given back elsewhere."""
        return self._expire(now) + self._dispatch(now)

    def close(self, reason: LaneUnavailable, now: float, running: SynapseError | None = None) -> list[Effect]:
        """Take nothing more: what waits is rejected with `reason`. What was admitted goes on, or fails with `running`
        where that is given: no worker will come for the rest of it."""
        self._closed = reason
        effects: list[Effect] = []
        waiting = {work for queue in self._queues.values() for work in queue}
        held = [work for it in self._workers.values() for work in [*self._works_in(it, it.unit), *it.sequences.works()]]
        for work in sorted({*waiting, *held}, key=lambda work: work.order):
            if work.state is State.QUEUED:
                if running is not None or not self._in_unit(work):
                    self._reject(work, reason, effects)
            elif running is not None:
                self._fail(work, running, effects)
        return effects + self._dispatch(now)

    def open(self) -> None:
        """Take works again."""
        self._closed = None

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _refusal(self, work: Work, now: float) -> NotAdmitted | None:
        if self._closed is not None:
            return self._closed
        full = self._admission.refusal(work, work.tokens)
        if full is not None:
            return full
        return self._too_late(work, now)

    def _too_late(self, work: Work, now: float) -> LaneUnavailable | None:
        """No worker is there, and none will be before it would have to start."""
        if work.deadline is None or self._workers or not self._back_at:
            return None
        back_at = min(self._back_at.values())
        if back_at <= work.deadline:
            return None
        return LaneUnavailable(
            "runtime_unavailable", f"the worker restarts in {back_at - now:.1f} s", retry_after=back_at - now
        )

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for work in self._deadlines.expired(now):
            if work.state is not State.QUEUED or self._in_unit(work):
                continue
            if self._workers:
                limit = work.max_queue or 0.0
                self._reject(work, Overloaded("max_queue", now - (work.deadline or now) + limit, limit), effects)
            else:
                self._reject(
                    work, LaneUnavailable("runtime_unavailable", "no worker became ready in time", 1.0), effects
                )
        return effects

    def _dispatch(self, now: float) -> list[Effect]:
        """Give every worker that has nothing to do its next unit; then refuse who had to start by now and did not."""
        effects: list[Effect] = []
        self._wanting = False
        for it in sorted(self._workers.values(), key=lambda it: (len(it.sequences.works()), it.number)):
            if it.unit is None:
                it.unit = self._next_unit(it, now)
                if it.unit is not None:
                    effects.append(StartUnit(it.number, it.unit))
        if self._threads is not None and not self._wanting:
            self._threads.renounce()
        return effects + self._expire(now)

    def _next_unit(self, it: _Worker, now: float) -> AnyUnit | None:
        if it.controls:
            return ControlUnit(flow="control", kind=it.controls.pop(0))
        ready = self._ready(it, now)
        if not ready:
            return None
        flow = it.turns.pick(ready)
        threads = self._take_threads(it, flow, now)
        if threads is None:
            self._wanting = True
            return None
        unit = self._form(it, flow, now)
        if unit is None:
            if self._threads is not None:
                self._threads.give(threads)
            return None
        unit.threads = threads
        return unit

    def _ready(self, it: _Worker, now: float) -> set[ServedFlow]:
        ready: set[ServedFlow] = {flow for flow in ("batch", "bulk") if len(self._queues[flow])}
        queue = self._queues["decode"]
        if it.measured.decode:
            if it.sequences.leaving or it.sequences.runnable or it.sequences.can_start(queue, now):
                ready.add("decode")
        elif len(queue):
            ready.add("decode")
        return ready

    def _form(self, it: _Worker, flow: ServedFlow, now: float) -> AnyUnit | None:
        queue = self._queues[flow]
        if flow == "decode":
            if it.measured.decode:
                return it.sequences.quantum(queue, now, self.config.quantum_ms, it.costs.steps(self.config.quantum_ms))
            work = next(iter(queue))
            assert isinstance(work, GenerateWork)
            queue.remove(work)
            return GenerateUnit(flow="decode", work=work)
        unit = batches.pack(queue, it.limits, it.costs.token_ms, self.config.unit_ms)
        if unit is None:
            return None
        for work in dict.fromkeys(work for work, _ in unit.items):
            queue.remove(work)
            work.turn_over(now)
            if work.pending:
                queue.add(work)
        return unit

    def _take_threads(self, it: _Worker, flow: ServedFlow, now: float) -> int | None:
        """Threads for a unit; 0 without a share, None if it has to wait for them."""
        if self._threads is None:
            return 0
        most = max(1, it.measured.threads)
        least = 1 if flow == "decode" and it.measured.decode and it.measured.threads_equal else most
        return self._threads.take(least, most, now)

    def _give_threads(self, unit: AnyUnit) -> None:
        if self._threads is not None and unit.threads:
            self._threads.give(unit.threads)

    # --- bookkeeping -------------------------------------------------------------------------------------------------

    def _queue_of(self, work: Work) -> WorkQueue:
        if isinstance(work, GenerateWork):
            return self._queues["decode"]
        return self._queues["bulk" if work.bulk else "batch"]

    def _in_unit(self, work: Work) -> bool:
        """A part of it is in a unit that was formed but maybe not handed over yet: it is starting."""
        if isinstance(work, BatchWork):
            return work.in_units > 0
        return work not in self._queue_of(work)

    def _leave_queue(self, work: Work) -> None:
        """Give back its place in the admission, if it has one."""
        if work in self._queued:
            self._queued.remove(work)
            self._admission.give(work)

    def _admit(self, work: Work, effects: list[Effect]) -> None:
        if work.state is State.QUEUED:
            work.state = State.ADMITTED
            effects.append(Admitted(work))

    def _end(self, work: Work) -> None:
        """Take it out of everything that is not in a worker's hands."""
        queue = self._queue_of(work)
        if work in queue:
            queue.remove(work)
        self._leave_queue(work)
        work.state = State.DONE
        if isinstance(work, GenerateWork):
            for it in self._workers.values():
                it.sequences.leave(work)

    def _reject(self, work: Work, error: NotAdmitted, effects: list[Effect]) -> None:
        self._end(work)
        effects.append(Rejected(work, error))

    def _fail(self, work: Work, error: SynapseError, effects: list[Effect]) -> None:
        if work.state is State.DONE:
            return
        self._end(work)
        effects.append(Failed(work, error))

    def _finish_unit(self, worker: int, elapsed: float) -> tuple[_Worker, AnyUnit, list[Effect]]:
        effects = self.handed_over(worker) if self._must_hand_over(worker) else []
        it = self._workers[worker]
        unit = it.unit
        if unit is None:
            raise LookupError(f"worker {worker} has no unit")
        it.unit = None
        self._give_threads(unit)
        if unit.flow != "control":
            it.turns.charge(unit.flow, elapsed)
        return it, unit, effects

    def _must_hand_over(self, worker: int) -> bool:
        """A unit of which nothing was left by `confirm` is done without having gone out."""
        unit = self._workers[worker].unit
        if isinstance(unit, BatchUnit):
            return bool(unit.items)
        if isinstance(unit, GenerateUnit):
            return unit.work.state is not State.DONE
        return isinstance(unit, DecodeUnit)

    def _works_in(self, it: _Worker, unit: AnyUnit | None) -> list[Work]:
        """The works that a unit has parts of."""
        if isinstance(unit, BatchUnit):
            return list(dict.fromkeys(work for work, _ in unit.items))
        if isinstance(unit, GenerateUnit):
            return [unit.work]
        if isinstance(unit, DecodeUnit):
            seats = [it.sequences.seats[seat].work for seat in unit.continue_]
            return [*(start.work for start in unit.start), *(work for work in seats if work is not None)]
        return []

    def _take_back(self, it: _Worker, unit: AnyUnit) -> None:
        """The unit never went out: its works wait again, who has not started where it was."""
        works = self._works_in(it, unit)
        if isinstance(unit, BatchUnit):
            batches.unpack(unit)
        elif isinstance(unit, DecodeUnit):
            works = [start.work for start in unit.start]
            for start in unit.start:
                it.sequences.cancel_start(start)
        for work in works:
            if work.state is State.DONE:
                continue
            queue = self._queue_of(work)
            if work in queue:
                queue.remove(work)
            if work.state is State.QUEUED:
                work.key = work.arrived + (AGE_S if work.max_queue is None else work.max_queue)
                self._deadlines.add(work)
            queue.add(work)

    def _progressed(self, it: _Worker, one: SequenceProgress, now: float, effects: list[Effect]) -> None:
        work = it.sequences.advance(one, now)
        if work is None or work.state is State.DONE:
            return
        if one.error is not None:
            if one.error.code == "oom" and one.n_gen == 0 and not work.retried:
                # The worker had no room and made nothing: what is parked gives way, and it waits for its turn again.
                work.retried = True
                it.sequences.forget_parked()
                work.key = -math.inf
                self._queue_of(work).add(work)
                return
            self._fail(work, EngineRefused(one.error.code, one.error.msg), effects)
            return
        effects.append(Progressed(work, one))
        if one.finish_reason is not None:
            self._end(work)
            effects.append(Completed(work))
