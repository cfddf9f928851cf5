"""`ports.Host` over real processes and sockets."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from synapse.host.endpoint import Endpoint, UnixEndpoint
from synapse.host.environment import child_environment
from synapse.host.process import ChildProcess, open_child
from synapse.host.rundir import RuntimeDirectory
from synapse.ports import ByteStream, WorkerProcess, WorkerSpec


class RealHost:
    """Workers as child processes of this one. Raises SetupError where the runtime directory does not fit (W3).

    It holds the directory's lock until `close`; use it as a context manager.
    """

    def __init__(self, runtime_dir: Path | str, *, log_ring_bytes: int = 256 * 1024) -> None:
        self._directory = RuntimeDirectory(runtime_dir)
        self._log_ring_bytes = log_ring_bytes

    def __enter__(self) -> RealHost:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the runtime directory back. Idempotent, never blocks."""
        self._directory.close()

    @asynccontextmanager
    async def spawn(self, spec: WorkerSpec) -> AsyncIterator[WorkerProcess]:
        endpoint = UnixEndpoint(self._directory.socket_path(spec.worker_id))
        try:
            argv = [*spec.argv, "--socket", endpoint.address, "--nonce", spec.nonce]
            env = child_environment(os.environ, spec.env)
            env |= {"SYNAPSE_WORKER_ID": spec.worker_id, "SYNAPSE_PARENT_PID": str(os.getpid())}
            async with open_child(argv, env, ring_bytes=self._log_ring_bytes) as child:
                process = _Worker(child, endpoint)
                try:
                    yield process
                finally:
                    process.close_stream()
        finally:
            endpoint.close()


class _Worker:
    """`ports.WorkerProcess`: a child and the endpoint that only it may use."""

    def __init__(self, child: ChildProcess, endpoint: Endpoint) -> None:
        self.pid = child.pid
        self.wait = child.wait
        self.terminate = child.terminate
        self.kill = child.kill
        self.log_tail = child.log_tail
        self._endpoint = endpoint
        self._stream: ByteStream | None = None

    async def accept(self) -> ByteStream:
        self._stream = await self._endpoint.accept(self.pid)
        return self._stream

    def close_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()


def python_worker(name: str) -> list[str]:
    """argv of a worker program of this distribution, as in `python_worker("faulty")`.

    `-P` keeps the working directory off the module path.
    """
    return [sys.executable, "-P", "-m", f"worker_bin.{name}"]
