"""Workers of the faulty engine, misbehaving as the test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from synapse.host import RealHost, python_worker
from synapse.limits import Limits
from synapse.ports import WorkerProcess, WorkerSpec
from synapse.wire import messages as m
from synapse.worker import Worker, open_worker

PATIENT = Limits(boot_s=60.0, shutdown_grace_s=60.0, terminate_grace_s=60.0)
"""Only a hang reaches these."""
DIGEST = "sha256:" + "0" * 64

OpenFaulty = Callable[..., AbstractAsyncContextManager[Worker]]


@pytest.fixture
def host(runtime_dir: Path) -> Iterator[RealHost]:
    with RealHost(runtime_dir) as host:
        yield host


def faulty_spec(faults: str = "", worker_id: str = "w1", argv: Sequence[str] | None = None, **env: str) -> WorkerSpec:
    return WorkerSpec(worker_id, argv or python_worker("faulty"), "0123456789abcdef", {"SYNAPSE_FAULTS": faults, **env})


@pytest.fixture
def faulty(host: RealHost) -> OpenFaulty:
    """`faulty("abort@LOAD")`: open_worker on a faulty worker."""

    @asynccontextmanager
    async def open_faulty(faults: str = "", limits: Limits = PATIENT, **env: str) -> AsyncIterator[Worker]:
        async with open_worker(host, faulty_spec(faults, **env), limits) as worker:
            yield worker

    return open_faulty


class SeenHost:
    """A host that shows its latest process, before it is a worker."""

    def __init__(self, host: RealHost) -> None:
        self._host = host
        self.process: WorkerProcess | None = None
        self.started = trio.Event()

    @asynccontextmanager
    async def spawn(self, spec: WorkerSpec) -> AsyncIterator[WorkerProcess]:
        async with self._host.spawn(spec) as self.process:
            self.started.set()
            yield self.process

    async def stopped(self) -> int:
        """Wait until the process has stopped itself; its pid."""
        await self.started.wait()
        assert self.process is not None
        status = trio.Path(f"/proc/{self.process.pid}/status")
        while "T (stopped)" not in await status.read_text():
            await trio.lowlevel.checkpoint()
        return self.process.pid


async def load(worker: Worker, timeout_s: float = 60.0, **config: str) -> m.Loaded:
    request = m.Load(
        req_id="load", artifact_path="/nowhere", artifact_digest=DIGEST, format="gguf", runtime_config=config
    )
    reply, raw = await worker.call(request, timeout_s=timeout_s, stage="load")
    assert isinstance(reply, m.Loaded)
    assert len(raw) == 0
    return reply


def embed_request(*lengths: int, req_id: str = "embed") -> tuple[m.EmbedBatch, list[np.ndarray]]:
    items = [m.EmbedItem(str(index), length) for index, length in enumerate(lengths)]
    request = m.EmbedBatch(req_id=req_id, model_ref="faulty-00000000", pooling="mean", normalize=True, items=items)
    return request, [np.arange(sum(lengths), dtype="<i4") % 250]


async def embed(worker: Worker, *lengths: int, timeout_s: float = 60.0, req_id: str = "embed") -> np.ndarray:
    request, raws = embed_request(*(lengths or (3,)), req_id=req_id)
    reply, raw = await worker.call(request, raws, timeout_s=timeout_s)
    assert isinstance(reply, m.Vectors)
    return np.frombuffer(raw, "<f4").reshape(reply.n, reply.dims)


async def ping(worker: Worker, timeout_s: float = 60.0) -> m.Pong:
    reply, _ = await worker.call(m.Ping(req_id="ping"), timeout_s=timeout_s)
    assert isinstance(reply, m.Pong)
    return reply
