"""The sequences of one worker: who sits where, whose KV can be reused, what goes into the next quantum.

A worker has `parallel` seats. A seat is FREE, RUNNING (its work is being generated) or PARKED (its sequence ended, its
KV stays until the place is needed). What is known to be in a seat's KV is the evaluated part of the prompt and all
generated tokens but the last, which was drawn and not evaluated.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import numpy as np

from synapse.policy.scheduler.queues import WorkQueue
from synapse.policy.scheduler.work import DecodeUnit, GenerateWork, Ids, Start, State
from synapse.wire.messages import Measured, Reuse, SequenceProgress

MIN_REUSE_TOKENS = 8
"""A shorter common prefix is not worth a copy."""
WAIT_FOR_PREFIX_TOKENS = 64
"""A prompt waits for another one that is being evaluated if that saves it at least so many tokens."""
WAIT_MARGIN_S = 1.0
"""... and its latest start is at least this far away."""
SHORT_PROMPTS_TOKENS = 512
"""Prompts that miss so many tokens together at most take whole units beside running streams."""
_NO_IDS: Ids = np.zeros(0, dtype=np.int32)


@dataclass(frozen=True)
class Pace:
    """What a quantum's length follows from: two targets and a measured step in milliseconds, and how many steps fit
    into the first target."""

    quantum_ms: float
    unit_ms: float
    step_ms: float
    steps: int


class SeatState(enum.Enum):
    FREE = "free"
    RUNNING = "running"
    PARKED = "parked"


@dataclass(eq=False)
class Seat:
    index: int
    state: SeatState = SeatState.FREE
    work: GenerateWork | None = None
    """Who sits here; stays after a withdrawal until the seat is left."""
    evaluated: int = 0
    """Prompt tokens in the KV."""
    generated: list[int] = field(default_factory=list)
    need: int = 0
    """Cells that the running sequence may come to hold."""
    known: Ids = field(default_factory=lambda: _NO_IDS)
    """Of a parked sequence: the tokens in its KV."""
    used_at: float = 0.0
    leaving: bool = False
    """To be ended in the next quantum: its work was withdrawn or failed."""
    doubtful: bool = False
    """The worker refused a quantum with it: what its KV holds is not known."""
    dirty: bool = False
    """Free, but the worker may still hold cells for it: to be dropped on occasion."""

    @property
    def missing(self) -> int:
        """Prompt tokens that are still to be evaluated."""
        if self.state is not SeatState.RUNNING or self.work is None:
            return 0
        return len(self.work.prompt) - self.evaluated

    @property
    def in_prefill(self) -> bool:
        return self.missing > 0

    def tokens(self) -> Ids:
        """What is in its KV."""
        if self.state is SeatState.PARKED:
            return self.known
        if self.state is not SeatState.RUNNING or self.work is None:
            return _NO_IDS
        prompt = self.work.prompt[: self.evaluated]
        if len(self.generated) < 2:
            return prompt
        return np.concatenate([prompt, np.asarray(self.generated[:-1], dtype=np.int32)])

    def clear(self, *, dirty: bool) -> None:
        self.state, self.work, self.known = SeatState.FREE, None, _NO_IDS
        self.evaluated, self.generated, self.need = 0, [], 0
        self.leaving, self.doubtful, self.dirty = False, False, dirty

    def park(self, now: float) -> None:
        known = self.tokens()
        self.clear(dirty=False)
        self.state, self.known, self.used_at = SeatState.PARKED, known, now


def common_prefix(left: Ids, right: Ids) -> int:
    """How many tokens two sequences have in common at their start."""
    n = min(len(left), len(right))
    differing = np.flatnonzero(left[:n] != right[:n])
    return int(differing[0]) if len(differing) else n


class Sequences:
    """The seats of one worker. Only the scheduler calls it."""

    def __init__(self, measured: Measured) -> None:
        self.seats = [Seat(index) for index in range(max(1, measured.parallel))]
        self.context = max(1, measured.context)
        self.cells = measured.cells or self.context * len(self.seats)
        self.reuse = measured.reuse_equal

    # --- questions ---------------------------------------------------------------------------------------------------

    @property
    def runnable(self) -> list[Seat]:
        """Seats that can go on now."""
        return [
            seat
            for seat in self.seats
            if seat.state is SeatState.RUNNING and not seat.leaving and seat.work is not None and not seat.work.held
        ]

    @property
    def leaving(self) -> bool:
        """Somebody has to be told to go."""
        return any(seat.leaving for seat in self.seats)

    def works(self) -> list[GenerateWork]:
        """The works whose sequences are in this worker, withdrawn ones left out."""
        return [seat.work for seat in self.seats if seat.work is not None and seat.work.state is not State.DONE]

    def need_of(self, work: GenerateWork) -> int:
        return min(self.context, len(work.prompt) + work.max_tokens)

    # --- forming a quantum -------------------------------------------------------------------------------------------

    def quantum(self, queue: WorkQueue, now: float, pace: Pace) -> DecodeUnit | None:
        """The next quantum, or None if there is nothing to do. Works that start are taken out of `queue`.

        They are taken strictly in order, so that nobody small overtakes one who waits for room; only a prompt that had
        better wait for a prefix in the making is passed over.
        """
        unit = DecodeUnit(flow="decode", max_steps=1, target_ms=pace.quantum_ms)
        unit.continue_ = [seat.index for seat in self.runnable]
        for seat in self.seats:
            if seat.leaving:
                self._end(seat, unit, now)
        self._start_from(queue, now, unit, {*unit.drop, *unit.park})
        if not (unit.start or unit.continue_ or unit.drop or unit.park):
            return None
        placed = {start.seat for start in unit.start}
        for seat in self.seats:
            if seat.dirty:
                seat.dirty = False
                if seat.index not in placed and seat.index not in unit.drop:
                    unit.drop.append(seat.index)
        unit.drop = [index for index in unit.drop if index not in placed]
        self._set_pace(unit, pace)
        return unit

    def join(self, unit: DecodeUnit, queue: WorkQueue, now: float, pace: Pace) -> None:
        """Let what has come since the quantum was formed start with it: it was not sent yet. So requests that come
        together share their first quantum, and with it every one that follows."""
        involved = {*unit.drop, *unit.park}
        for start in unit.start:
            involved |= {start.seat} if start.reuse is None else {start.seat, start.reuse.seq}
        self._start_from(queue, now, unit, involved)
        self._set_pace(unit, pace)

    def _start_from(self, queue: WorkQueue, now: float, unit: DecodeUnit, involved: set[int]) -> None:
        for work in self._candidates(queue):
            if self._prefix_in_the_making(work, now):
                continue
            start = self._place(work, now, involved, unit)
            if start is None:
                break
            queue.remove(work)
            unit.start.append(start)

    def _set_pace(self, unit: DecodeUnit, pace: Pace) -> None:
        """How long the quantum is: some steps where everybody generates, and one with as many prompt tokens as fit into
        its time where there are prompts.

        Streams beside short prompts go on with a token a unit: the sooner all generate the fuller their common steps
        are. Beside long ones both get as much time, so that streams stay smooth. While nobody generates it is twice a
        unit: there is no stream to keep smooth, and a whole prompt costs less than two parts of it."""
        moving = [self.seats[index] for index in [*unit.continue_, *(start.seat for start in unit.start)]]
        prompts = [seat for seat in moving if seat.in_prefill]
        unit.prefill = bool(prompts)
        unit.max_steps = 1 if prompts else pace.steps
        if not prompts:
            return
        if len(prompts) == len(moving):
            unit.target_ms = 2 * pace.unit_ms
        elif sum(seat.missing for seat in prompts) <= SHORT_PROMPTS_TOKENS:
            unit.target_ms = pace.unit_ms
        else:
            unit.target_ms = min(pace.unit_ms, max(pace.quantum_ms, 2 * pace.step_ms))

    def can_start(self, queue: WorkQueue, now: float) -> bool:
        """Would `quantum` start anybody?"""
        for work in self._candidates(queue):
            if not self._prefix_in_the_making(work, now):
                return self._choose(work, set()) is not None
        return False

    def _candidates(self, queue: WorkQueue) -> list[GenerateWork]:
        """The first of the queue, as many as could matter: looking at all would cost more than it finds."""
        return [cast(GenerateWork, work) for work in islice(queue, 2 * len(self.seats))]

    def _end(self, seat: Seat, unit: DecodeUnit, now: float) -> None:
        if self.reuse and not seat.doubtful and seat.work is not None and seat.evaluated:
            unit.park.append(seat.index)
            seat.park(now)
        else:
            unit.drop.append(seat.index)
            seat.clear(dirty=False)

    def _prefix_in_the_making(self, work: GenerateWork, now: float) -> bool:
        if not self.reuse or (work.deadline is not None and work.deadline - now < WAIT_MARGIN_S):
            return False
        best_now = max((common_prefix(seat.tokens(), work.prompt) for seat in self.seats), default=0)
        for seat in self.runnable:
            if seat.in_prefill and seat.work is not None:
                later = common_prefix(seat.work.prompt, work.prompt)
                if later - best_now >= WAIT_FOR_PREFIX_TOKENS:
                    return True
        return False

    def _place(self, work: GenerateWork, now: float, involved: set[int], unit: DecodeUnit) -> Start | None:
        choice = self._choose(work, involved)
        if choice is None:
            return None
        seat, source, common, evicted = choice
        for victim in evicted:
            victim.clear(dirty=False)
            unit.drop.append(victim.index)
        seat.clear(dirty=False)
        seat.state, seat.work, seat.need, seat.used_at = SeatState.RUNNING, work, self.need_of(work), now
        seat.evaluated = common
        involved.add(seat.index)
        if source is None:
            return Start(work=work, seat=seat.index)
        involved.add(source.index)
        source.used_at = now
        return Start(work=work, seat=seat.index, reuse=Reuse(seq=source.index, n=common))

    def _choose(self, work: GenerateWork, involved: set[int]) -> tuple[Seat, Seat | None, int, list[Seat]] | None:
        """Seat, whose KV it takes over, how much of it, whom to evict. None: no seat or not enough cells.

        `involved`: seats that this quantum ends, or that its other starts read or write. They are neither read nor
        written again, so that the order in which a worker does its parts cannot matter.
        """
        source, common = self._best_source(work, involved)
        parked = [s for s in self.seats if s.state is SeatState.PARKED and s.index not in involved]
        parked.sort(key=lambda s: (s.used_at, s.index))
        free = [s for s in self.seats if s.state is SeatState.FREE and s.index not in involved]
        others = [s for s in parked if s is not source]
        seat: Seat | None
        if source is not None and source in parked and (2 * common >= len(source.known) or not (free or others)):
            seat = source
        else:
            seat = free[0] if free else others[0] if others else None
        if seat is None:
            return None
        evicted: list[Seat] = []
        spare = [s for s in others if s is not seat]
        while not self._fits(work, seat, evicted):
            if spare:
                evicted.append(spare.pop(0))
            elif source is not None and source in parked and seat is not source:
                seat = source
                if others and others[0] not in evicted:
                    evicted.append(others[0])
            else:
                return None
        return seat, source, common, evicted

    def _best_source(self, work: GenerateWork, involved: set[int]) -> tuple[Seat | None, int]:
        if not self.reuse:
            return None, 0
        best, most = None, MIN_REUSE_TOKENS - 1
        for seat in self.seats:
            if seat.index in involved or seat.leaving:
                continue
            # The last prompt token is always evaluated: its logits are what the first token is drawn from.
            common = min(common_prefix(seat.tokens(), work.prompt), len(work.prompt) - 1)
            if common > most:
                best, most = seat, common
        return best, most if best is not None else 0

    def _fits(self, work: GenerateWork, seat: Seat, evicted: list[Seat]) -> bool:
        taken = self.need_of(work)
        for other in self.seats:
            if other is seat or other in evicted:
                continue
            taken += other.need if other.state is SeatState.RUNNING else len(other.known)
        return taken <= max(self.cells, self.need_of(work))

    # --- what came of it ---------------------------------------------------------------------------------------------

    def cancel_start(self, start: Start) -> None:
        """The start never went out."""
        self.seats[start.seat].clear(dirty=True)

    def leave(self, work: GenerateWork) -> None:
        """The work was withdrawn or failed: its sequence ends in the next quantum."""
        for seat in self.seats:
            if seat.work is work:
                seat.leaving = True

    def refused(self, unit: DecodeUnit) -> None:
        """The worker answered ERR: whatever the quantum had to do may be done, half done or not done."""
        involved = {*unit.continue_, *(start.seat for start in unit.start)}
        for seat in self.seats:
            if seat.index in unit.drop or seat.index in unit.park:
                seat.clear(dirty=False)
                seat.state, seat.leaving = SeatState.RUNNING, True
            seat.doubtful = seat.state is SeatState.RUNNING and (seat.leaving or seat.index in involved)

    def advance(self, progress: SequenceProgress, now: float) -> GenerateWork | None:
        """Fold in what a sequence did. Returns its work, None for a seat that nobody has."""
        seat = self.seats[progress.seq]
        work = seat.work
        if seat.state is not SeatState.RUNNING or work is None:
            return None
        seat.evaluated = min(progress.n_prompt_done, len(work.prompt))
        seat.generated.extend(progress.ids)
        seat.used_at = now
        if progress.error is not None:
            seat.clear(dirty=True)
        elif progress.finish_reason is not None:
            if self.reuse:
                seat.park(now)
            else:
                seat.clear(dirty=True)
        return work

    def forget_parked(self) -> None:
        """Give up everything that is parked: the worker says that it has no room."""
        for seat in self.seats:
            if seat.state is SeatState.PARKED:
                seat.clear(dirty=True)
