"""Where callers wait: one slot for each finite request, one bounded stream for each generation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from synapse.errors import SynapseError
from synapse.policy.scheduler import GenerateWork
from synapse.wire.messages import SequenceProgress, TokenLogprob

BUFFER_TOKENS = 64
BUFFER_BYTES = 64 * 1024
"""A reader is slow when so much waits for it. What arrives afterwards is at most what one quantum makes."""


def fresh(error: SynapseError) -> SynapseError:
    """The same error as an exception of its own: several callers may raise it, each with its own traceback."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


class Slot:
    """The place of a finite request's result. `values` is filled row by row by the worker's task."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values
        self._done = trio.Event()
        self._error: SynapseError | None = None

    def complete(self) -> None:
        self._done.set()

    def fail(self, error: SynapseError) -> None:
        self._error = error
        self._done.set()

    async def result(self) -> NDArray[np.float32]:
        """Wait for the answer. Raises what the request ended with."""
        await self._done.wait()
        if self._error is not None:
            raise fresh(self._error)
        return self.values


@dataclass(frozen=True)
class Delta:
    """What is new: text, the ids it came from, their log-probabilities where they were asked for."""

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class GenerationStream:
    """A generation that was admitted: an async iterator of Delta. One task reads it.

    What is ready together comes as one Delta. A reader that does not read holds back its own sequence only. After the
    iteration `finish_reason` and the counts are final; the iteration raises what the generation failed with.

    Attributes:
        finish_reason: `stop` or `length`; None before the end.
        n_prompt, n_gen, n_reused: tokens of the prompt, generated so far, and of the prompt taken from an earlier one.
        seed: the draw's.
    """

    def __init__(self, work: GenerateWork, slow: Callable[[], None], ready: Callable[[], None]) -> None:
        self.finish_reason: str | None = None
        self.n_prompt = len(work.prompt)
        self.n_gen = 0
        self.n_reused = 0
        self.seed = work.sampling.seed
        self._slow, self._ready = slow, ready
        self._held = False
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._bytes = 0
        self._admitted = trio.Event()
        self._ended = False
        self._error: SynapseError | None = None
        self._news = trio.Event()

    # --- the lane's side ---------------------------------------------------------------------------------------------

    def admit(self) -> None:
        self._admitted.set()

    def push(self, progress: SequenceProgress) -> None:
        """Take what a quantum made."""
        self.n_gen, self.n_reused = progress.n_gen, progress.n_reused
        self.finish_reason = progress.finish_reason
        self._ids.extend(progress.ids)
        self._logprobs.extend(progress.logprobs or ())
        if progress.text:
            self._text.append(progress.text)
            self._bytes += len(progress.text)
        if progress.text or progress.logprobs:
            self._news.set()
        if not self._held and (len(self._ids) >= BUFFER_TOKENS or self._bytes >= BUFFER_BYTES):
            self._held = True
            self._slow()

    def complete(self) -> None:
        self._ended = True
        self._news.set()

    def fail(self, error: SynapseError) -> None:
        self._error = error
        self._ended = True
        self._admitted.set()
        self._news.set()

    # --- the reader's side -------------------------------------------------------------------------------------------

    async def admitted(self) -> None:
        """Wait until its prompt is going to a worker. Raises what it was rejected with."""
        await self._admitted.wait()
        if self._error is not None:
            raise fresh(self._error)

    def __aiter__(self) -> GenerationStream:
        return self

    async def __anext__(self) -> Delta:
        await self._news.wait()
        if self._text or self._logprobs or (self._ended and self._ids):
            return self._take()
        if self._error is not None:
            raise fresh(self._error)
        raise StopAsyncIteration

    def _take(self) -> Delta:
        delta = Delta("".join(self._text), tuple(self._ids), tuple(self._logprobs))
        self._text, self._ids, self._logprobs, self._bytes = [], [], [], 0
        if not self._ended:
            self._news = trio.Event()
        if self._held:
            self._held = False
            self._ready()
        return delta
