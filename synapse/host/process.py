"""One child process: started from the trio thread, its output drained, its exit noticed at once, its group reaped.

`subprocess.Popen` runs in the trio thread: the parent-death signal is tied to the thread that forks, and trio's own
helper forks in one that ends after ten idle seconds (M1).
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager

import trio

from synapse.errors import EngineCrashed, SetupError
from synapse.host.logring import LogRing

logger = logging.getLogger("synapse.host")

DRAIN_AFTER_EXIT_S = 0.25
"""How long output is still collected after the exit: a grandchild may hold the pipe for ever (M13)."""
REAP_S = 30.0
"""After SIGKILL; a process that is not gone by then hangs in the kernel and is given up as lost."""


class ChildProcess:
    """A child in its own session and process group. `open_child` makes it and cleans up behind it."""

    def __init__(self, popen: subprocess.Popen[bytes], output: int, exit_fd: int | None, ring: LogRing) -> None:
        self.pid = popen.pid
        self._popen = popen
        self._output = output
        self._exit_fd = exit_fd
        self._ring = ring
        self._exited = trio.Event()
        self._drained = trio.Event()

    @property
    def exit_status(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._popen.returncode if self._exited.is_set() else None

    async def wait(self) -> int:
        """Wait until it has exited and is reaped; its exit status, negative for a signal."""
        await self._exited.wait()
        return int(self._popen.returncode)

    def terminate(self) -> None:
        """SIGTERM to its process group; nothing if it is gone."""
        self._signal_group(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to its process group; nothing if it is gone."""
        self._signal_group(signal.SIGKILL)

    async def log_tail(self, limit: int = 8192) -> str:
        """The last `limit` bytes that it printed, made harmless. After the exit: once the pipe is drained (250 ms)."""
        if self._exited.is_set():
            await self._drained.wait()
        return self._ring.tail(limit)

    def _signal_group(self, number: int) -> None:
        # Until it is reaped its pid, and so its group's number, cannot belong to anyone else.
        if self._popen.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a zombie
                os.killpg(self.pid, number)

    async def run(self) -> None:
        """Drain its output and reap it. Ends by itself soon after the exit."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._pump)
            await _wait_exit_unreaped(self.pid, self._exit_fd)
            self._signal_group(signal.SIGKILL)  # what it left behind in its group; it is a zombie itself
            self._popen.wait()
            self._exited.set()
            with trio.move_on_after(DRAIN_AFTER_EXIT_S):
                await self._drained.wait()
            nursery.cancel_scope.cancel()

    async def _pump(self) -> None:
        try:
            while True:
                try:
                    data = os.read(self._output, 65536)
                except BlockingIOError:
                    await trio.lowlevel.wait_readable(self._output)
                    continue
                if not data:
                    return
                self._ring.write(data)
                await trio.lowlevel.checkpoint()  # a flood must not hold the loop
        finally:
            self._drained.set()


async def _wait_exit_unreaped(pid: int, exit_fd: int | None) -> None:
    """Return when the child has exited and is not reaped yet."""
    if exit_fd is not None:
        await trio.lowlevel.wait_readable(exit_fd)
    else:
        await trio.to_thread.run_sync(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT), abandon_on_cancel=True)


def _start(argv: Sequence[str], env: Mapping[str, str], ring_bytes: int, owned: ExitStack) -> ChildProcess:
    """Start it; `owned` closes its descriptors. Blocks for the milliseconds of fork and exec, on purpose in the trio
    thread (see above)."""
    try:
        output, write_end = os.pipe()
        owned.callback(os.close, output)
        os.set_blocking(output, False)
        try:
            popen = subprocess.Popen(
                list(argv),
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                env=dict(env),
                close_fds=True,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
    except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
        raise SetupError(f"cannot run {argv[0]}: {error.strerror}") from error
    except OSError as error:
        raise EngineCrashed("spawn", f"cannot start {argv[0]}: {error}") from error
    exit_fd = None
    if sys.platform == "linux":
        try:
            exit_fd = os.pidfd_open(popen.pid)
        except OSError as error:  # out of descriptors: without it the exit could not be watched
            popen.kill()
            popen.wait()
            raise EngineCrashed("spawn", f"cannot watch {argv[0]}: {error}") from error
        owned.callback(os.close, exit_fd)
    return ChildProcess(popen, output, exit_fd, LogRing(ring_bytes))


@asynccontextmanager
async def open_child(
    argv: Sequence[str], env: Mapping[str, str], *, ring_bytes: int = 256 * 1024
) -> AsyncIterator[ChildProcess]:
    """Start `argv` with exactly this environment, stdin empty, output into a ring. Leaving kills its group and reaps.

    Raises: SetupError where the program does not exist or may not be run, EngineCrashed(spawn) where the system
    refuses. Never an ExceptionGroup of its own making.
    """
    with ExitStack() as owned:
        child = _start(argv, env, ring_bytes, owned)
        async with _running(child):
            yield child


@asynccontextmanager
async def _running(child: ChildProcess) -> AsyncIterator[None]:
    """The child's own task around the block. It is shielded and ends with the child, so the block's exception is the
    only one that can come out, and it comes out bare."""
    own = trio.CancelScope(shield=True)

    async def run() -> None:
        with own:
            await child.run()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            try:
                yield
            finally:
                child.kill()
                with trio.CancelScope(deadline=trio.current_time() + REAP_S, shield=True) as reaping:
                    await child.wait()
                if reaping.cancelled_caught:
                    logger.error("process %d did not end within %g s of SIGKILL; given up as lost", child.pid, REAP_S)
                    own.cancel()
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
