"""A host in front of any host, that writes into a journal what goes to workers and what comes back.

It stands between the supervisor and the real or the simulated host and looks at the bytes themselves, so what it says
does not depend on what the supervisor believes.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from synapse.ports import ByteStream, Host, WorkerProcess, WorkerSpec
from synapse.testing.journal import Broke, Exited, Greeted, Journal, Replied, Requested, Spawned
from synapse.wire import control
from synapse.wire import messages as m
from synapse.wire.rules import REQUESTS


class Recorder:
    """`ports.Host` over another host. `journal` is what was seen.

    Args:
        host: where workers really run.
        journal: where to write.
        only: which workers are recorded; None: all but text processes.
    """

    def __init__(self, host: Host, journal: Journal, *, only: Callable[[WorkerSpec], bool] | None = None) -> None:
        self.journal = journal
        self._host = host
        self._only = only or (lambda spec: not spec.worker_id.startswith("text"))
        self._living: dict[int, WorkerProcess] = {}

    @asynccontextmanager
    async def spawn(self, spec: WorkerSpec) -> AsyncIterator[WorkerProcess]:
        """`ports.Host.spawn`."""
        async with self._host.spawn(spec) as process:
            if not self._only(spec):
                yield process
                return
            self.journal.add(Spawned(trio.current_time(), spec.worker_id, process.pid))
            self._living[process.pid] = process
            recorded = _Process(process, self.journal)
            try:
                yield recorded
            finally:
                del self._living[process.pid]
                process.kill()
                with trio.CancelScope(shield=True):
                    status = await process.wait()
                self.journal.add(Exited(trio.current_time(), process.pid, status))

    @property
    def living(self) -> list[int]:
        """The pids of recorded workers that have not been left."""
        return sorted(self._living)

    def kill_one(self, rng: random.Random) -> int | None:
        """SIGKILL to one of the living, as anybody on the machine might do; its pid, None where there is nobody."""
        if not self._living:
            return None
        pid = rng.choice(self.living)
        self._living[pid].kill()
        return pid


class _Process:
    """`ports.WorkerProcess`, its connection recorded."""

    def __init__(self, process: WorkerProcess, journal: Journal) -> None:
        self.pid = process.pid
        self.wait = process.wait
        self.terminate = process.terminate
        self.kill = process.kill
        self.log_tail = process.log_tail
        self._process, self._journal = process, journal

    async def accept(self) -> ByteStream:
        return _Stream(await self._process.accept(), self.pid, self._journal)


class _Stream:
    """`ports.ByteStream` that reads along in both directions."""

    def __init__(self, stream: ByteStream, pid: int, journal: Journal) -> None:
        self._stream, self._pid, self._journal = stream, pid, journal
        self._greeted = False
        self._incoming = bytearray()
        self._hello_seen = False
        self._request: m.Request | None = None
        self._kind = ""
        self._raw_due = False
        self._broken = False

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        self._sending(b"".join(bytes(buffer) for buffer in buffers))
        await self._stream.send_all(buffers)

    async def receive_into(self, buffer: memoryview) -> int:
        count = await self._stream.receive_into(buffer)
        if not self._broken:
            self._incoming += buffer[:count]
            try:
                self._receiving()
            except control.Malformed as error:
                self._break(str(error))
        return count

    def close(self) -> None:
        self._stream.close()

    def _sending(self, data: bytes) -> None:
        """One message with its raw frame: the module never sends less at a time."""
        frames = list(_frames(bytearray(data)))
        if not self._greeted:
            self._greeted = True
            self._journal.add(Greeted(trio.current_time(), self._pid))
            return
        request = control.decode_request(frames[0])
        if isinstance(request, m.Request):
            self._request = request
            self._journal.add(Requested(trio.current_time(), self._pid, request, b"".join(frames[1:])))

    def _receiving(self) -> None:
        for frame in _frames(self._incoming):
            if not self._hello_seen:
                self._hello_seen = True
            elif self._raw_due:
                self._raw_due = False
                self._replied(self._kind)
            else:
                reply = control.decode_reply(frame)
                self._kind = str(type(reply).__struct_config__.tag)
                rule = REQUESTS.get(type(self._request)) if self._request is not None else None
                if rule is None or reply.req_id != getattr(self._request, "req_id", None):
                    raise control.Malformed(f"{self._kind} answers nothing")
                self._raw_due = bool(rule.reply_raws) and not isinstance(reply, m.Err)
                if not self._raw_due:
                    self._replied(self._kind)

    def _replied(self, kind: str) -> None:
        self._request = None
        self._journal.add(Replied(trio.current_time(), self._pid, kind))

    def _break(self, why: str) -> None:
        self._broken = True
        self._journal.add(Broke(trio.current_time(), self._pid, why))


def _frames(data: bytearray) -> list[bytes]:
    """The whole frames at the beginning of `data`, which are taken out of it."""
    frames, at = [], 0
    while len(data) - at >= 4:
        end = at + 4 + int.from_bytes(data[at : at + 4], "little")
        if end > len(data):
            break
        frames.append(bytes(data[at + 4 : end]))
        at = end
    del data[:at]
    return frames
