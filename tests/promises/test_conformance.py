"""The public suites of `synapse.testing`, run on everything that we have: both transports, both hosts, our workers."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from synapse.host import RealHost, python_worker
from synapse.host.endpoint import SocketStream
from synapse.ports import ByteStream, Host, WorkerSpec
from synapse.testing import (
    BEHAVIOURS,
    HOST_CHECKS,
    STREAM_CHECKS,
    WORKER_CHECKS,
    FaultPlan,
    HostUnderTest,
    NonConformance,
    SimHost,
    WorkerUnderTest,
    check_host,
    check_stream,
    check_worker,
    stream_pair,
)
from synapse.testing.hosts import Behaviour
from tests import models
from tests.promises.scale import FULL
from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import Plan
from worker_bin.faulty.text import VOCABULARY, digest_of

Pair = tuple[ByteStream, ByteStream]


@asynccontextmanager
async def unix_sockets() -> AsyncIterator[Pair]:
    one, other = (SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
    try:
        yield one, other
    finally:
        one.close()
        other.close()


@asynccontextmanager
async def memory() -> AsyncIterator[Pair]:
    yield stream_pair()


@pytest.mark.parametrize("make", [unix_sockets, memory])
@pytest.mark.parametrize("name", STREAM_CHECKS)
async def test_transports(name: str, make: Callable[[], AbstractAsyncContextManager[Pair]]) -> None:
    await check_stream(name, make)


FAULTS: dict[Behaviour, str] = {
    "good": "",
    "exits_with_3": "exit=3@boot",
    "never_connects": "ignore_sigterm@boot,hang@boot",
    "says_nothing": "ignore_sigterm@connect,hang@connect",
    "cannot_start": "",
    "deaf": "ignore_sigterm@ready,hang@ready",
}
SITES: dict[Behaviour, str] = {
    "exits_with_3": "exit_at_boot",
    "never_connects": "mute_at_boot",
    "says_nothing": "mute_in_handshake",
    "cannot_start": "spawn_fails",
}


def real_host(runtime_dir: Path) -> HostUnderTest:
    @asynccontextmanager
    async def open_host(behaviour: Behaviour) -> AsyncIterator[Host]:
        with RealHost(runtime_dir) as host:
            yield host

    def spec(behaviour: Behaviour, worker_id: str) -> WorkerSpec:
        argv = ["/nowhere/worker"] if behaviour == "cannot_start" else python_worker("faulty")
        return WorkerSpec(worker_id, argv, "0" * 16, {"SYNAPSE_FAULTS": FAULTS[behaviour]})

    return HostUnderTest(open_host, spec)


def simulated_host() -> HostUnderTest:
    @asynccontextmanager
    async def open_host(behaviour: Behaviour) -> AsyncIterator[Host]:
        plan = FaultPlan(0, sites={SITES[behaviour]: 1.0} if behaviour in SITES else {})
        yield SimHost(lambda spec: FaultyEngine(Plan("")), plan, deaf=behaviour == "deaf", boot_status=3)

    return HostUnderTest(open_host, lambda behaviour, worker_id: WorkerSpec(worker_id, ["virtual"], "0" * 16))


def test_every_behaviour_is_made() -> None:
    assert set(FAULTS) == set(BEHAVIOURS)


@pytest.mark.parametrize("name", HOST_CHECKS)
async def test_the_real_host(runtime_dir: Path, name: str) -> None:
    await check_host(real_host(runtime_dir), only=name)


@pytest.mark.parametrize("name", HOST_CHECKS)
async def test_the_simulated_host(autojump_clock: MockClock, name: str) -> None:
    autojump_clock.autojump_threshold = 0
    await check_host(simulated_host(), only=name)


def faulty_worker(directory: Path, faults: str = "", role: str = "embed") -> WorkerUnderTest:
    path = directory / "model.gguf"
    path.write_text(f"faulty role={role} context=64")
    return WorkerUnderTest(
        python_worker("faulty"), path, digest_of(str(path)), VOCABULARY, env={"SYNAPSE_FAULTS": faults}
    )


def llama_worker(path: Path, vocabulary: int) -> WorkerUnderTest:
    return WorkerUnderTest(
        python_worker("llama"),
        path,
        digest_of(str(path)),
        vocabulary,
        runtime_config={"context": "64", "parallel": "2", "threads": "1"},
        env={"SYNAPSE_READ_DIRS": str(path.parent)},
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, WorkerUnderTest]:
    directory = tmp_path_factory.mktemp("conformance")
    decoder, encoder = models.tiny_llama(directory / "d.gguf"), models.tiny_bert(directory / "e.gguf")
    return {
        "decoder": llama_worker(decoder, len(models.bpe_vocabulary()[0])),
        "encoder": llama_worker(encoder, len(models.wpm_vocabulary()[0])),
    }


@pytest.mark.parametrize("name", WORKER_CHECKS)
async def test_the_faulty_worker(runtime_dir: Path, tmp_path: Path, name: str) -> None:
    with RealHost(runtime_dir) as host:
        await check_worker(host, faulty_worker(tmp_path), only=name)


@pytest.mark.parametrize("name", WORKER_CHECKS)
async def test_the_virtual_worker(tmp_path: Path, autojump_clock: MockClock, name: str) -> None:
    autojump_clock.autojump_threshold = 0
    await check_worker(SimHost(lambda spec: FaultyEngine(Plan(""))), faulty_worker(tmp_path), only=name)


QUICK = {
    "decoder": ("unknown_types_are_read_and_refused", "it_loads_serves_and_unloads", "a_broken_module_ends_it"),
    "encoder": ("answers_do_not_depend_on_company", "bad_ids_are_refused"),
}
"""Each check of a real engine starts a process that imports it: `make test` takes these, `make proof` all."""


@pytest.mark.parametrize("kind", QUICK)
async def test_the_llama_worker(runtime_dir: Path, tiny: dict[str, WorkerUnderTest], kind: str) -> None:
    with RealHost(runtime_dir) as host:
        for name in WORKER_CHECKS if FULL else QUICK[kind]:
            await check_worker(host, tiny[kind], only=name)


@pytest.mark.parametrize(
    ("faults", "check"),
    [
        ("exit=1@PING", "it_says_hello_and_ends_when_asked"),
        ("exit=4@SHUTDOWN", "it_says_hello_and_ends_when_asked"),
        ("wrong_nonce@HELLO", "it_understands_requests_in_pieces"),
        ("nan@EMBED_BATCH", "it_loads_serves_and_unloads"),
        ("abort@EMBED_BATCH#3", "answers_do_not_depend_on_company"),
    ],
)
async def test_the_suite_notices(runtime_dir: Path, tmp_path: Path, faults: str, check: str) -> None:
    """A worker that misbehaves does not pass."""
    with RealHost(runtime_dir) as host, pytest.raises(NonConformance) as found:
        await check_worker(host, faulty_worker(tmp_path, faults), only=check)
    assert found.value.check == check
