"""Callers of all kinds, reproducible from a seed: they ask lanes, leave, read slowly, do not wait long, and write down
what they were told."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import trio
from numpy.typing import NDArray

from synapse.errors import NotAdmitted, OutcomeUnknown
from synapse.lane import Generation, Lane
from synapse.testing.journal import Asked, Ended, Journal, Outcome
from synapse.testing.marks import marked

Ids = NDArray[np.int32]
PATIENCE_S = (None, None, None, 0.0, 0.001, 0.05, 3.0)
LEAVE_AFTER_S = (0.0, 0.001, 0.02, 0.5)


class Oracle(Protocol):
    """What a lane's answers must be. Each returns what is wrong with them, or nothing."""

    def vectors(self, texts: Sequence[Ids], got: NDArray[np.float32]) -> str: ...
    def scores(self, query: Ids, documents: Sequence[Ids], got: NDArray[np.float32]) -> str: ...
    def text(self, prompt: Ids, max_tokens: int, got: str) -> str: ...


class Traffic:
    """See the module.

    Args:
        lanes: loaded lanes; each is asked what its model is for.
        journal: where everything is written.
        seed: of all choices.
        oracle: judges the answers; None: only that they are coherent.
        longest: tokens of the longest text, and of the longest answer.
        leaving: how many of the callers leave before the end.
        patience_s: what callers choose their `max_queue` from, None for any time.
        first: the number of the first operation; two Traffics with one journal need other numbers.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        journal: Journal,
        seed: int,
        *,
        oracle: Oracle | None = None,
        longest: int = 200,
        leaving: float = 0.1,
        patience_s: Sequence[float | None] = PATIENCE_S,
        first: int = 0,
    ) -> None:
        self._lanes, self._journal, self._oracle = list(lanes), journal, oracle
        self._rng = random.Random(seed)
        self._longest, self._leaving, self._patience_s = longest, leaving, list(patience_s)
        self._numbers = itertools.count(first)

    async def run(self, operations: int, at_once: int = 50) -> None:
        """So many operations, never more than `at_once` at a time. Returns when all have ended."""
        limiter = trio.CapacityLimiter(at_once)

        async def one() -> None:
            async with limiter:
                await self.caller()

        async with trio.open_nursery() as nursery:
            for _ in range(operations):
                nursery.start_soon(one)

    async def caller(self) -> None:
        """One operation. Never raises what a lane ends with; writes it down."""
        number = next(self._numbers)
        lane = self._rng.choice(self._lanes)
        patience = self._rng.choice(self._patience_s)
        wrong = ""
        outcome: Outcome = "served"
        try:
            with trio.CancelScope() as scope:
                if self._rng.random() < self._leaving:
                    scope.deadline = trio.current_time() + self._rng.choice(LEAVE_AFTER_S)
                wrong = await self._call(lane, number, patience)
            if scope.cancelled_caught:
                outcome = "left"
        except NotAdmitted:
            outcome = "not_admitted"
        except OutcomeUnknown:
            outcome = "unknown"
        self._journal.add(Ended(trio.current_time(), number, outcome, wrong))

    async def _call(self, lane: Lane, number: int, max_queue: float | None) -> str:
        rng = self._rng
        role = lane.measured.role if lane.measured is not None else "generate"
        if role == "embed":
            texts = [marked(number, rng.randint(0, self._longest - 3)) for _ in range(rng.choice([1, 1, 1, 2, 5, 20]))]
            self._asked(number, "embed", len(texts), max_queue)
            vectors = await lane.embed(texts, max_queue=max_queue, bulk=rng.random() < 0.3)
            return self._oracle.vectors(texts, vectors) if self._oracle else _coherent(vectors, len(texts))
        if role == "rerank":
            query = marked(number, 4)
            texts = [marked(number, rng.randint(0, self._longest // 2 - 3)) for _ in range(rng.randint(1, 8))]
            self._asked(number, "rerank", len(texts), max_queue)
            scores = await lane.rerank(query, texts, max_queue=max_queue)
            return self._oracle.scores(query, texts, scores) if self._oracle else _coherent(scores, len(texts))
        prompt = marked(number, rng.randint(0, self._longest * 3 // 4 - 3))
        return await self._generate(lane, number, prompt, rng.randint(1, self._longest), max_queue)

    async def _generate(self, lane: Lane, number: int, prompt: Ids, n: int, max_queue: float | None) -> str:
        reading_s = self._rng.choice([0.0, 0.0, 0.0, 0.2])
        text = ""
        self._asked(number, "generate", 1, max_queue)
        async with lane.generate(Generation(prompt=prompt, max_tokens=n, max_queue=max_queue)) as stream:
            async for delta in stream:
                text += delta.text
                if reading_s:
                    await trio.sleep(reading_s)
        if stream.finish_reason not in ("stop", "length"):
            return f"finish reason {stream.finish_reason!r}"
        return self._oracle.text(prompt, n, text) if self._oracle else ""

    def _asked(
        self, number: int, kind: Literal["embed", "rerank", "generate"], parts: int, max_queue: float | None
    ) -> None:
        self._journal.add(Asked(trio.current_time(), number, kind, parts, max_queue))


def _coherent(values: NDArray[np.float32], count: int) -> str:
    if len(values) != count:
        return f"{len(values)} results for {count} texts"
    return "" if bool(np.isfinite(values).all()) else "results that are not finite"
