"""The workers of one (artifact, runtime_config): runs the scheduler's effects and answers callers.

The lane's task (`run`) owns the workers' tasks; a worker's task owns its process. Callers wait on slots of their own.
Every event goes through the scheduler synchronously, so nothing can come between an event and its effects.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from synapse.errors import (
    EngineCrashed,
    InvalidInput,
    LaneUnavailable,
    NotAdmitted,
    OutcomeUnknown,
    Quarantined,
    SetupError,
    SynapseError,
)
from synapse.lane import checks
from synapse.lane.profile import Generation, Profile
from synapse.lane.runner import Refusal, Runner
from synapse.lane.stream import GenerationStream, Slot, fresh
from synapse.limits import Limits
from synapse.policy.budget import CrashBudget, Quarantine, key_of
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
from synapse.policy.threads import Threads
from synapse.ports import Host, WorkerSpec
from synapse.quarantine import QuarantineStore
from synapse.text import TextService
from synapse.wire.messages import Loaded, Measured, ModelFile, ModelInfo

logger = logging.getLogger("synapse.lane")

_CLOSED = "the lane was closed before the answer came"


@dataclass(frozen=True)
class Surroundings:
    """What a supervisor gives to its lanes.

    Attributes:
        entropy: in [0, 1), for the back-off's jitter.
        new_spec: how a worker of a profile is to be started for a model file: a fresh id and nonce, the sandbox.
    """

    host: Host
    limits: Limits
    text: TextService
    budget: CrashBudget
    store: QuarantineStore
    threads: Threads
    entropy: Callable[[], float]
    new_spec: Callable[[Profile, str], WorkerSpec]


class Lane:
    """One served (artifact, profile). `Supervisor.start` makes it.

    Attributes:
        state: see LoadState. It stays `loaded` while a worker restarts: requests wait for it.
        error: why it failed or is quarantined, in words.
        info, file: what the model file is; None before it was read.
        measured, dims: what the loaded engine showed; None and 0 before.
        runtime_config: what its workers are loaded with.
    """

    def __init__(self, path: str | os.PathLike[str], profile: Profile, around: Surroundings) -> None:
        self.path = Path(path)
        self.profile = profile
        self.state: LoadState = "loading"
        self.error: str | None = None
        self.info: ModelInfo | None = None
        self.file: ModelFile | None = None
        self.measured: Measured | None = None
        self.dims = 0
        self.runtime_config: dict[str, str] = {}
        self._around = around
        self._failure: SynapseError | None = None
        self._changed = trio.Event()
        self._since = trio.current_time()
        limits = around.limits
        config = SchedulerConfig(
            budgets=Budgets(requests=limits.lane_requests, bytes=limits.lane_bytes, tokens=limits.lane_bytes // 4),
            quantum_ms=limits.quantum_ms,
            unit_ms=limits.unit_ms,
            shared=profile.parallel > 1,
        )
        self.scheduler = Scheduler(config, around.threads.share(self._rearm))
        self._waiting: dict[Work, Slot | GenerationStream] = {}
        self._runners = [
            Runner(self, number, around.host, limits, Stamps(number, seen=self._since), around.new_spec)
            for number in range(profile.workers)
        ]
        self._workers_scope = trio.CancelScope()
        self._timer_due = trio.Event()
        self._armed: float | None = None
        self._probe = trio.Event()
        self._unloading = False

    # --- for callers -------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until it is loaded. Raises why it is not: InvalidInput, LaneUnavailable, Quarantined. Blocks: yes."""
        while self.state == "loading":
            await self._changed.wait()
        self._require_loaded()

    async def embed(
        self, inputs: Sequence[Ids], *, max_queue: float | None = 10.0, bulk: bool = False
    ) -> NDArray[np.float32]:
        """Embed texts, given as token ids with their special tokens.

        Shape: int32[n_tokens] each → float32[n, dims], L2-normalized, in the callers' order.
        Raises: NotAdmitted and its kinds before anything went to a worker, OutcomeUnknown and its kinds afterwards.
        Blocks: yes; it starts within `max_queue` seconds (None: whenever). `bulk`: no priority, a guaranteed share.
        Cancel: queued texts are withdrawn, the result of what is being done is dropped.
        """
        measured = self._require_loaded()
        if measured.role != "embed":
            raise InvalidInput(f"this model is for {measured.role}, not for embedding")
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
        measured = self._require_loaded()
        if measured.role != "rerank":
            raise InvalidInput(f"this model is for {measured.role}, not for reranking")
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
        measured = self._require_loaded()
        if measured.role != "generate":
            raise InvalidInput(f"this model is for {measured.role}, not for generation")
        checks.check_sampling(request.sampling, measured.vocabulary)
        work = GenerateWork(
            prompt=np.ascontiguousarray(request.prompt, dtype=np.int32),
            max_tokens=checks.check_generation(request, measured, self._around.limits),
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
        if self.state in ("failed", "quarantined"):
            if self.info is not None:
                key = key_of(self.info.digest, self.runtime_config)
                self._around.store.remove(key)
                self._around.budget.probe(key)
            self._set_state("loading")
            self._probe.set()
        await self.ready()

    async def unload(self) -> None:
        """End the lane at the workers' next unit boundary. What waits is refused, units in flight end in order,
        sequences fail. Blocks: until its workers are gone. Cancel: it goes on."""
        if not self._unloading:
            self._unloading = True
            reason = LaneUnavailable("runtime_unavailable", "the model was unloaded")
            self.apply(self.scheduler.close(reason, trio.current_time()))
            if self.state == "loaded" and all(self.scheduler.knows(runner.number) for runner in self._runners):
                for runner in self._runners:
                    self.apply(self.scheduler.control(runner.number, "unload", trio.current_time()))
            else:
                self._workers_scope.cancel()
            self._probe.set()
        while self.state != "unloaded":
            await self._changed.wait()

    def discard(self) -> None:
        """Give the lane up without waiting: whatever it does is ended."""
        self._unloading = True
        self._workers_scope.cancel()
        self._probe.set()

    def health(self) -> LaneHealth:
        """Stamped state with its age (W10). Never waits."""
        now = trio.current_time()
        counts = self.scheduler.counts()
        workers = tuple(runner.stamps.snapshot(now) for runner in self._runners)
        key = key_of(self.info.digest, self.runtime_config) if self.info is not None else None
        return LaneHealth(
            path=str(self.path),
            digest=self.info.digest if self.info is not None else "",
            state=self.state,
            age_s=min([now - self._since, *(worker.age_s for worker in workers)]),
            error=self.error,
            crashes=self._around.budget.crashes(key, now) if key is not None else 0,
            workers=workers,
            queued=counts.requests,
            queued_bytes=counts.bytes,
            units=counts.units,
            sequences=counts.sequences,
            parked=counts.parked,
        )

    @property
    def max_tokens(self) -> int:
        """The longest answer that can be asked for; 0 before it is loaded."""
        return 0 if self.measured is None else checks.max_tokens(self.measured, self._around.limits)

    # --- the lane's task ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Load, serve, restart, until it is unloaded or cancelled. The supervisor's nursery runs it, once."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._timer)
                nursery.start_soon(self._ping)
                while True:
                    with trio.CancelScope() as self._workers_scope:
                        await self._attempt()
                    if not self._unloading:
                        await self._probe.wait()
                    if self._unloading:
                        break
                    self._probe = trio.Event()
                    self.scheduler.open()
                nursery.cancel_scope.cancel()
        finally:
            reason = LaneUnavailable("runtime_unavailable", "the model was unloaded")
            self.apply(self.scheduler.close(reason, trio.current_time(), OutcomeUnknown(_CLOSED)))
            self._set_state("unloaded")

    async def _attempt(self) -> None:
        """From the file to workers that serve. Returns when the lane is parked or its workers are unloaded."""
        try:
            if self.info is None:
                self.info = await self._around.text.ingest(self.path)
                self.file = self._around.text.model(self.info, self.path)
                self.runtime_config = self.profile.runtime_config(self.info, self._around.threads.cores)
        except (NotAdmitted, SetupError, OSError) as error:
            self._park("failed", error if isinstance(error, SynapseError) else SetupError(str(error)))
            return
        key = key_of(self.info.digest, self.runtime_config)
        record = self._around.store.load(key)
        if record is not None:
            self._around.budget.restore(key, record.crashes)
            self._park("quarantined", Quarantined(f"quarantined earlier: {record.reason}", record.crashes))
            return
        async with trio.open_nursery() as nursery:
            for runner in self._runners:
                nursery.start_soon(self._keep, runner)

    async def _keep(self, runner: Runner) -> None:
        """Run one worker again and again, as the crash budget allows."""
        while True:
            end: SynapseError = OutcomeUnknown(_CLOSED)
            delay_s: float | None = 0.0
            try:
                await runner.run()
                return
            except EngineCrashed as error:
                end = error
                delay_s = self._crashed(error)
            except Refusal as error:
                delay_s = None
                self._park("failed", LaneUnavailable("runtime_unavailable", str(error)))
            except SetupError as error:
                delay_s = None
                self._park("failed", error)
            finally:
                now = trio.current_time()
                runner.stamps.state, runner.stamps.pid = "waiting", None
                self.apply(self.scheduler.worker_dead(runner.number, end, now, now + (delay_s or 0.0)))
            if delay_s is None:
                return
            await trio.sleep(delay_s)

    def _crashed(self, error: EngineCrashed) -> float | None:
        """Ask the budget. Returns the back-off in seconds, None where the lane is quarantined."""
        assert self.info is not None
        key = key_of(self.info.digest, self.runtime_config)
        logger.warning("%s: %s%s", self.path.name, error, f"\n{error.log_tail}" if error.log_tail else "")
        verdict = self._around.budget.crashed(key, trio.current_time(), self._around.entropy())
        if not isinstance(verdict, Quarantine):
            return verdict.delay_s
        message = f"quarantined after {verdict.crashes} crashes, the last one: {error}"
        try:
            self._around.store.save(key, verdict.crashes, str(error))
        except OSError as failure:
            message += f" (not recorded: {failure})"
            logger.error("%s: its quarantine could not be recorded: %s", self.path.name, failure)
        self._park("quarantined", Quarantined(message, verdict.crashes), error)
        return None

    def _park(self, state: LoadState, failure: SynapseError, running: SynapseError | None = None) -> None:
        """No more attempts until a probe: everything that waits is answered, every worker is ended."""
        self._set_state(state, failure)
        reason = (
            failure if isinstance(failure, LaneUnavailable) else LaneUnavailable("runtime_unavailable", str(failure))
        )
        self.apply(self.scheduler.close(reason, trio.current_time(), running or OutcomeUnknown(str(failure))))
        self._workers_scope.cancel()

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
            await trio.sleep(self._around.limits.ping_every_s)
            for runner in self._runners:
                if self.scheduler.idle(runner.number):
                    self.apply(self.scheduler.control(runner.number, "ping", trio.current_time()))

    # --- for the runners ---------------------------------------------------------------------------------------------

    @property
    def loading(self) -> tuple[ModelInfo, ModelFile]:
        """What is to be loaded; known when workers run."""
        assert self.info is not None
        assert self.file is not None
        return self.info, self.file

    def loaded(self, reply: Loaded, measured: Measured) -> None:
        """A worker has the model."""
        self.measured, self.dims = measured, reply.dims
        if self.state == "loading" and not self._unloading:
            self._set_state("loaded")

    def rows(self, unit: BatchUnit, values: NDArray[np.float32]) -> None:
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

    def _require_loaded(self) -> Measured:
        if self.state == "loaded" and self.measured is not None and not self._unloading:
            return self.measured
        if self._failure is not None:
            raise fresh(self._failure)
        if self.state == "loading":
            raise LaneUnavailable("model_loading", "the model is being loaded", retry_after=1.0)
        raise LaneUnavailable("runtime_unavailable", "the model was unloaded")

    def _set_state(self, state: LoadState, failure: SynapseError | None = None) -> None:
        self.state, self._failure = state, failure
        self.error = None if failure is None else str(failure)
        self._since = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()
