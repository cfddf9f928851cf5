"""One worker as the scheduler sees it: what is with it, whose turn it is next, and what its next unit is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from synapse.policy.costs import Costs
from synapse.policy.scheduler import batches
from synapse.policy.scheduler.admission import Budgets
from synapse.policy.scheduler.queues import ServedFlow, Turns, WorkQueue
from synapse.policy.scheduler.sequences import Pace, Sequences
from synapse.policy.scheduler.work import (
    AnyUnit,
    BatchUnit,
    ControlUnit,
    DecodeUnit,
    GenerateUnit,
    GenerateWork,
    State,
    Work,
)
from synapse.policy.threads import ThreadShare
from synapse.wire.messages import Measured

Queues = dict[ServedFlow, WorkQueue]
Control = Literal["ping", "unload"]


@dataclass(frozen=True)
class SchedulerConfig:
    """Numbers of one lane. `shared`: several callers may be in one unit (D5)."""

    budgets: Budgets = field(default_factory=Budgets)
    quantum_ms: float = 50.0
    unit_ms: float = 250.0
    shared: bool = True


class WorkerState:
    """A worker that is ready or busy. Only the scheduler calls it.

    Attributes:
        unit: what is with it; None: it is idle.
        controls: steps that come before its next unit.
        wants_threads: it has something to do and waits for threads.
    """

    def __init__(self, number: int, measured: Measured, config: SchedulerConfig) -> None:
        self.number = number
        self.sequences = Sequences(measured)
        self.costs = Costs(step_ms=measured.decode_step_ms)
        self.unit: AnyUnit | None = None
        self.controls: list[Control] = []
        self.wants_threads = False
        self._measured = measured
        self._config = config
        self._limits = batches.BatchLimits.of(measured, config.shared)
        self._turns = Turns()

    # --- the next unit -----------------------------------------------------------------------------------------------

    def ready(self, queues: Queues, now: float) -> set[ServedFlow]:
        """The flows that have something for it."""
        ready: set[ServedFlow] = {flow for flow in ("batch", "bulk") if len(queues[flow])}
        queue = queues["decode"]
        if not self._measured.decode:
            if len(queue):
                ready.add("decode")
        elif self.sequences.leaving or self.sequences.runnable or self.sequences.can_start(queue, now):
            ready.add("decode")
        return ready

    def next_unit(self, queues: Queues, threads: ThreadShare | None, now: float) -> AnyUnit | None:
        """Take its next unit out of the queues. None: there is nothing, or it has to wait for threads."""
        self.wants_threads = False
        if self.controls:
            self.unit = ControlUnit(flow="control", kind=self.controls.pop(0))
            return self.unit
        ready = self.ready(queues, now)
        if not ready:
            return None
        flow = self._turns.pick(ready)
        granted = self._take_threads(flow, threads, now)
        if granted is None:
            self.wants_threads = True
            return None
        self.unit = self._form(flow, queues[flow], now)
        if self.unit is not None:
            self.unit.threads = granted
        elif threads is not None:
            threads.give(granted)
        return self.unit

    def _form(self, flow: ServedFlow, queue: WorkQueue, now: float) -> AnyUnit | None:
        if flow != "decode":
            unit = batches.pack(queue, self._limits, self.costs.token_ms, self._config.unit_ms)
            for batch in [] if unit is None else dict.fromkeys(batch for batch, _ in unit.items):
                queue.remove(batch)
                batch.turn_over(now)
                if batch.pending:
                    queue.add(batch)
            return unit
        if self._measured.decode:
            return self.sequences.quantum(queue, now, self._pace())
        work = next(iter(queue))
        assert isinstance(work, GenerateWork)
        queue.remove(work)
        return GenerateUnit(flow="decode", work=work)

    def _pace(self) -> Pace:
        config = self._config
        return Pace(config.quantum_ms, config.unit_ms, self.costs.step_ms, self.costs.steps(config.quantum_ms))

    def _take_threads(self, flow: ServedFlow, threads: ThreadShare | None, now: float) -> int | None:
        """Threads for a unit; 0 where nobody shares them out, None if it has to wait."""
        if threads is None:
            return 0
        most = max(1, self._measured.threads)
        flexible = flow == "decode" and self._measured.decode and self._measured.threads_equal
        return threads.take(1 if flexible else most, most, now)

    # --- the unit that is with it ------------------------------------------------------------------------------------

    def confirm(self, queues: Queues, now: float) -> AnyUnit | None:
        """Take out of its unit what is done already and let a quantum's latest arrivals in; None if nothing is left."""
        unit = self.unit
        if isinstance(unit, BatchUnit):
            unit.items[:] = [(work, index) for work, index in unit.items if work.state is not State.DONE]
        elif isinstance(unit, DecodeUnit):
            for start in [start for start in unit.start if start.work.state is State.DONE]:
                unit.start.remove(start)
                self.sequences.cancel_start(start)
            unit.continue_ = [seat for seat in unit.continue_ if not self.sequences.seats[seat].leaving]
            if len(queues["decode"]):
                self.sequences.join(unit, queues["decode"], now, self._pace())
        return unit if self.something_left else None

    @property
    def something_left(self) -> bool:
        """Its unit has something to send."""
        unit = self.unit
        if isinstance(unit, BatchUnit):
            return bool(unit.items)
        if isinstance(unit, DecodeUnit):
            return bool(unit.start or unit.continue_ or unit.drop or unit.park)
        if isinstance(unit, GenerateUnit):
            return unit.work.state is not State.DONE
        return unit is not None

    def works(self) -> list[Work]:
        """The works that its unit has parts of."""
        unit = self.unit
        if isinstance(unit, BatchUnit):
            return list(dict.fromkeys(work for work, _ in unit.items))
        if isinstance(unit, GenerateUnit):
            return [unit.work]
        if isinstance(unit, DecodeUnit):
            seats = [self.sequences.seats[seat].work for seat in unit.continue_]
            return [*(start.work for start in unit.start), *(work for work in seats if work is not None)]
        return []

    def take_back(self) -> list[Work]:
        """Its unit never goes out: undo it. Returns the works that have to wait again."""
        unit = self.unit
        if isinstance(unit, DecodeUnit):
            for start in unit.start:
                self.sequences.cancel_start(start)
            return [start.work for start in unit.start]
        works = self.works()
        if isinstance(unit, BatchUnit):
            batches.unpack(unit)
        return works

    def finish(self, elapsed: float) -> AnyUnit:
        """Its unit is over; its flow pays for the time. Raises LookupError if there is none."""
        unit = self.unit
        if unit is None:
            raise LookupError(f"worker {self.number} has no unit")
        self.unit = None
        if unit.flow != "control":
            self._turns.charge(unit.flow, elapsed)
        return unit

    def expected_s(self) -> float:
        """How long its unit should take, as measured."""
        unit = self.unit
        if isinstance(unit, BatchUnit):
            return self.costs.batch_s(unit.n_tokens)
        if isinstance(unit, DecodeUnit):
            return self.costs.quantum_s(unit.target_ms)
        if isinstance(unit, GenerateUnit):
            return self.costs.answer_s(len(unit.work.prompt), unit.work.max_tokens)
        return 0.0
