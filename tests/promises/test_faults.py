"""The faults that no other room's tests inject (tests/promises/faults.py)."""

from __future__ import annotations

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import trio

from synapse import EngineCrashed, Quarantined
from synapse.host import RealHost
from synapse.ports import ByteStream
from synapse.testing import SITES
from synapse.worker import open_worker
from tests.gateway import Gateway
from tests.lane.lab import BOUND_S, open_lab, text_of
from tests.promises.faults import FAULTS
from tests.worker.conftest import PATIENT, SeenHost, embed, faulty_spec, load, ping


def test_every_fault_is_injected_somewhere() -> None:
    assert [fault.number for fault in FAULTS] == list(range(1, 73))
    for fault in FAULTS:
        assert fault.simulated or fault.tests, fault
        assert set(fault.simulated) <= set(SITES), fault
    assert {site for fault in FAULTS for site in fault.simulated} == set(SITES)


async def test_the_socket_file_vanishes(runtime_dir: Path) -> None:
    """27: deleted or replaced before the worker connects: it cannot come, which is a crash like any other."""
    for replace in (False, True):
        with RealHost(runtime_dir) as host:
            seen = SeenHost(host)
            path = runtime_dir / "synapse" / "workers" / "w1.sock"

            async def sabotage(seen: SeenHost = seen, path: Path = path, replace: bool = replace) -> None:
                pid = await seen.stopped()
                _remove(path, replace)
                os.kill(pid, signal.SIGCONT)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(sabotage)
                with pytest.raises(EngineCrashed) as crashed:
                    async with open_worker(seen, faulty_spec("stop@boot"), PATIENT):
                        raise AssertionError("never ready")
            assert crashed.value.stage == "spawn"
            assert "Error" in crashed.value.log_tail
            assert not path.exists()
            async with open_worker(host, faulty_spec(), PATIENT) as worker:
                await ping(worker)


def _remove(path: Path, replace: bool) -> None:
    path.unlink()
    if replace:
        path.write_bytes(b"no socket")


async def test_no_memory_for_a_reply(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """52: the supervisor has no memory for what came. The error is its own, and nothing is left."""
    with RealHost(runtime_dir) as host:
        failed = trio.Event()

        async def no_memory(stream: ByteStream, buffer: memoryview) -> int:
            failed.set()
            raise MemoryError("no memory for a reply")

        with pytest.raises((MemoryError, BaseExceptionGroup)):  # noqa: PT012 - whichever call notices it
            async with open_worker(host, faulty_spec(), PATIENT) as worker:
                await load(worker)
                monkeypatch.setattr(type(worker._stream), "receive_into", no_memory)
                with trio.move_on_after(BOUND_S):
                    await embed(worker)
                    await embed(worker)
        assert failed.is_set()
        monkeypatch.undo()
        async with open_worker(host, faulty_spec(), PATIENT) as worker:
            await ping(worker)


async def test_a_quarantine_that_cannot_be_recorded(runtime_dir: Path, tmp_path: Path) -> None:
    """53: the state directory cannot be written to. The quarantine holds all the same, and says so."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="embed"), "exit=3@EMBED_BATCH")
        with trio.fail_after(BOUND_S):
            await lane.ready()
            _unwritable(tmp_path / "state")
            for _ in range(3):
                with pytest.raises(EngineCrashed):
                    await lane.embed([text_of(3)], max_queue=None)
            with pytest.raises(Quarantined, match="not recorded"):
                await lane.embed([text_of(3)])


def _unwritable(directory: Path) -> None:
    """A file takes the directory's place: root could write past any mode."""
    shutil.rmtree(directory)
    directory.write_text("a file where the directory would be")


def test_one_request_id_several_times_at_once(gateway: Gateway) -> None:
    """67: an ID is the caller's own; each request is answered for itself."""

    def ask(number: int) -> list[float]:
        answer = gateway.operation(
            model="minilm",
            request_id="same",
            input={"kind": "text", "text": f"text {number % 2}"},
            output="embeddings_float32",
        ).json()
        assert answer["request_id"] == "same"
        vector: list[float] = answer["result"]["vectors"][0]
        return vector

    with ThreadPoolExecutor(8) as pool:
        vectors = list(pool.map(ask, range(16)))
    assert vectors[0] != vectors[1]
    for number, vector in enumerate(vectors):
        assert vector == pytest.approx(vectors[number % 2], abs=1e-5)
