"""`open_supervisor()`: the nursery that owns every lane and the text processes. Leaving it leaves nothing behind."""

from __future__ import annotations

import itertools
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import trio

from synapse.errors import LaneUnavailable, SynapseError
from synapse.host.real import RealHost
from synapse.host.rundir import fresh_directory
from synapse.lane import Lane, Profile, Surroundings
from synapse.limits import Limits
from synapse.policy.budget import BudgetConfig, CrashBudget
from synapse.policy.health import Health
from synapse.policy.threads import Threads
from synapse.ports import Host, WorkerSpec
from synapse.quarantine import QuarantineStore
from synapse.server import ManagedServer, ServerSpec
from synapse.text import TextService, open_text_service

__all__ = ["Profile", "Supervisor", "SupervisorConfig", "default_directory", "open_supervisor"]


@dataclass(frozen=True)
class SupervisorConfig:
    """Where a supervisor keeps its things, and its numbers.

    Attributes:
        runtime_dir: sockets; made, mode 0700, one supervisor at a time. None: a fresh one that is removed at the end.
        state_dir: quarantine records, kept. None: the platform's place for state.
        cache_dir: what was read from model files, by digest. None: the platform's place for caches.
        text_processes: processes for text work (W13).
        text_argv: another program for them, without --socket and --nonce.
        threads: of all lanes together. None: the cores that this process may use.
        entropy: random bytes for nonces and jitter; a simulation passes its own.
    """

    runtime_dir: Path | str | None = None
    state_dir: Path | str | None = None
    cache_dir: Path | str | None = None
    text_processes: int = 2
    text_argv: Sequence[str] | None = None
    threads: int | None = None
    limits: Limits = field(default_factory=Limits)
    entropy: Callable[[int], bytes] = secrets.token_bytes


class Supervisor:
    """Lanes and the text service, for as long as the block of `open_supervisor` runs."""

    def __init__(self, config: SupervisorConfig, host: Host, text: TextService, nursery: trio.Nursery) -> None:
        self.text = text
        self._config = config
        self._host = host
        self._nursery = nursery
        self._lanes: list[Lane] = []
        self._budgets: dict[str, CrashBudget] = {}
        self._threads = Threads(config.threads or _cores())
        self._store = QuarantineStore(config.state_dir or default_directory("state"))
        self._numbers = itertools.count(1)
        self._closing = False

    def start(self, path: str | os.PathLike[str], profile: Profile | None = None) -> Lane:
        """Begin to load a model; at once. The lane is `loading` and then `loaded`, `failed` or `quarantined`.

        Raises: LaneUnavailable while the supervisor shuts down.
        """
        if self._closing:
            raise LaneUnavailable("runtime_unavailable", "the supervisor shuts down")
        profile = profile or Profile()
        limits = self._config.limits
        surroundings = Surroundings(
            host=self._host,
            limits=limits,
            text=self.text,
            budget=self._budgets.setdefault(profile.engine, CrashBudget(_budget_config(limits))),
            store=self._store,
            threads=self._threads,
            entropy=self._entropy,
            new_spec=self._spec,
        )
        lane = Lane(path, profile, surroundings)
        self._lanes.append(lane)
        self._nursery.start_soon(self._own, lane)
        return lane

    async def load(self, path: str | os.PathLike[str], profile: Profile | None = None) -> Lane:
        """Load a model and wait for it.

        Raises: InvalidInput for a file that is no model, SetupError, LaneUnavailable, Quarantined: as `Lane.ready`. The
        failed lane is unloaded then. Cancel: the same.
        """
        lane = self.start(path, profile)
        try:
            await lane.ready()
        except BaseException:
            lane.discard()
            raise
        return lane

    def serve(self, spec: ServerSpec) -> ManagedServer:
        """Begin to run a foreign server program under the same supervision as workers; at once (D14).

        Raises: LaneUnavailable while the supervisor shuts down.
        """
        if self._closing:
            raise LaneUnavailable("runtime_unavailable", "the supervisor shuts down")
        limits = self._config.limits
        budget = self._budgets.setdefault("server", CrashBudget(_budget_config(limits)))
        server = ManagedServer(spec, limits, budget, self._store, self._entropy)
        self._nursery.start_soon(server.run)
        return server

    @property
    def lanes(self) -> tuple[Lane, ...]:
        """All lanes that were started and not unloaded."""
        return tuple(lane for lane in self._lanes if lane.state != "unloaded")

    def health(self) -> Health:
        """A snapshot with ages. Never waits on anything (W10)."""
        now = trio.current_time()
        return Health(
            degraded=any(budget.degraded(now) for budget in self._budgets.values()),
            lanes=tuple(lane.health() for lane in self.lanes),
            threads=self._threads.cores,
            threads_granted=self._threads.granted,
        )

    def _entropy(self) -> float:
        """Uniform in [0, 1)."""
        return int.from_bytes(self._config.entropy(6), "big") / 2**48

    async def _own(self, lane: Lane) -> None:
        try:
            await lane.run()
        finally:
            self._lanes.remove(lane)

    def _spec(self, profile: Profile, path: str) -> WorkerSpec:
        return WorkerSpec(
            worker_id=f"w{next(self._numbers)}",
            argv=profile.program(),
            nonce=self._config.entropy(8).hex(),
            env={**_sandbox(profile, path), **profile.env},
        )


