"""Programs that are not ours, such as llama-server, under the same supervision as workers (D14)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import trio

from synapse.errors import SetupError
from synapse.host.environment import child_environment
from synapse.host.process import ChildProcess, open_child

ManagedProcess = ChildProcess
"""pid, exit_status, wait(), terminate(), kill(), log_tail(). `pid` is the guard's, who leads the program's group."""


@asynccontextmanager
async def managed_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    grace_s: float = 5.0,
    log_ring_bytes: int = 256 * 1024,
) -> AsyncIterator[ManagedProcess]:
    """Run a program for the length of the block.

    It runs in its own session under a small guard process that ends the whole group when this process dies by any
    means, SIGKILL included, and when the program itself ends. It sees the allow-listed environment and `env` (W2),
    stdin is empty, its output goes to a ring. Leaving is SIGTERM, `grace_s`, SIGKILL, for the group, then the reaping.

    Raises: SetupError where the program does not exist or may not be run; EngineCrashed(spawn) where the system
    refuses.
    Blocks: entering for milliseconds, leaving up to the grace. Cancel: nothing of it is left.
    """
    program = shutil.which(argv[0])
    if program is None:
        raise SetupError(f"cannot run {argv[0]}: no such program")
    guard = [sys.executable, "-P", "-m", "worker_bin.guard", "--", program, *argv[1:]]
    environment = child_environment(os.environ, env or {}) | {"SYNAPSE_PARENT_PID": str(os.getpid())}
    async with open_child(guard, environment, ring_bytes=log_ring_bytes) as child:
        try:
            yield child
        finally:
            child.terminate()
            with trio.CancelScope(deadline=trio.current_time() + grace_s, shield=True):
                await child.wait()
