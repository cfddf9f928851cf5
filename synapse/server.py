"""A foreign server program (llama-server) supervised as a worker is: deadlines, kill ladder, crash budget, quarantine.

The program speaks no protocol of ours. What tells its life is its exit and two questions that the caller brings: is it
ready (asked while it boots), is it healthy (asked now and then). It is restarted as the budget allows (W9, D14).
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import trio

from synapse.errors import EngineCrashed, LaneUnavailable, Quarantined, SetupError, Stage, SynapseError
from synapse.host.managed import ManagedProcess, managed_process
from synapse.limits import Limits
from synapse.policy.budget import CrashBudget, Key, Quarantine, Restart
from synapse.quarantine import QuarantineStore

logger = logging.getLogger("synapse.server")

READY_EVERY_S = 0.1
"""How often a booting program is asked whether it is ready."""
Question = Callable[[], Awaitable[bool]]


@dataclass(frozen=True)
class ServerSpec:
    """A program to run.

    Attributes:
        name: for logs.
        key: its crash budget's key; equal keys share one.
        argv: program and arguments.
        ready: whether the booting program can serve; must not raise.
        healthy: whether the running one still answers; must not raise, is bounded by `Limits.ping_s`.
        size: bytes of its artifact: the boot's deadline grows with it as LOAD's does.
        socket: the Unix socket that it makes, which it leaves behind: removed before each start.
    """

    name: str
    key: Key
    argv: Sequence[str]
    ready: Question
    healthy: Question
    env: Mapping[str, str] = field(default_factory=dict)
    size: int = 0
    socket: str | None = None


class ManagedServer:
    """One supervised program. `run` is its life and the single writer of its state.

    Attributes:
        state: loading, loaded, failed or quarantined, as a lane's.
        error: why it failed or is quarantined.
        last_crash: the last EngineCrashed, for whoever had a request in it.
        generation: grows with every start: a request of an older one is lost.
        seen: trio time of the last sign of health.
    """

    def __init__(
        self,
        spec: ServerSpec,
        limits: Limits,
        budget: CrashBudget,
        store: QuarantineStore,
        entropy: Callable[[], float],
    ) -> None:
        self.spec = spec
        self._limits, self._budget, self._store, self._entropy = limits, budget, store, entropy
        self.state = "loading"
        self.error: str | None = None
        self.last_crash: EngineCrashed | None = None
        self.generation = 0
        self.pid: int | None = None
        self.seen = trio.current_time()
        self._failure: SynapseError | None = None
        self._settled = trio.Event()
        self._probe = trio.Event()
        self._ended = trio.Event()

    async def ready(self) -> None:
        """Wait until it is loaded. Raises what made it fail: SetupError, LaneUnavailable, Quarantined."""
        while self.state != "loaded":
            if self._failure is not None:
                raise self._failure
            await self._settled.wait()

    async def probe(self) -> None:
        """Try a failed or quarantined one again, on purpose; waits as `ready` does (D6). Raises OSError too."""
        if self._failure is not None:
            self._store.remove(self.spec.key)
            self._budget.probe(self.spec.key)
            self._log(logging.INFO, "probe", state=self.state, error=self.error)
            self._set("loading", None)
            self._probe.set()
        await self.ready()

    async def changed(self) -> None:
        """Wait for the next change of its state."""
        await self._settled.wait()

    async def gone(self, generation: int) -> None:
        """Wait until the process of this generation is gone. Blocks for ever while it lives: bound it."""
        while self.pid is not None and self.generation == generation:
            await self._ended.wait()

    async def run(self) -> None:
        """Start it again and again, as the budget allows; between quarantine and probe there is no process."""
        record = self._store.load(self.spec.key)
        if record is not None:
            self._budget.restore(self.spec.key, record.crashes)
            self._set("quarantined", Quarantined(f"quarantined earlier: {record.reason}", record.crashes))
            await self._until_probed()
        while True:
            try:
                await self._life()
            except EngineCrashed as crash:
                delay = self._crashed(crash)
            except SetupError as error:
                self._set("failed", error)
                delay = None
            if delay is None:
                await self._until_probed()
            else:
                await trio.sleep(delay)

    async def _life(self) -> None:
        """One process, from spawn to reap. Raises EngineCrashed, SetupError; never returns."""
        crash: EngineCrashed | None = None
        self.generation += 1
        if self.spec.socket is not None:
            await trio.Path(self.spec.socket).unlink(missing_ok=True)
        async with managed_process(self.spec.argv, env=self.spec.env) as process:
            self.pid = process.pid
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._watch_exit, process, nursery.cancel_scope)
                    crash = await self._serve(process)
            finally:
                booted = self.state == "loaded"
                self._set("loading", None)
                self.pid = None
                ended, self._ended = self._ended, trio.Event()
                ended.set()
            # The watcher ended the block: the process is gone.
            crash = crash or await self._exit_of(process, booted)
        raise crash

    async def _watch_exit(self, process: ManagedProcess, scope: trio.CancelScope) -> None:
        await process.wait()
        scope.cancel()

    async def _exit_of(self, process: ManagedProcess, booted: bool) -> EngineCrashed:
        status = await process.wait()
        stage: Stage = "request" if booted else "load"
        how = f"signal {-status}" if status < 0 else f"status {status}"
        message = f"{self.spec.name} ended with {how}"
        return EngineCrashed(stage, message, exit_status=status, log_tail=await process.log_tail())

    async def _serve(self, process: ManagedProcess) -> EngineCrashed:
        """Boot, then ask now and then. Returns the verdict over a program that hangs."""
        deadline = self._limits.load_s(self.spec.size)
        with trio.move_on_after(deadline) as boot:
            while not await self.spec.ready():  # noqa: ASYNC110 - a foreign program tells nobody: it must be asked
                await trio.sleep(READY_EVERY_S)
        if boot.cancelled_caught:
            return await self._hung(process, f"{self.spec.name} was not ready after {deadline:g} s")
        self._set("loaded", None)
        while True:
            self.seen = trio.current_time()
            await trio.sleep(self._limits.ping_every_s)
            healthy = False
            with trio.move_on_after(self._limits.ping_s):
                healthy = await self.spec.healthy()
            if not healthy:
                return await self._hung(process, f"{self.spec.name} did not answer within {self._limits.ping_s:g} s")

    async def _hung(self, process: ManagedProcess, message: str) -> EngineCrashed:
        process.kill()
        tail = await process.log_tail()
        return EngineCrashed("timeout", message, log_tail=tail)

    def _crashed(self, crash: EngineCrashed) -> float | None:
        """Ask the budget. Returns the back-off in seconds, None where it is quarantined."""
        self.last_crash = crash
        self._log(
            logging.WARNING,
            "server_crashed",
            stage=crash.stage,
            exit_status=crash.exit_status,
            message=str(crash),
            log_tail=crash.log_tail[-2048:] or None,
        )
        verdict = self._budget.crashed(self.spec.key, trio.current_time(), self._entropy())
        match verdict:
            case Restart(delay_s=delay):
                self._set("loading", None)
                self._log(logging.INFO, "server_restarts", delay_s=delay)
                return delay
            case Quarantine(crashes=crashes):
                not_recorded: str | None = None
                message = verdict.message(crash)
                try:
                    self._store.save(self.spec.key, crashes, str(crash))
                except OSError as error:
                    not_recorded = str(error)
                    message += f" (not recorded: {error})"
                self._log(logging.ERROR, "quarantined", crashes=crashes, stage=crash.stage, not_recorded=not_recorded)
                self._set("quarantined", Quarantined(message, crashes))
                return None

    def _set(self, state: str, failure: SynapseError | None) -> None:
        self.state, self._failure = state, failure
        self.error = None if failure is None else str(failure)
        settled, self._settled = self._settled, trio.Event()
        settled.set()

    def _log(self, level: int, event: str, **fields: object) -> None:
        """One record for each event, as `synapse.lane.life` writes them."""
        fields = {"server": self.spec.name, **fields}
        words = " ".join(f"{name}={value}" for name, value in fields.items() if value is not None)
        logger.log(level, "%s %s", event, words, extra={"event": event, "fields": fields})

    async def _until_probed(self) -> None:
        await self._probe.wait()
        self._probe = trio.Event()

    @property
    def degraded(self) -> bool:
        """Programs of this kind crashed too often lately, whichever they were (W9)."""
        return self._budget.degraded(trio.current_time())

    def unavailable(self) -> LaneUnavailable | None:
        """Why it takes no requests now; None: it does."""
        if self.state == "loaded":
            return None
        if isinstance(self._failure, LaneUnavailable):
            return self._failure
        reason = "runtime_unavailable"
        if self.state == "loading":
            reason = "model_loading" if self.last_crash is None else "model_restarting"
        return LaneUnavailable(reason, self.error or f"{self.spec.name} is {self.state}", 1.0)