@asynccontextmanager
async def open_supervisor(
    config: SupervisorConfig | None = None, *, host: Host | None = None
) -> AsyncIterator[Supervisor]:
    """Own worker processes for the length of the block.

    Args:
        host: where workers run; None: real processes below `config.runtime_dir`.

    Raises: SetupError where directories or the platform do not fit. What the block raises leaves it as it is: never in
    an ExceptionGroup.

    Blocks: leaving takes up to the graces of `Limits` while workers end; then no process, socket, task or file of a
    worker is left. Cancel: the same.
    """
    config = config or SupervisorConfig()
    body: list[BaseException] = []
    try:
        async with AsyncExitStack() as stack:
            if host is None:
                host = stack.enter_context(RealHost(_runtime_dir(config, stack)))
            cache = config.cache_dir or default_directory("cache")
            text = await stack.enter_async_context(
                open_text_service(host, config.limits, cache, config.text_processes, config.text_argv)
            )
            async with trio.open_nursery() as nursery:
                supervisor = Supervisor(config, host, text, nursery)
                try:
                    yield supervisor
                except BaseException as error:
                    body.append(error)
                    raise
                finally:
                    supervisor._closing = True
                    nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        one = _the_one(group, body)
        raise one from one.__cause__


def _the_one(group: BaseExceptionGroup[BaseException], body: list[BaseException]) -> BaseException:
    """What to raise for a group: what the block raised, unless something of ours broke; then that."""
    leaves = [leaf for leaf in _leaves(group) if not isinstance(leaf, trio.Cancelled)]
    theirs = [leaf for error in body for leaf in _leaves(error)]
    ours = [leaf for leaf in leaves if leaf not in theirs]
    if len(ours) == 1:
        return ours[0]
    if ours:
        return SynapseError("; ".join(repr(leaf) for leaf in ours))
    return body[0] if body else _leaves(group)[0]


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def _runtime_dir(config: SupervisorConfig, stack: AsyncExitStack) -> Path:
    if config.runtime_dir is not None:
        return Path(config.runtime_dir)
    return Path(stack.enter_context(fresh_directory()))


def default_directory(kind: str) -> Path:
    """The platform's place for this user's `state` or `cache`."""
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / ("Caches" if kind == "cache" else "Application Support") / "synapse"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "synapse" / kind
    variable, fallback = {"state": ("XDG_STATE_HOME", ".local/state"), "cache": ("XDG_CACHE_HOME", ".cache")}[kind]
    named = os.environ.get(variable, "")
    return (Path(named) if os.path.isabs(named) else home / fallback) / "synapse"


def _sandbox(profile: Profile, path: str) -> dict[str, str]:
    """What a worker is held to (its harden.py): it reads where its model lies, at the link and at the file."""
    places = [os.path.dirname(os.path.realpath(path)), os.path.dirname(os.path.abspath(path))]
    for index, place in enumerate(places):
        while os.pathsep in place:  # which no list can hold: what stands above it
            place = os.path.dirname(place)
        places[index] = place
    readable = {"SYNAPSE_READ_DIRS": os.pathsep.join(places)}
    return {**readable, "SYNAPSE_REQUIRE_SANDBOX": "1"} if profile.require_sandbox else readable


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _budget_config(limits: Limits) -> BudgetConfig:
    return BudgetConfig(
        per_key=limits.crashes_per_key,
        overall=limits.crashes_overall,
        window_s=limits.crash_window_s,
        backoff_first_s=limits.backoff_first_s,
        backoff_max_s=limits.backoff_max_s,
        jitter=limits.backoff_jitter,
    )
