"""A host without an operating system: workers are coroutines, sockets are memory, time is whatever trio's clock says.

`SimHost` implements `ports.Host`, so everything above it (`worker.py`, lanes, the supervisor) runs unchanged, and under
`trio.testing.MockClock(autojump_threshold=0)` a day takes a second. A virtual worker speaks the real protocol through
`wire.Connection` around an engine that the caller provides, and misbehaves as its `FaultPlan` says:

    host = SimHost(lambda spec: MyEngine(), FaultPlan(seed))
    async with open_supervisor(config, host=host) as supervisor: ...

An engine has `info` and `handlers` (message type → function of request and raw frame, giving reply and raw frame), as
those of worker_bin have. A handler's exception with a `code` and a `message` is answered as ERR; any other one ends the
worker. Handlers run in no time; `work_s` says how long the virtual worker takes.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import trio

from synapse.errors import RemoteProtocolError
from synapse.ports import ByteStream, WorkerProcess, WorkerSpec
from synapse.testing.faultplan import FaultPlan
from synapse.wire import messages as m
from synapse.wire.connection import (
    NEED_DATA,
    AckReceived,
    Connection,
    RequestReceived,
    RequestUnreadable,
    ShutdownReceived,
)
from synapse.wire.frames import prefix
from synapse.wire.state import Role

PIPE_BYTES = 64 * 1024
"""A direction of a connection holds so much; then sending blocks."""
SLOW_S = 2.0
DRIP_S = 0.01


class SimEngine(Protocol):
    """What a virtual worker runs; the same shape as `worker_bin.engine.Engine`."""

    @property
    def info(self) -> m.EngineInfo: ...
    @property
    def handlers(self) -> Mapping[type, Callable[[Any, memoryview], tuple[Any, Any]]]: ...


@dataclass(frozen=True)
class Entry:
    """One line of the journal: a request that reached a worker. `raw` is its raw frame."""

    time: float
    worker_id: str
    pid: int
    request: m.Request
    raw: bytes


class SimHost:
    """See the module.

    Args:
        engine: makes the engine of a worker that is spawned; it may look at the spec's argv.
        plan: the faults; None: none.
        work_s: seconds that a request takes; None: 1 ms each.
        faulty: which workers the plan applies to; None: all.

    Attributes:
        journal: every request that reached a worker, in order.
        alive: virtual processes that have not ended.
    """

    def __init__(
        self,
        engine: Callable[[WorkerSpec], SimEngine],
        plan: FaultPlan | None = None,
        *,
        work_s: Callable[[m.Request], float] | None = None,
        faulty: Callable[[WorkerSpec], bool] | None = None,
    ) -> None:
        self.journal: list[Entry] = []
        self.alive: set[int] = set()
        self._engine = engine
        self._plan = plan or FaultPlan(0, sites={})
        self._work_s = work_s or (lambda request: 0.001)
        self._faulty = faulty or (lambda spec: True)
        self._pids = itertools.count(1001)

    @asynccontextmanager
    async def spawn(self, spec: WorkerSpec) -> AsyncIterator[WorkerProcess]:
        """`ports.Host.spawn`: leaving kills and reaps, whatever happened inside."""
        plan = self._plan if self._faulty(spec) else FaultPlan(0, sites={})
        process = _Process(next(self._pids), self, spec, plan)
        self.alive.add(process.pid)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(process.live, self._engine(spec), self._work_s)
                try:
                    yield process
                finally:
                    process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()
                    process.stream.close()
        except BaseExceptionGroup as group:  # the process raises nothing: this is the block's own, bare
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise


class _Ended(Exception):
    """The virtual process ends by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _Process:
    """A virtual process; `ports.WorkerProcess`."""

    def __init__(self, pid: int, host: SimHost, spec: WorkerSpec, plan: FaultPlan) -> None:
        self.pid = pid
        self._host, self._spec, self._plan = host, spec, plan
        self.stream, self._other = _stream_pair()
        self._connected = trio.Event()
        self._exited = trio.Event()
        self._status: int | None = None
        self._scope = trio.CancelScope()
        self._stubborn = False
        self._log: list[str] = []

    # --- the host's side ---------------------------------------------------------------------------------------------

    async def accept(self) -> ByteStream:
        await self._connected.wait()
        return self.stream

    async def wait(self) -> int:
        await self._exited.wait()
        assert self._status is not None
        return self._status

    def terminate(self) -> None:
        if not self._stubborn:
            self._end(-15)

    def kill(self) -> None:
        self._end(-9)

    async def log_tail(self, limit: int = 8192) -> str:
        return "\n".join(self._log)[-limit:]

    def _end(self, status: int) -> None:
        if self._status is None:
            self._status = status
            self._scope.cancel()

    # --- its own life ------------------------------------------------------------------------------------------------

    async def live(self, engine: SimEngine, work_s: Callable[[m.Request], float]) -> None:
        """From start to exit."""
        status = 0
        try:
            with self._scope:
                await self._run(engine, work_s)
        except _Ended as end:
            status = end.status
        except trio.BrokenResourceError:
            status = 75
        except RemoteProtocolError as error:
            self._log.append(f"the module broke the protocol: {error}")
            status = 71
        finally:
            if self._status is None:
                self._status = status
            self._other.close()
            self._host.alive.discard(self.pid)
            self._exited.set()

    async def _run(self, engine: SimEngine, work_s: Callable[[m.Request], float]) -> None:
        await trio.lowlevel.checkpoint()
        if self._plan.strikes("exit_at_boot"):
            raise self._say(1, "exit_at_boot")
        if self._plan.strikes("mute_at_boot"):
            await trio.sleep_forever()
        self._connected.set()
        if self._plan.strikes("mute_in_handshake"):
            await trio.sleep_forever()
        nonce = "0" * 16 if self._plan.strikes("wrong_nonce") else self._spec.nonce
        wire = Connection(Role.WORKER)
        hello = m.Hello(
            v=m.PROTOCOL_VERSION, nonce=nonce, engine=engine.info, pid=self.pid, max_frame=m.DEFAULT_MAX_FRAME_BYTES
        )
        await self._other.send_all(wire.send(hello))
        while True:
            while (event := wire.next_event()) is NEED_DATA:
                wire.buffer_filled(await self._other.receive_into(wire.get_buffer()))
            match event:
                case AckReceived(ack):
                    if not ack.accept:
                        raise _Ended(77)
                case RequestReceived(request, raws):
                    raw = bytes(raws[0]) if raws else b""
                    self._host.journal.append(Entry(trio.current_time(), self._spec.worker_id, self.pid, request, raw))
                    await self._answer(wire, engine, request, raw, work_s)
                case RequestUnreadable(req_id, code, msg):
                    await self._other.send_all(wire.send(m.Err(req_id=req_id, code=code, msg=msg)))
                case ShutdownReceived():
                    raise _Ended(0)
                case _:
                    raise _Ended(75)

    async def _answer(
        self, wire: Connection, engine: SimEngine, request: m.Request, raw: bytes, work_s: Callable[[m.Request], float]
    ) -> None:
        plan = self._plan
        if plan.strikes("crash_in_load" if isinstance(request, m.Load) else "crash_in_request"):
            raise self._say(-6, "crash")
        if plan.strikes("hang"):
            self._stubborn = True
            self._log.append("hang")
            await trio.sleep_forever()
        await trio.sleep(work_s(request) + (SLOW_S if plan.strikes("slow") else 0.0))
        reply, out = self._reply(engine, request, raw)
        buffers = wire.send(reply, [] if out is None else [out])
        if plan.strikes("garbage"):
            buffers = [b"\xff\xff\xff\xff"]
        if plan.strikes("other_request"):
            other = msgspec.json.encode(m.Pong(req_id="nobody", rss_mb=0.0, models_loaded=0))
            buffers = [prefix(len(other)) + other]
        if plan.strikes("crash_in_reply"):
            whole = b"".join(buffers)
            await self._other.send_all([whole[: len(whole) // 2]])
            raise self._say(-11, "crash_in_reply")
        if plan.strikes("drip"):
            await self._drip(b"".join(buffers))
        else:
            await self._other.send_all(buffers)
        if plan.strikes("crash_after_reply"):
            raise self._say(-9, "crash_after_reply")
        if plan.strikes("deaf"):
            self._stubborn = True
            await trio.sleep_forever()

    def _reply(self, engine: SimEngine, request: m.Request, raw: bytes) -> tuple[m.Reply, Any]:
        if self._plan.strikes("err") and not isinstance(request, m.Load | m.Ping):
            return m.Err(req_id=request.req_id, code="engine_failed", msg="err"), None
        handler = engine.handlers.get(type(request))
        if handler is None:
            return m.Err(req_id=request.req_id, code="unknown_type", msg=type(request).__name__), None
        try:
            reply, out = handler(request, memoryview(raw))
        except Exception as error:
            code, message = getattr(error, "code", None), getattr(error, "message", None)
            if not isinstance(code, str) or not isinstance(message, str):
                raise self._say(70, f"bug of the engine: {error!r}") from error
            return m.Err(req_id=request.req_id, code=code, msg=message), None
        reply.req_id = request.req_id
        return reply, out

    async def _drip(self, whole: bytes) -> None:
        size = max(1, len(whole) // 20)
        for at in range(0, len(whole), size):
            await self._other.send_all([whole[at : at + size]])
            await trio.sleep(DRIP_S)

    def _say(self, status: int, why: str) -> _Ended:
        self._log.append(f"simulated {why}")
        return _Ended(status)


class _Pipe:
    """One direction: a bounded buffer between one sender and one receiver."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False
        self.changed = trio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class _Stream:
    """One end of a virtual connection; `ports.ByteStream`."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        await trio.lowlevel.checkpoint()
        pipe = self._outgoing
        for buffer in buffers:
            view = memoryview(buffer).cast("B")
            while len(view):
                if pipe.closed:
                    raise trio.BrokenResourceError
                room = PIPE_BYTES - len(pipe.data)
                if room <= 0:
                    await pipe.changed.wait()
                    continue
                pipe.data += view[:room]
                view = view[room:]
                pipe.notify()
        if pipe.closed:
            raise trio.BrokenResourceError

    async def receive_into(self, buffer: memoryview) -> int:
        await trio.lowlevel.checkpoint()
        pipe = self._incoming
        while not pipe.data:
            if pipe.closed:
                return 0
            await pipe.changed.wait()
        n = min(len(buffer), len(pipe.data))
        buffer[:n] = pipe.data[:n]
        del pipe.data[:n]
        pipe.notify()
        return n

    def close(self) -> None:
        for pipe in (self._incoming, self._outgoing):
            if not pipe.closed:
                pipe.closed = True
                pipe.notify()


def _stream_pair() -> tuple[_Stream, _Stream]:
    """Both ends of a connection: the host's and the worker's."""
    to_worker, to_host = _Pipe(), _Pipe()
    return _Stream(to_host, to_worker), _Stream(to_worker, to_host)
