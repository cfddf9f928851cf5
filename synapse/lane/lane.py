"""A lane as its callers see it: plain async calls on the workers of one (artifact, runtime_config).

Callers wait on slots of their own. Every event goes through the scheduler synchronously and its effects are carried out
at once, so nothing can come between the two. What becomes of the workers is `life.py`.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import trio
from numpy.typing import NDArray

from synapse.lane import checks
from synapse.lane.life import Life, Surroundings
from synapse.lane.profile import Generation, Profile
from synapse.lane.runner import Runner
from synapse.lane.stream import GenerationStream, Slot
from synapse.policy.health import LaneHealth, LoadState, Stamps
from synapse.policy.scheduler import (
    Admitted,
    BatchUnit,
    BatchWork,
    Budgets,
    Completed,
    Effect,
    Failed,
    GenerateWork,
    Ids,
    Progressed,
    Rejected,
    Scheduler,
    SchedulerConfig,
    StartUnit,
    Work,
)
from synapse.wire.messages import Measured, ModelFile, ModelInfo


class Lane:
    """One served (artifact, profile). `Supervisor.start` makes it. Its state and what was measured are its `Life`'s."""

    def __init__(self, path: str | os.PathLike[str], profile: Profile, around: Surroundings) -> None:
        self.profile = profile
        self._limits = limits = around.limits
        config = SchedulerConfig(
            budgets=Budgets(requests=limits.lane_requests, bytes=limits.lane_bytes, tokens=limits.lane_bytes // 4),
            quantum_ms=limits.quantum_ms,
            unit_ms=limits.unit_ms,
            shared=profile.parallel > 1,
        )
        self.scheduler = Scheduler(config, around.threads.share(self._rearm))
        self._life = Life(path, profile, around, self.scheduler, self.apply)
        self.path = self._life.path
        self._waiting: dict[Work, Slot | GenerationStream] = {}
        self._runners = [
            Runner(
                self._life,
                number,
                around.host,
                limits,
                Stamps(number, seen=trio.current_time()),
                around.new_spec,
                self._rows,
            )
            for number in range(profile.workers)
        ]
        self._timer_due = trio.Event()
        self._armed: float | None = None

    # --- what it is --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> LoadState:
        """See LoadState. It stays `loaded` while a worker restarts: requests wait for it."""
        return self._life.state

    @property
    def restarting(self) -> bool:
        """It is loaded, but no worker lives now (W7)."""
        return self.state == "loaded" and not any(runner.stamps.live for runner in self._runners)

    @property
    def error(self) -> str | None:
        """Why it failed or is quarantined, in words."""
        return self._life.error

    @property
    def info(self) -> ModelInfo | None:
        """What the model file is; None before it was read."""
        return self._life.info

    @property
    def file(self) -> ModelFile | None:
        """How the text service names the model; None before the file was read."""
        return self._life.file

    @property
    def runtime_config(self) -> dict[str, str]:
        """What its workers are loaded with."""
        return self._life.runtime_config

    @property
    def measured(self) -> Measured | None:
        """What the loaded engine showed; None before."""
        return self._life.measured

    @property
    def dims(self) -> int:
        """Of its vectors; 0 before it was loaded."""
        return self._life.dims

    @property
    def max_tokens(self) -> int:
        """The longest answer that can be asked for; 0 before it is loaded."""
        return 0 if self.measured is None else checks.max_tokens(self.measured, self._limits)

    # --- for callers -------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until it is loaded. Raises why it is not: InvalidInput, LaneUnavailable, Quarantined. Blocks: yes."""
        await self._life.ready()

    async def embed(
        self, inputs: Sequence[Ids], *, max_queue: float | None = 10.0, bulk: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts, given as token ids with their special tokens.

        Shape: int32[n_tokens] each → float32[n, dims], L2-normalized, in the callers' order.
        Raises: NotAdmitted and its kinds before anything went to a worker, OutcomeUnknown and its kinds afterwards.
        Blocks: yes; it starts within `max_queue` seconds (None: whenever). `bulk`: no priority, a guaranteed share.
        Cancel: queued texts are withdrawn, the result of what is being done is dropped.
        """
        measured = self._life.require_loaded()
        checks.check_task(measured, "embed")
        checks.check_texts(inputs, measured)
        if not inputs:
            return np.zeros((0, self.dims), dtype=np.float32)
        work = BatchWork(kind="embed", inputs=inputs, max_queue=max_queue, bulk=bulk)
        return await self._finite(work, Slot(np.empty((len(inputs), self.dims), dtype=np.float32)))

    async def rerank(
        self, query: Ids, documents: Sequence[Ids], *, max_queue: float | None = 10.0, bulk: bool = False
    ) -> NDArray[np.float32]:
        """Score documents against a query, both given as token ids without special tokens (D10).

        Shape: float32[n], in the documents' order, on the model's own scale. The rest is as for `embed`.
        """
        measured = self._life.require_loaded()
        checks.check_task(measured, "rerank")
        checks.check_pairs(query, documents, measured)
        if not documents:
            return np.zeros(0, dtype=np.float32)
        work = BatchWork(kind="rerank", inputs=documents, query=query, max_queue=max_queue, bulk=bulk)
        return await self._finite(work, Slot(np.empty(len(documents), dtype=np.float32)))

    @asynccontextmanager
    async def generate(self, request: Generation) -> AsyncIterator[GenerationStream]:
        """Continue a prompt. Entering waits until it is admitted: its prompt is going to a worker.

        Raises: as `embed`; after the admission the stream's iteration does.
        Blocks: entering, up to `max_queue`. Cancel: a queued request is withdrawn; leaving the block at any time ends
        the sequence in the next quantum.
        """
        measured = self._life.require_loaded()
        checks.check_task(measured, "generate")
        checks.check_sampling(request.sampling, measured.vocabulary)
        work = GenerateWork(
            prompt=np.ascontiguousarray(request.prompt, dtype=np.int32),
            max_tokens=checks.check_generation(request, measured, self._limits),
            sampling=request.sampling,
            stop=request.stop,
            grammar=request.grammar or None,
            json_schema=request.json_schema or None,
            logprobs=request.logprobs,
            max_queue=request.max_queue,
        )
        stream = GenerationStream(
            work,
            slow=lambda: self.scheduler.reader_slow(work),
            ready=lambda: self.apply(self.scheduler.reader_ready(work, trio.current_time())),
        )
        try:
            self._submit(work, stream)
            await stream.admitted()
            yield stream
        finally:
            self._leave(work)

    async def probe(self) -> None:
        """Try a failed or quarantined lane again, on purpose: its crash budget starts anew (W9, D6).

        Raises: as `ready`; OSError if the record of the quarantine cannot be removed.
        Blocks: until it is loaded or not.
        """
        await self._life.probe()

    async def unload(self) -> None:
        """End the lane at the workers' next unit boundary. What waits is refused, units in flight end in order,
        sequences fail. Blocks: until its workers are gone. Cancel: it goes on."""
        await self._life.unload()

    def discard(self) -> None:
        """Give the lane up without waiting: whatever it does is ended."""
        self._life.discard()

    def health(self) -> LaneHealth:
        """Stamped state with its age (W10). Never waits."""
        return self._life.health(self._runners)

    # --- the lane's task ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load, serve, restart, until it is unloaded or cancelled. The supervisor's nursery runs it, once."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._timer)
            nursery.start_soon(self._ping)
            await self._life.run(self._runners)
            nursery.cancel_scope.cancel()

    async def _timer(self) -> None:
        """Tick when the scheduler wants it."""
        while True:
            self._timer_due = trio.Event()
            self._armed = self.scheduler.next_deadline
            with trio.move_on_at(math.inf if self._armed is None else self._armed):
                await self._timer_due.wait()
            self.apply(self.scheduler.tick(trio.current_time()))

    def _rearm(self) -> None:
        self._timer_due.set()

    async def _ping(self) -> None:
        """PING workers that have nothing to do, so that health shows what is true (W10)."""
        while True:
            await trio.sleep(self._limits.ping_every_s)
            for runner in self._runners:
                if self.scheduler.idle(runner.number):
                    self.apply(self.scheduler.control(runner.number, "ping", trio.current_time()))

    def _rows(self, unit: BatchUnit, values: NDArray[np.float32]) -> None:
        """Put a unit's results where their callers wait for them; nobody may wait for some of them any more."""
        for (work, index), value in zip(unit.items, values, strict=True):
            slot = self._waiting.get(work)
            if isinstance(slot, Slot):
                slot.values[index] = value

    def apply(self, effects: list[Effect]) -> None:
        """Carry out what the scheduler decided."""
        for effect in effects:
            if isinstance(effect, StartUnit):
                self._runners[effect.worker].start(effect.unit)
                continue
            waiting = self._waiting.get(effect.work)
            if waiting is None:
                continue
            if isinstance(effect, Rejected | Failed):
                waiting.fail(effect.error)
            elif isinstance(effect, Completed):
                waiting.complete()
            elif isinstance(waiting, GenerationStream):
                if isinstance(effect, Progressed):
                    waiting.push(effect.progress)
                elif isinstance(effect, Admitted):
                    waiting.admit()
        due = self.scheduler.next_deadline
        if due is not None and (self._armed is None or due < self._armed):
            self._armed = due
            self._timer_due.set()

    # --- small things ------------------------------------------------------------------------------------------------

    async def _finite(self, work: BatchWork, slot: Slot) -> NDArray[np.float32]:
        try:
            self._submit(work, slot)
            return await slot.result()
        finally:
            self._leave(work)

    def _submit(self, work: Work, waiting: Slot | GenerationStream) -> None:
        self._waiting[work] = waiting
        self.apply(self.scheduler.submit(work, trio.current_time()))

    def _leave(self, work: Work) -> None:
        """The caller is gone, with its answer or without."""
        self._waiting.pop(work, None)
        self.apply(self.scheduler.withdraw(work, trio.current_time()))
