"""One worker's life: started, greeted, asked one thing at a time, and gone when the block ends.

The receiving task reads the connection from the handshake to the end, idle or busy, so death and unsolicited bytes are
noticed at once (W7); the exit is watched beside it, because a grandchild may hold the socket open. Both end in
`_crashed`, the only writer of the worker's end. A call only sends and waits for its slot to be filled.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from synapse.errors import EngineCrashed, EngineRefused, LocalProtocolError, RemoteProtocolError, Stage
from synapse.limits import Limits
from synapse.ports import ByteStream, Host, WorkerProcess, WorkerSpec
from synapse.wire import messages as m
from synapse.wire.connection import (
    NEED_DATA,
    Buffer,
    Closed,
    Connection,
    Event,
    HelloReceived,
    ReplyReceived,
)
from synapse.wire.state import Role, State

_DRAIN_S = 0.25
"""After the exit: for what is still in the socket, a complete reply perhaps."""
_EXIT_AFTER_EOF_S = 1.0
"""After the worker closed its end: for its exit, whose status says more than the EOF."""
_MESSAGE_CHARS = 4096
"""Of an ERR's text."""


class _Call:
    """The request in flight."""

    def __init__(self, stage: Stage, scope: trio.CancelScope) -> None:
        self.stage = stage
        self.scope = scope
        self.reply: ReplyReceived | None = None
        self.sent = False
        self.done = trio.Event()

    @property
    def complete(self) -> bool:
        """All was sent and all is here: the connection is idle again."""
        return self.sent and self.reply is not None


class Worker:
    """A worker that has said HELLO. `open_worker` makes it.

    Attributes:
        hello: what it said of itself.
        pid, worker_id: for logs.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        process: WorkerProcess,
        stream: ByteStream,
        wire: Connection,
        hello: m.Hello,
        limits: Limits,
    ) -> None:
        self.hello = hello
        self.pid = process.pid
        self.worker_id = spec.worker_id
        self._process = process
        self._stream = stream
        self._wire = wire
        self._limits = limits
        self._call: _Call | None = None
        self._crash: EngineCrashed | None = None
        self._dead = trio.Event()
        self._ending = False
        self._leaving = False

    async def call(
        self,
        request: m.Request,
        raw: Sequence[Buffer] = (),
        *,
        timeout_s: float,
        stage: Stage = "request",
        on_handover: Callable[[], None] | None = None,
    ) -> tuple[m.Reply, memoryview]:
        """Send one request and its raw frames; its reply and the reply's raw frame (empty where it has none).

        Args:
            timeout_s: one deadline over write, work and read (W6).
            stage: what a death in between is called; `load` for LOAD.
            on_handover: called just before the first byte goes out, the line between not admitted and unknown (C3).

        Raises:
            EngineCrashed: it died or had to be killed; it is reaped already. Without `on_handover` having been called
                when it was dead before.
            EngineRefused: it answered ERR and lives.
            LocalProtocolError: the request does not fit the protocol, or another one is in flight; nothing was sent.

        Blocks: yes. Cancel: before the hand-over nothing happened; afterwards the worker's state is unknown, so it is
        killed.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._leaving:
            raise LocalProtocolError("this worker's block has ended")
        if self._ending or self._wire.state in (State.CLOSED, State.FAILED):
            raise await self.died()
        buffers = self._wire.send(request, raw)
        call = self._call = _Call(stage, trio.CancelScope(deadline=trio.current_time() + timeout_s))
        try:
            if on_handover is not None:
                on_handover()
            with call.scope:
                await self._exchange(buffers, call)
            if not call.complete:
                await self._crashed("timeout", f"no complete reply within {timeout_s:g} s")
        finally:
            if not call.complete:
                with trio.CancelScope(shield=True):
                    await self._crashed(stage, "killed because its call was abandoned")
            self._call = None
        if call.reply is None or not call.sent:
            assert self._crash is not None
            raise self._crash
        reply, raws = call.reply.reply, call.reply.raws
        if isinstance(reply, m.Err):
            raise EngineRefused(reply.code, reply.msg[:_MESSAGE_CHARS])
        return reply, raws[0] if raws else memoryview(b"")

    async def died(self) -> EngineCrashed:
        """Wait until it is dead, idle or not, and return how it died. Any number of tasks may wait."""
        await self._dead.wait()
        assert self._crash is not None
        return self._crash

    @property
    def crash(self) -> EngineCrashed | None:
        """How it died, None while it lives. Never waits."""
        return self._crash

    async def _exchange(self, buffers: Sequence[bytes | memoryview], call: _Call) -> None:
        try:
            await self._stream.send_all(buffers)
        except trio.BrokenResourceError:
            pass  # it is dying: the receiving task says how, and it may have answered before
        call.sent = True
        await call.done.wait()

    # --- the background ----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        """Receive until the end of the connection, and watch the exit."""
        async with trio.open_nursery() as nursery:
            receiving = trio.CancelScope()
            nursery.start_soon(self._receive, receiving)
            await self._process.wait()
            receiving.deadline = trio.current_time() + _DRAIN_S

    async def _receive(self, scope: trio.CancelScope) -> None:
        stage: Stage | None = None
        message = "it ended"
        with scope:
            try:
                while not isinstance(event := await _next_event(self._wire, self._stream), Closed):
                    self._answered(event)
                message = "it closed its connection" + (" inside a frame" if event.mid_frame else "")
            except RemoteProtocolError as error:
                stage, message = "protocol", str(error)
        if stage is None:
            with trio.move_on_after(_EXIT_AFTER_EOF_S):
                status = await self._process.wait()
                message = _ending(status)
        if stage is None:
            stage = self._call.stage if self._call is not None and self._call.reply is None else "idle"
        await self._crashed(stage, message)

    def _answered(self, event: Event) -> None:
        assert isinstance(event, ReplyReceived)
        assert self._call is not None
        self._call.reply = event
        self._call.done.set()

    async def _crashed(self, stage: Stage, message: str) -> None:
        """The one way to the end: kill, reap, and only then tell everyone. Only the first report counts; a later one
        waits for it."""
        if self._leaving:
            return
        if self._ending:
            await self._dead.wait()
            return
        self._ending = True
        self._crash = await _post_mortem(self._process, stage, message, self._limits)
        self._dead.set()
        if self._call is not None:
            self._call.scope.cancel()

    async def _leave(self) -> None:
        """SHUTDOWN, grace, SIGTERM, grace, SIGKILL (W8), all before its connection is closed; reaping is the host's."""
        if self._dead.is_set():
            return
        self._leaving = True
        if self._wire.state is State.IDLE:
            with trio.move_on_after(self._limits.shutdown_grace_s):
                try:
                    await self._stream.send_all(self._wire.send(m.Shutdown()))
                except trio.BrokenResourceError:
                    pass  # it is gone already, which is what we want
                await self._process.wait()
                return
        self._process.terminate()
        with trio.move_on_after(self._limits.terminate_grace_s):
            await self._process.wait()
            return
        self._process.kill()


