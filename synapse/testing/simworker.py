"""The life of one virtual worker: the real protocol around an engine, and what its fault plan makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import trio

from synapse.errors import RemoteProtocolError
from synapse.ports import ByteStream, WorkerSpec
from synapse.testing.faultplan import FaultPlan
from synapse.testing.lies import APPLIES, LIES
from synapse.testing.simstream import stream_pair
from synapse.wire import messages as m
from synapse.wire.connection import (
    NEED_DATA,
    AckReceived,
    Connection,
    Event,
    RequestReceived,
    RequestUnreadable,
    ShutdownReceived,
)
from synapse.wire.state import Role

if TYPE_CHECKING:
    from synapse.testing.simhost import SimHost

SLOW_S = 2.0
SLOW_LOAD_S = 20.0
PAUSE_S = 1.0
DRIP_S = 0.01
UNKILLABLE_S = 45.0


class SimEngine(Protocol):
    """What a virtual worker runs; the same shape as `worker_bin.engine.Engine`."""

    @property
    def info(self) -> m.EngineInfo: ...
    @property
    def handlers(self) -> Mapping[type, Callable[[Any, memoryview], tuple[Any, Any]]]: ...


class _Ended(Exception):
    """The virtual process ends by itself."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class SimProcess:
    """A virtual process; `ports.WorkerProcess`. `SimHost.spawn` makes it."""

    def __init__(self, pid: int, host: SimHost, spec: WorkerSpec, plan: FaultPlan) -> None:
        self.pid = pid
        self._host, self._spec, self._plan = host, spec, plan
        self.stream, self._other = stream_pair(host.pipe_bytes, host.latency_s)
        self._connected = trio.Event()
        self._exited = trio.Event()
        self._status: int | None = None
        self._killed = False
        self._scope = trio.CancelScope(shield=True)  # who leaves the host must end it, as with a real process
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
        if self._status is None and not self._killed:
            self._killed = True
            if self._plan.strikes("unkillable", self._host.place(self.pid)):
                self._status = -9
                self._scope.deadline = trio.current_time() + UNKILLABLE_S
            else:
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
                try:
                    await self._run(engine, work_s)
                finally:
                    if self._killed and self._status == -9:  # unkillable: it hangs in the kernel until then
                        await trio.sleep_forever()
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
        self._at("boot")
        if self._strikes("exit_at_boot"):
            raise self._say(self._host.boot_status, "exit_at_boot")
        if self._strikes("mute_at_boot"):
            await trio.sleep_forever()
        self._connected.set()
        self._at("HELLO")
        if self._strikes("mute_in_handshake"):
            await trio.sleep_forever()
        wire = Connection(Role.WORKER)
        await self._other.send_all(self._hello(wire, engine))
        while True:
            while (event := wire.next_event()) is NEED_DATA:
                wire.buffer_filled(await self._other.receive_into(wire.get_buffer()))
            await self._obey(event, wire, engine, work_s)

    def _hello(self, wire: Connection, engine: SimEngine) -> list[bytes | memoryview]:
        nonce = "0" * 16 if self._strikes("wrong_nonce") else self._spec.nonce
        hello = m.Hello(
            v=m.PROTOCOL_VERSION, nonce=nonce, engine=engine.info, pid=self.pid, max_frame=m.DEFAULT_MAX_FRAME_BYTES
        )
        buffers = wire.send(hello)
        if self._strikes("wrong_version"):
            other = bytes(buffers[0]).replace(b'"v":1', b'"v":2', 1)
            return [other, *buffers[1:]]
        return buffers * 2 if self._strikes("hello_twice") else buffers

    async def _obey(
        self, event: Event, wire: Connection, engine: SimEngine, work_s: Callable[[m.Request], float]
    ) -> None:
        match event:
            case AckReceived(ack):
                if not ack.accept:
                    raise _Ended(77)
                self._at("idle")
                if self._host.deaf:
                    self._stubborn = True
                    await trio.sleep_forever()
            case RequestReceived(request, raws):
                raw = bytes(raws[0]) if raws else b""
                self._at(str(type(request).__struct_config__.tag))
                self._host.received(self._spec.worker_id, self.pid, request, raw)
                await self._answer(wire, engine, request, raw, work_s)
                self._at("idle")
            case RequestUnreadable(req_id, code, msg):
                await self._other.send_all(wire.send(m.Err(req_id=req_id, code=code, msg=msg)))
            case ShutdownReceived():
                self._at("SHUTDOWN")
                if self._strikes("ignore_shutdown"):
                    self._stubborn = True
                    await trio.sleep_forever()
                raise _Ended(0)
            case _:
                raise _Ended(75)

    async def _answer(
        self, wire: Connection, engine: SimEngine, request: m.Request, raw: bytes, work_s: Callable[[m.Request], float]
    ) -> None:
        await self._before_work(request)
        await trio.sleep(work_s(request) + (SLOW_S if self._strikes("slow") else 0.0))
        if isinstance(request, m.Load) and self._strikes("slow_load"):
            await trio.sleep(SLOW_LOAD_S)
        reply, out = self._reply(engine, request, raw)
        pieces = [bytes(buffer) for buffer in wire.send(reply, [] if out is None else [out])]
        for lie, tell in LIES.items():
            if APPLIES.get(lie, _always)(reply) and self._strikes(lie):
                pieces = tell(reply, pieces)
                break
        await self._send(pieces)
        await self._after_reply()

    async def _before_work(self, request: m.Request) -> None:
        """Faults that leave a request without an answer."""
        if self._strikes("crash_in_load" if isinstance(request, m.Load) else "crash_in_request"):
            raise self._say(-6, "crash")
        if self._strikes("exit_in_request"):
            raise self._say(0, "exit_in_request")
        if self._strikes("hang"):
            self._stubborn = True
            self._log.append("hang")
            await trio.sleep_forever()
        if self._strikes("half_close"):
            self._other.close_sending()
            await trio.sleep_forever()

    async def _send(self, pieces: list[bytes]) -> None:
        whole = b"".join(pieces)
        if self._strikes("crash_in_reply"):
            await self._other.send_all([whole[: len(whole) // 2]])
            raise self._say(-11, "crash_in_reply")
        if len(pieces) > 1 and self._strikes("cut_in_reply"):
            await self._other.send_all(pieces[:1])
            raise self._say(0, "cut_in_reply")
        if self._strikes("pause"):
            await self._other.send_all([whole[:7]])
            await trio.sleep(PAUSE_S)
            await self._other.send_all([whole[7:]])
        elif self._strikes("drip"):
            await self._in_pieces(whole, max(1, len(whole) // 20), DRIP_S)
        elif self._strikes("fragment"):
            await self._in_pieces(whole, 1, 0.0)
        else:
            await self._other.send_all(pieces)

    async def _after_reply(self) -> None:
        if self._strikes("crash_after_reply"):
            raise self._say(-9, "crash_after_reply")
        if self._strikes("deaf"):
            self._stubborn = True
            await trio.sleep_forever()
        if self._strikes("reset"):
            await self._other.something_came()
            self._other.close()
            await trio.sleep_forever()

    def _reply(self, engine: SimEngine, request: m.Request, raw: bytes) -> tuple[m.Reply, Any]:
        if _is_work(request):
            if self._strikes("err"):
                return m.Err(req_id=request.req_id, code="engine_failed", msg="err"), None
            if self._strikes("err_flood"):
                flood = "\x1b[31mBearer sk-0123456789abcdef\n\u202e" * 30_000
                return m.Err(req_id=request.req_id, code="engine_failed", msg=flood), None
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

    async def _in_pieces(self, whole: bytes, size: int, pause_s: float) -> None:
        for at in range(0, len(whole), size):
            await self._other.send_all([whole[at : at + size]])
            if pause_s:
                await trio.sleep(pause_s)

    # --- small things ------------------------------------------------------------------------------------------------

    def _at(self, place: str) -> None:
        self._host.moved(self.pid, place)

    def _strikes(self, site: str) -> bool:
        return self._plan.strikes(site, self._host.place(self.pid))

    def _say(self, status: int, why: str) -> _Ended:
        self._log.append(f"simulated {why}")
        return _Ended(status)


def _is_work(request: m.Request) -> bool:
    """Something that an engine may fail at. An empty DECODE asks whether DECODE is known, and any ERR means no."""
    if isinstance(request, m.Decode):
        return bool(request.start or request.continue_)
    return not isinstance(request, m.Load | m.Ping)


def _always(reply: m.Reply) -> bool:
    return True
