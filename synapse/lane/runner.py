"""One worker of a lane, from spawn to reap, again and again: the task that turns the scheduler's units into calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec
import numpy as np
import trio
from numpy.typing import NDArray

from synapse.errors import EngineCrashed, EngineRefused, InvalidEngineResult
from synapse.lane import units
from synapse.lane.profile import Profile
from synapse.limits import Limits
from synapse.policy.health import Stamps
from synapse.policy.scheduler import AnyUnit, BatchUnit, ControlUnit, DecodeUnit, Effect, GenerateUnit
from synapse.ports import Host, WorkerSpec
from synapse.wire.messages import (
    Decode,
    Decoded,
    Load,
    Loaded,
    Measured,
    ModelInfo,
    Ping,
    Pong,
    Pooling,
    Reply,
    Text,
    Unload,
    Vectors,
)
from synapse.worker import Worker, open_worker

if TYPE_CHECKING:
    from synapse.lane.life import Life

_R = TypeVar("_R", bound=Reply)


class Refusal(Exception):
    """LOAD was refused, or what was loaded is not what the profile wants. The lane fails: no restart helps."""


def _expect(reply: Reply, kind: type[_R]) -> _R:
    """The wire has seen to the type; this tells the type checker."""
    assert isinstance(reply, kind)
    return reply


def completed(measured: Measured, info: ModelInfo) -> Measured:
    """What a worker measured; from one that measures nothing, what the file's header says."""
    if measured.context:
        return measured
    return msgspec.structs.replace(
        measured,
        architecture=info.architecture,
        role=info.role,
        context=info.context_length,
        vocabulary=info.vocabulary,
        pooling=info.pooling,
        ranking_head=info.ranking_head,
        add_bos=info.add_bos,
    )


