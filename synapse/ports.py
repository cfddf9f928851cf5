"""What the supervising code asks of the world: processes and byte streams. The real one is `synapse.host`, the
simulated one `synapse.testing`; both pass the same conformance suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class WorkerSpec:
    """How to start one worker.

    Attributes:
        worker_id: short, unique in the runtime directory; names the socket and SYNAPSE_WORKER_ID.
        argv: program and arguments, without --socket and --nonce (the host adds them, W2).
        nonce: 16 lower-case hex digits.
        env: what the profile adds to the allow-listed environment.
    """

    worker_id: str
    argv: Sequence[str]
    nonce: str
    env: Mapping[str, str] = field(default_factory=dict)


class ByteStream(Protocol):
    """The connection to one worker. One task sends, one receives. Closing it is idempotent and never blocks."""

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        """Send all buffers in order, without joining large ones. Blocks while the peer does not read; cancellable (the
        stream is then unusable). Raises: trio.BrokenResourceError."""

    async def receive_into(self, buffer: memoryview) -> int:
        """Receive at least one byte into `buffer` and return how many; 0 at EOF or reset. Blocks; cancellable."""

    def close(self) -> None: ...


class WorkerProcess(Protocol):
    """One spawned worker. Alive until `wait` has returned; leaving the host's context manager kills and reaps it."""

    pid: int

    async def accept(self) -> ByteStream:
        """Wait for the connection of exactly this child (W3): strangers are closed and the wait goes on. The listener
        is closed and unlinked afterwards. Blocks without a deadline of its own."""

    async def wait(self) -> int:
        """Wait for the exit and reap; the exit status, negative for a signal. Several tasks may await it."""

    def terminate(self) -> None:
        """SIGTERM to the process group. Never raises for a process that is gone."""

    def kill(self) -> None:
        """SIGKILL to the process group. Never raises for a process that is gone."""

    async def log_tail(self, limit: int = 8192) -> str:
        """The last `limit` bytes of its output, control characters escaped. After the exit it waits at most 250 ms for
        what is still in the pipe."""


class Host(Protocol):
    """Where workers run."""

    def spawn(self, spec: WorkerSpec) -> AbstractAsyncContextManager[WorkerProcess]:
        """Start a worker. Entering raises SetupError or EngineCrashed(stage="spawn"); leaving runs SIGKILL and reaps,
        whatever happened inside, and removes its socket."""
