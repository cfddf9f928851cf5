"""What callers submit, what units are made of it, and what the scheduler answers with. Data only.

A *work* is one caller's request. A *unit* is what one worker does at one time; it may hold parts of several works. An
*effect* is what the shell has to do. Works are compared by identity: the shell keys its result slots by them.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from synapse.errors import NotAdmitted, SynapseError
from synapse.wire.messages import Reuse, Sampling, SequenceProgress

Ids = NDArray[np.int32]

AGE_S = 30.0
"""A request without a deadline, and the rest of a split one, is placed as if it had to start within this time: later
arrivals cannot overtake it for longer (ageing)."""


class State(enum.Enum):
    """Where a work is. QUEUED: nothing of it was handed over. ADMITTED: something was (C3). DONE: answered or gone."""

    NEW = "new"
    QUEUED = "queued"
    ADMITTED = "admitted"
    DONE = "done"


@dataclass(eq=False, kw_only=True)
class Work(ABC):
    """Base of what can be submitted.

    Attributes:
        max_queue: seconds within which it must start, or None.
        bulk: belongs to the bulk class (guaranteed share, no priority).
        state, order, deadline, key: the scheduler's own bookkeeping; read only for others. `order` is the arrival's
            number, `deadline` the latest start, `key` the place in its queue (smaller is earlier).
    """

    max_queue: float | None = 10.0
    bulk: bool = False
    state: State = State.NEW
    order: int = 0
    arrived: float = 0.0
    deadline: float | None = None
    key: float = 0.0

    def arrive(self, now: float, order: int) -> None:
        """Take a place: deadline first, by age where there is none."""
        self.state, self.order, self.arrived = State.QUEUED, order, now
        self.deadline = None if self.max_queue is None else now + self.max_queue
        self.turn_over(now)

    def turn_over(self, now: float) -> None:
        """After a unit of it went out, the rest goes behind what has arrived by now (round robin among equals)."""
        self.key = now + (AGE_S if self.max_queue is None else self.max_queue)

    @property
    def place(self) -> tuple[float, int]:
        return (self.key, self.order)

    @property
    @abstractmethod
    def tokens(self) -> int:
        """Tokens that were not handed over yet."""

    @property
    def extra_bytes(self) -> int:
        """Bytes beside the ids that wait with it (grammars, stop strings)."""
        return 0


@dataclass(eq=False, kw_only=True)
class BatchWork(Work):
    """Texts to embed, or candidates to score against one query.

    `pending` holds the indices of texts that are in no unit, shortest last (units take from the end); `waiting` is how
    many were not handed over (in a unit or not) and `waiting_tokens` their tokens; `in_units` how many are in units,
    `done` how many came back.
    """

    kind: Literal["embed", "rerank"] = "embed"
    inputs: Sequence[Ids] = ()
    query: Ids | None = None
    pending: list[int] = field(default_factory=list)
    waiting: int = 0
    waiting_tokens: int = 0
    in_units: int = 0
    done: int = 0

    def arrive(self, now: float, order: int) -> None:
        super().arrive(now, order)
        self.pending = sorted(range(len(self.inputs)), key=lambda i: (-len(self.inputs[i]), -i))
        self.waiting = len(self.inputs)
        self.waiting_tokens = sum(len(ids) for ids in self.inputs)

    def hand_over(self, index: int) -> int:
        """This text goes to a worker now. Returns its tokens."""
        self.waiting -= 1
        self.waiting_tokens -= len(self.inputs[index])
        return len(self.inputs[index])

    def cost(self, index: int) -> int:
        """Tokens that the engine sees for this text: of a pair, the query and up to four special tokens too."""
        own = len(self.inputs[index])
        return own if self.query is None else own + len(self.query) + PAIR_SPECIALS

    @property
    def tokens(self) -> int:
        return self.waiting_tokens

    @property
    def extra_bytes(self) -> int:
        return 0 if self.query is None else 4 * len(self.query)

    @property
    def finished(self) -> bool:
        return self.done == len(self.inputs)


PAIR_SPECIALS = 4
"""At most so many special tokens stand in a query-document pair (D10)."""


@dataclass(eq=False, kw_only=True)
class GenerateWork(Work):
    """One prompt to continue. `max_tokens` is at least 1 and, with the prompt, within the context."""

    prompt: Ids
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    grammar: str | None = None
    json_schema: str | None = None
    logprobs: int | None = None
    held: bool = False
    """Its reader is slow: left out of quanta."""
    retried: bool = False
    """The worker said once that it had no room for it, before anything was made."""

    @property
    def tokens(self) -> int:
        return len(self.prompt)

    @property
    def extra_bytes(self) -> int:
        texts = [*self.stop, self.grammar or "", self.json_schema or ""]
        return sum(len(text) for text in texts) + 16 * len(self.sampling.logit_bias)


# --- units -----------------------------------------------------------------------------------------------------------

Flow = Literal["batch", "decode", "bulk", "control"]
"""Who a unit's time is charged to: interactive batches, sequences, bulk batches; control steps cost nobody."""


@dataclass(eq=False, kw_only=True)
class Unit:
    """Base. `threads`: what was granted for it; 0 where the worker's own number stands."""

    flow: Flow
    threads: int = 0
    handed_over: bool = False


@dataclass(eq=False, kw_only=True)
class BatchUnit(Unit):
    """Texts of one kind, shortest first; of one work only where `query` is not None."""

    kind: Literal["embed", "rerank"]
    items: list[tuple[BatchWork, int]]
    query: Ids | None = None

    @property
    def n_tokens(self) -> int:
        return sum(work.cost(index) for work, index in self.items)


@dataclass(eq=False, kw_only=True)
class Start:
    work: GenerateWork
    seat: int
    reuse: Reuse | None = None


@dataclass(eq=False, kw_only=True)
class DecodeUnit(Unit):
    """One quantum (G5)."""

    max_steps: int
    target_ms: float
    prefill: bool = False
    """Some of it is evaluating prompts: its time says nothing of a step's."""
    start: list[Start] = field(default_factory=list)
    continue_: list[int] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)
    park: list[int] = field(default_factory=list)


@dataclass(eq=False, kw_only=True)
class GenerateUnit(Unit):
    """A whole answer in one request, for workers without DECODE (G4)."""

    work: GenerateWork


@dataclass(eq=False, kw_only=True)
class ControlUnit(Unit):
    """A step between two units of work."""

    kind: Literal["ping", "unload"]


AnyUnit = BatchUnit | DecodeUnit | GenerateUnit | ControlUnit


# --- effects ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StartUnit:
    """Send this unit to this worker; ask `confirm` for it right before."""

    worker: int
    unit: AnyUnit


@dataclass(frozen=True, eq=False)
class Admitted:
    """The first of it is going to a worker: from here on failures are of unknown outcome (C3)."""

    work: Work


@dataclass(frozen=True, eq=False)
class Progressed:
    work: GenerateWork
    progress: SequenceProgress


@dataclass(frozen=True, eq=False)
class Completed:
    """The one good end of a work."""

    work: Work


@dataclass(frozen=True, eq=False)
class Rejected:
    """The one end of a work of which nothing was handed over."""

    work: Work
    error: NotAdmitted


@dataclass(frozen=True, eq=False)
class Failed:
    """The one bad end of a work that was admitted."""

    work: Work
    error: SynapseError


Effect = StartUnit | Admitted | Progressed | Completed | Rejected | Failed
