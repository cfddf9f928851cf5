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
from dataclasses import dataclass

from synapse.errors import (
    EngineRefused,
    LaneUnavailable,
    NotAdmitted,
    Overloaded,
    SynapseError,
)
from synapse.policy.scheduler.admission import Admission
from synapse.policy.scheduler.queues import Deadlines, WorkQueue
from synapse.policy.scheduler.work import (
    Admitted,
    AnyUnit,
    BatchUnit,
    BatchWork,
    Completed,
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
from synapse.policy.scheduler.workers import Control, Queues, SchedulerConfig, WorkerState
from synapse.policy.threads import ThreadShare
from synapse.wire.messages import Measured, SequenceProgress


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
        self._queues: Queues = {"batch": WorkQueue(), "decode": WorkQueue(), "bulk": WorkQueue()}
        self._queued: set[Work] = set()
        """Works that hold a place of the admission."""
        self._deadlines = Deadlines()
        self._workers: dict[int, WorkerState] = {}
        self._back_at: dict[int, float] = {}
        self._arrivals = 0
        self._closed: LaneUnavailable | None = None

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
        return it is not None and it.unit is None and not it.controls and not it.ready(self._queues, math.inf)

    def expected_s(self, worker: int) -> float:
        """How long the unit with this worker should take, as measured (its deadline is a multiple of it, D15)."""
        return self._workers[worker].expected_s()

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
        self._workers[worker] = WorkerState(worker, measured, self.config)
        self._back_at.pop(worker, None)
        return self._dispatch(now)

    def confirm(self, worker: int, now: float) -> AnyUnit | None:
        """What is to be sent now: the unit without what was withdrawn since it was formed, a quantum with the prompts
        that came since. None: nothing is left of it, and the worker counts as having done it."""
        return self._workers[worker].confirm(self._queues, now)

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
            it.costs.quantum_took(steps, elapsed_ms, prefill=unit.prefill)
            for one in progress:
                self._progressed(it, one, now, effects)
        elif isinstance(unit, GenerateUnit) and unit.work.state is not State.DONE:
            unit.work.state = State.DONE
            effects += [*(Progressed(unit.work, one) for one in progress), Completed(unit.work)]
        return effects + self._dispatch(now)

    def unit_refused(self, worker: int, error: SynapseError, now: float, *, elapsed: float = 0.0) -> list[Effect]:
        """The worker answered ERR, or its answer was not what was asked for: everything in the unit fails; what else is
        resident stays."""
        works = self._workers[worker].works()
        it, unit, effects = self._finish_unit(worker, elapsed)
        if isinstance(unit, DecodeUnit):
            it.sequences.refused(unit)
        for work in works:
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
                    for work in it.works():
                        self._fail(work, error, effects)
                else:
                    self._wait_again(it.take_back())
            for resident in it.sequences.works():
                self._fail(resident, error, effects)
        return effects + self._expire(now) + self._dispatch(now)

    def control(self, worker: int, kind: Control, now: float) -> list[Effect]:
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
        held = [work for it in self._workers.values() for work in [*it.works(), *it.sequences.works()]]
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
        workers = sorted(self._workers.values(), key=lambda it: (len(it.sequences.works()), it.number))
        for it in workers:
            if it.unit is None and (unit := it.next_unit(self._queues, self._threads, now)) is not None:
                effects.append(StartUnit(it.number, unit))
        if self._threads is not None and not any(it.wants_threads for it in workers):
            self._threads.renounce()
        return effects + self._expire(now)

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

    def _finish_unit(self, worker: int, elapsed: float) -> tuple[WorkerState, AnyUnit, list[Effect]]:
        it = self._workers[worker]
        effects = self.handed_over(worker) if it.something_left else []
        unit = it.finish(elapsed)
        self._give_threads(unit)
        return it, unit, effects

    def _wait_again(self, works: list[Work]) -> None:
        """Their unit never went out: they go back into the queue, who has not started to where it was."""
        for work in works:
            if work.state is State.DONE:
                continue
            queue = self._queue_of(work)
            if work in queue:
                queue.remove(work)
            if work.state is State.QUEUED:
                work.turn_over(work.arrived)
                self._deadlines.add(work)
            queue.add(work)

    def _progressed(self, it: WorkerState, one: SequenceProgress, now: float, effects: list[Effect]) -> None:
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