@asynccontextmanager
async def open_worker(host: Host, spec: WorkerSpec, limits: Limits) -> AsyncIterator[Worker]:
    """Start a worker; the block runs once it has said HELLO and was accepted.

    Raises: SetupError; EngineCrashed(spawn) when it cannot be started or ends or hangs before it connects;
    EngineCrashed(handshake) when it connected and did anything else than a valid HELLO within `limits.boot_s`.

    Blocks: entering up to `boot_s`, leaving up to both graces. Cancel: the worker is gone when the cancellation leaves
    the block. No process, socket or file is left in any case (W8).
    """
    async with host.spawn(spec) as process:
        wire = Connection(Role.MODULE, max_frame=limits.max_frame_bytes, nonce=spec.nonce, pid=process.pid)
        stream, hello = await _boot(process, wire, limits)
        worker = Worker(spec, process, stream, wire, hello, limits)
        background = trio.CancelScope(shield=True)

        async def run() -> None:
            with background:
                await worker._run()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(run)
                try:
                    yield worker
                finally:
                    with trio.CancelScope(shield=True):
                        await worker._leave()
                    background.cancel()
        except BaseExceptionGroup as group:  # the background raises nothing: this is the block's own, bare
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from group.exceptions[0].__cause__
            raise


class _Boot:
    """How far a boot has come."""

    def __init__(self) -> None:
        self.stage: Stage = "spawn"
        self.result: tuple[ByteStream, m.Hello] | None = None
        self.violation: str | None = None


async def _boot(process: WorkerProcess, wire: Connection, limits: Limits) -> tuple[ByteStream, m.Hello]:
    """Accept, HELLO, HELLO_ACK within one deadline, cut short by the worker's exit."""
    boot = _Boot()
    exited = False
    with trio.move_on_after(limits.boot_s):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_greet, process, wire, boot, nursery.cancel_scope)
            await process.wait()
            exited = True
            nursery.cancel_scope.deadline = trio.current_time() + _DRAIN_S
    if boot.result is not None:
        return boot.result
    if boot.violation is not None:
        message = boot.violation
    elif exited:
        message = "it ended before it was ready"
    else:
        message = f"not ready within {limits.boot_s:g} s"
    raise await _post_mortem(process, boot.stage, message, limits)


async def _greet(process: WorkerProcess, wire: Connection, boot: _Boot, scope: trio.CancelScope) -> None:
    stream = await process.accept()
    boot.stage = "handshake"
    try:
        event = await _next_event(wire, stream)
        if isinstance(event, HelloReceived):
            ack = m.HelloAck(v=m.PROTOCOL_VERSION, accept=True, max_frame=wire.max_frame)
            await stream.send_all(wire.send(ack))
            boot.result = stream, event.hello
        else:
            with trio.move_on_after(_EXIT_AFTER_EOF_S):
                await process.wait()
            boot.violation = "it closed its connection before HELLO"
    except RemoteProtocolError as error:
        boot.violation = str(error)
    except trio.BrokenResourceError:
        boot.violation = "it closed its connection before HELLO_ACK"
    scope.cancel()


async def _next_event(wire: Connection, stream: ByteStream) -> Event:
    while (event := wire.next_event()) is NEED_DATA:
        wire.buffer_filled(await stream.receive_into(wire.get_buffer()))
    return event


async def _post_mortem(process: WorkerProcess, stage: Stage, message: str, limits: Limits) -> EngineCrashed:
    """Kill, reap, and what is to be said about it."""
    process.kill()
    status: int | None = None
    with trio.CancelScope(shield=True):
        with trio.move_on_after(limits.reap_s):  # one that hangs in the kernel is reported as it is
            status = await process.wait()
        tail = await process.log_tail(limits.log_tail_bytes)
    return EngineCrashed(stage, message, exit_status=status, log_tail=tail)


def _ending(status: int) -> str:
    """How it ended, in words. An illegal instruction is the build's fault, not the model's."""
    if status == -signal.SIGILL:
        return (
            "it was ended by an illegal instruction: its engine's build does not fit this CPU; build it on this machine"
        )
    return f"it ended with status {status}" if status >= 0 else f"it was ended by signal {-status}"