@dataclass
class Runner:
    """Runs one worker of a lane.

    Attributes:
        life: the lane's.
        stamps: what health sees; this task alone writes it.
        rows: takes the results of a batch, one row for each of its items.
    """

    life: Life
    number: int
    host: Host
    limits: Limits
    stamps: Stamps
    new_spec: Callable[[Profile, str], WorkerSpec]
    rows: Callable[[BatchUnit, NDArray[np.float32]], None]

    def __post_init__(self) -> None:
        self._unit: AnyUnit | None = None
        self._wake = trio.Event()
        self._requests = 0
        self._dims = 0

    def start(self, unit: AnyUnit) -> None:
        """The scheduler's StartUnit: this worker is idle and gets something to do."""
        self._unit = unit
        self._wake.set()

    async def run(self) -> None:
        """One life: spawn, LOAD, units until it dies or is unloaded.

        Raises: EngineCrashed; Refusal when LOAD was refused; SetupError. Returns after UNLOAD. The scheduler has been
        told of the death by the caller, who knows when it may come back.
        """
        self.stamps.state = "starting"
        self._unit, self._wake = None, trio.Event()
        spec = self.new_spec(self.life.profile, self.life.loading[1].path)
        async with open_worker(self.host, spec, self.limits) as worker:
            self.stamps.pid = worker.pid
            loaded, measured = await self._load(worker)
            self._seen()
            self.life.loaded(loaded, measured)
            self.life.apply(self.life.scheduler.worker_ready(self.number, measured, trio.current_time()))
            await self._serve(worker, loaded.model_ref, measured)

    # --- loading -----------------------------------------------------------------------------------------------------

    async def _load(self, worker: Worker) -> tuple[Loaded, Measured]:
        info, file = self.life.loading
        request = Load(
            req_id=self._req_id(),
            artifact_path=file.path,
            artifact_digest=file.digest,
            format="onnx" if self.life.profile.engine == "onnx" else "gguf",
            runtime_config=self.life.runtime_config,
        )
        try:
            reply, _ = await worker.call(request, timeout_s=self.limits.load_s(info.size), stage="load")
        except EngineRefused as error:
            raise Refusal(f"{error.code}: {error.message}") from error
        loaded = _expect(reply, Loaded)
        measured = completed(loaded.measured, info)
        if measured.role == "generate":
            knows = await self._knows_decode(worker, loaded.model_ref)
            measured = msgspec.structs.replace(measured, decode=knows)
        self._dims = loaded.dims
        if self.life.profile.require_sandbox:
            missing = [f"{name} ({why})" for name, why in measured.sandbox.items() if why != "on"]
            if missing or not measured.sandbox:
                raise Refusal(f"the sandbox is not complete: {', '.join(missing) or 'the worker reports none'}")
        return loaded, measured

    async def _knows_decode(self, worker: Worker, model_ref: str) -> bool:
        """An empty DECODE finds out (G5). A worker that knows it and refuses nothing at all has lost its way."""
        request = Decode(req_id=self._req_id(), model_ref=model_ref, max_steps=1, target_ms=1.0)
        try:
            await worker.call(request, [b""], timeout_s=self.limits.unit_min_s, stage="load")
        except EngineRefused as error:
            if error.code in ("unknown_type", "unsupported"):
                return False
            raise EngineCrashed("load", f"it refuses an empty DECODE: {error}") from error
        return True

    # --- units -------------------------------------------------------------------------------------------------------

    async def _serve(self, worker: Worker, model_ref: str, measured: Measured) -> None:
        """Do units until it dies, idle or not, or is unloaded."""
        while True:
            unit = await self._next(worker)
            self._unit, self._wake = None, trio.Event()
            if isinstance(unit, ControlUnit):
                await self._control(worker, unit, model_ref)
                if unit.kind == "unload":
                    return
            else:
                await self._work(worker, model_ref, measured)

    async def _next(self, worker: Worker) -> AnyUnit:
        """Wait for a unit. Raises EngineCrashed when the worker dies meanwhile (W7)."""
        if self._unit is None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until_death, worker)
                await self._wake.wait()
                nursery.cancel_scope.cancel()
        if worker.crash is not None:
            raise worker.crash
        assert self._unit is not None
        return self._unit

    async def _until_death(self, worker: Worker) -> None:
        await worker.died()
        self._wake.set()

    async def _work(self, worker: Worker, model_ref: str, measured: Measured) -> None:
        scheduler, life = self.life.scheduler, self.life
        unit = scheduler.confirm(self.number, trio.current_time())
        if not isinstance(unit, BatchUnit | DecodeUnit | GenerateUnit):
            life.apply(scheduler.unit_done(self.number, trio.current_time()))
            return
        timeout_s = max(self.limits.unit_min_s, self.limits.unit_factor * scheduler.expected_s(self.number))
        pooling = cast(Pooling, life.profile.pooling or measured.pooling or "mean")
        request, raw = units.request_for(unit, self._req_id(), model_ref, pooling)
        self.stamps.state = "busy"
        started = trio.current_time()
        try:
            reply, raw_reply = await worker.call(
                request,
                raw,
                timeout_s=timeout_s,
                on_handover=lambda: life.apply(scheduler.handed_over(self.number)),
            )
        except EngineRefused as error:
            self._seen()
            elapsed = trio.current_time() - started
            life.apply(scheduler.unit_refused(self.number, error, trio.current_time(), elapsed=elapsed))
            return
        self._seen()
        now = trio.current_time()
        try:
            effects = self._fold(unit, reply, raw_reply, now, now - started)
        except InvalidEngineResult as error:
            # What it answers cannot be trusted any more (W5): it is ended, and everything in it fails.
            raise EngineCrashed("protocol", str(error)) from error
        life.apply(effects)

    def _fold(self, unit: AnyUnit, reply: Reply, raw: memoryview, now: float, elapsed: float) -> list[Effect]:
        """The reply, checked, as the scheduler's event. Raises InvalidEngineResult."""
        scheduler = self.life.scheduler
        if isinstance(unit, BatchUnit):
            if unit.kind == "embed":
                self.rows(unit, units.vectors_of(_expect(reply, Vectors), raw, self._dims))
            else:
                self.rows(unit, units.scores_of(raw))
            return scheduler.unit_done(self.number, now, elapsed=elapsed)
        if isinstance(unit, DecodeUnit):
            decoded = _expect(reply, Decoded)
            return scheduler.unit_done(
                self.number,
                now,
                elapsed=elapsed,
                progress=units.progress_of(unit, decoded),
                steps=decoded.steps,
                elapsed_ms=decoded.elapsed_ms,
            )
        return scheduler.unit_done(self.number, now, elapsed=elapsed, progress=[units.text_of(_expect(reply, Text))])

    async def _control(self, worker: Worker, unit: ControlUnit, model_ref: str) -> None:
        try:
            if unit.kind == "ping":
                reply, _ = await worker.call(Ping(req_id=self._req_id()), timeout_s=self.limits.ping_s, stage="idle")
                pong = _expect(reply, Pong)
                self.stamps.rss_mb, self.stamps.models_loaded = pong.rss_mb, pong.models_loaded
                self.stamps.placement_share = pong.placement_share
                self._seen()
            else:
                request = Unload(req_id=self._req_id(), model_ref=model_ref)
                await worker.call(request, timeout_s=self.limits.unit_min_s)
        except EngineRefused as error:
            raise EngineCrashed("protocol", f"it refuses {unit.kind}: {error}") from error
        self.life.apply(self.life.scheduler.unit_done(self.number, trio.current_time()))

    # --- small things ------------------------------------------------------------------------------------------------

    def _seen(self) -> None:
        self.stamps.state, self.stamps.seen = "idle", trio.current_time()

    def _req_id(self) -> str:
        self._requests += 1
        return f"{self.number}-{self._requests}"
