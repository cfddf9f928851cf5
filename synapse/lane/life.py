"""The life of a lane: from the file to workers that serve, restarts, quarantine, probes, and the end.

`Life` is the single writer of the lane's state. Its task owns the workers' tasks, and each of those its process.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from synapse.errors import (
    EngineCrashed,
    LaneUnavailable,
    NotAdmitted,
    OutcomeUnknown,
    Quarantined,
    SetupError,
    SynapseError,
)
from synapse.lane.profile import Profile
from synapse.lane.runner import Refusal, Runner
from synapse.lane.stream import fresh
from synapse.limits import Limits
from synapse.policy.budget import CrashBudget, Key, Quarantine, key_of
from synapse.policy.health import LaneHealth, LoadState
from synapse.policy.scheduler import Effect, Scheduler
from synapse.policy.threads import Threads
from synapse.ports import Host, WorkerSpec
from synapse.quarantine import QuarantineStore
from synapse.text import TextService
from synapse.wire.messages import Loaded, Measured, ModelFile, ModelInfo

logger = logging.getLogger("synapse.lane")

_CLOSED = "the lane was closed before the answer came"
_UNLOADED = "the model was unloaded"


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


class Life:
    """See the module. `apply` carries out the scheduler's effects.

    Attributes:
        state: see LoadState. It stays `loaded` while a worker restarts.
        error: why it failed or is quarantined, in words.
        info, file, runtime_config: what is loaded, and with what; None and empty before the file was read.
        measured, dims: what the loaded engine showed; None and 0 before.
        runners: the workers' tasks.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        profile: Profile,
        around: Surroundings,
        scheduler: Scheduler,
        apply: Callable[[list[Effect]], None],
    ) -> None:
        self.path, self.profile, self.scheduler, self.apply = Path(path), profile, scheduler, apply
        self.state: LoadState = "loading"
        self.error: str | None = None
        self.info: ModelInfo | None = None
        self.file: ModelFile | None = None
        self.runtime_config: dict[str, str] = {}
        self.measured: Measured | None = None
        self.dims = 0
        self._around = around
        self._failure: SynapseError | None = None
        self._since = trio.current_time()
        self._changed = trio.Event()
        self._probe = trio.Event()
        self._unloading = False
        self._workers = trio.CancelScope()
        self._scopes: dict[int, trio.CancelScope] = {}

    # --- what the lane asks ------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until it is loaded. Raises why it is not."""
        while self.state == "loading":
            await self._changed.wait()
        self.require_loaded()

    def require_loaded(self) -> Measured:
        """What the loaded engine showed. Raises why work cannot be taken now."""
        if self.state == "loaded" and self.measured is not None and not self._unloading:
            return self.measured
        if self._failure is not None:
            raise fresh(self._failure)
        if self.state == "loading":
            raise LaneUnavailable("model_loading", "the model is being loaded", retry_after=1.0)
        raise LaneUnavailable("runtime_unavailable", _UNLOADED)

    async def probe(self) -> None:
        """Try again on purpose; see `Lane.probe`."""
        if self.state in ("failed", "quarantined"):
            if (key := self.key) is not None:
                self._around.store.remove(key)
                self._around.budget.probe(key)
            self._log(logging.INFO, "probe", state=self.state, error=self.error)
            self._set_state("loading")
            self._probe.set()
        await self.ready()

    async def unload(self) -> None:
        """End at the workers' next unit boundary; see `Lane.unload`."""
        if not self._unloading:
            self._unloading = True
            self._close(LaneUnavailable("runtime_unavailable", _UNLOADED), None)
            for number, scope in list(self._scopes.items()):
                if self.scheduler.knows(number):
                    self.apply(self.scheduler.control(number, "unload", trio.current_time()))
                else:
                    scope.cancel()
            if not self._scopes:
                self._workers.cancel()
            self._probe.set()
        while self.state != "unloaded":
            await self._changed.wait()

    def discard(self) -> None:
        """Give it up without waiting: whatever it does is ended."""
        self._unloading = True
        self._workers.cancel()
        self._probe.set()

    @property
    def key(self) -> Key | None:
        """Of the crash budget; None before the file was read."""
        return None if self.info is None else key_of(self.info.digest, self.runtime_config)

    def health(self, runners: list[Runner]) -> LaneHealth:
        """Stamped state with its age (W10). Never waits."""
        now = trio.current_time()
        counts = self.scheduler.counts()
        workers = tuple(runner.stamps.snapshot(now) for runner in runners)
        alive = self.state != "loaded" or any(worker.live for worker in workers)
        return LaneHealth(
            path=str(self.path),
            digest=self.info.digest if self.info is not None else "",
            state=self.state if alive else "restarting",
            age_s=min([now - self._since, *(worker.age_s for worker in workers)]),
            error=self.error,
            crashes=0 if self.key is None else self._around.budget.crashes(self.key, now),
            workers=workers,
            queued=counts.requests,
            queued_bytes=counts.bytes,
            units=counts.units,
            sequences=counts.sequences,
            parked=counts.parked,
        )

    # --- the lane's task ---------------------------------------------------------------------------------------------

    async def run(self, runners: list[Runner]) -> None:
        """Load, serve, restart, until it is unloaded or cancelled."""
        try:
            while True:
                with trio.CancelScope() as self._workers:
                    await self._attempt(runners)
                if not self._unloading:
                    await self._probe.wait()
                if self._unloading:
                    break
                self._probe = trio.Event()
                self.scheduler.open()
        finally:
            self._close(LaneUnavailable("runtime_unavailable", _UNLOADED), OutcomeUnknown(_CLOSED))
            self._set_state("unloaded")

    async def _attempt(self, runners: list[Runner]) -> None:
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
            for runner in runners:
                nursery.start_soon(self._keep, runner)

    async def _keep(self, runner: Runner) -> None:
        """Run one worker again and again, as the crash budget allows."""
        with trio.CancelScope() as scope:
            self._scopes[runner.number] = scope
            try:
                delay_s = await self._run_once(runner)
                while delay_s is not None and not self._unloading:
                    self._log(logging.INFO, "worker_restarts", worker=runner.number, delay_s=delay_s)
                    await trio.sleep(delay_s)
                    delay_s = await self._run_once(runner)
            finally:
                del self._scopes[runner.number]

    async def _run_once(self, runner: Runner) -> float | None:
        """One life of a worker. Returns after how many seconds the next one may begin; None: there is none."""
        end: SynapseError = OutcomeUnknown(_CLOSED)
        delay_s: float | None = None
        try:
            await runner.run()
        except EngineCrashed as error:
            end = error
            delay_s = self._crashed(error, runner.number)
        except Refusal as error:
            self._park("failed", LaneUnavailable("runtime_unavailable", str(error)))
        except SetupError as error:
            self._park("failed", error)
        finally:
            now = trio.current_time()
            runner.stamps.died()
            self.apply(self.scheduler.worker_dead(runner.number, end, now, now + (delay_s or 0.0)))
        return delay_s

    def _crashed(self, error: EngineCrashed, worker: int) -> float | None:
        """Ask the budget. Returns the back-off in seconds, None where the lane is quarantined."""
        assert self.info is not None
        key = key_of(self.info.digest, self.runtime_config)
        self._log(
            logging.WARNING,
            "worker_crashed",
            worker=worker,
            stage=error.stage,
            exit_status=error.exit_status,
            message=str(error),
            log_tail=error.log_tail[-2048:] or None,
        )
        verdict = self._around.budget.crashed(key, trio.current_time(), self._around.entropy())
        if not isinstance(verdict, Quarantine):
            return verdict.delay_s
        message = verdict.message(error)
        not_recorded: str | None = None
        try:
            self._around.store.save(key, verdict.crashes, str(error))
        except OSError as failure:
            not_recorded = str(failure)
            message += f" (not recorded: {failure})"
        self._log(logging.ERROR, "quarantined", crashes=verdict.crashes, stage=error.stage, not_recorded=not_recorded)
        self._park("quarantined", Quarantined(message, verdict.crashes), error)
        return None

    def _park(self, state: LoadState, failure: SynapseError, running: SynapseError | None = None) -> None:
        """No more attempts until a probe: everything that waits is answered, every worker is ended."""
        self._set_state(state, failure)
        reason = (
            failure if isinstance(failure, LaneUnavailable) else LaneUnavailable("runtime_unavailable", str(failure))
        )
        self._close(reason, running or OutcomeUnknown(str(failure)))
        self._workers.cancel()

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

    # --- small things ------------------------------------------------------------------------------------------------

    def _log(self, level: int, event: str, **fields: object) -> None:
        """One record for each event; `event` and `fields` are attributes of it, for logs that keep structure."""
        fields = {"file": self.path.name, **fields}
        words = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        logger.log(level, "%s %s", event, words, extra={"event": event, "fields": fields})

    def _close(self, reason: LaneUnavailable, running: SynapseError | None) -> None:
        self.apply(self.scheduler.close(reason, trio.current_time(), running))

    def _set_state(self, state: LoadState, failure: SynapseError | None = None) -> None:
        self.state, self._failure = state, failure
        self.error = None if failure is None else str(failure)
        self._since = trio.current_time()
        self._changed.set()
        self._changed = trio.Event()
