"""Figures that need real processes, real time or many repetitions. `make test` takes what is not marked as proof."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, given, settings
from trio.testing import MockClock

from synapse import EngineCrashed
from synapse.errors import RemoteProtocolError
from synapse.host import RealHost
from synapse.host.endpoint import UnixEndpoint
from synapse.limits import Limits
from synapse.ports import WorkerSpec
from synapse.testing import FaultPlan, SimHost
from synapse.wire import messages as m
from synapse.wire.frames import prefix
from synapse.wire.state import Role
from synapse.worker import open_worker
from tests import models
from tests.contract.mutate import echoed_id, mutate
from tests.contract.test_mutations import refusal
from tests.gateway import running, stop
from tests.lane.lab import open_lab
from tests.policy import test_budget
from tests.promises.scale import FULL, measured, scaled
from tests.wire.pair import connection, feed, greeted, outcome
from tests.wire.vectors import BYTES
from tests.worker.conftest import PATIENT, faulty_spec, ping
from tests.worker.test_orphans import STATES, kill_a_module
from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import Plan

BOUND_S = 120.0
ROOT = Path(__file__).parents[2]


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


@pytest.mark.proof
def test_no_orphans(runtime_dir: Path) -> None:
    """P1: killed in every state, again and again; from the kill to the worker's end."""
    took = [kill_a_module(runtime_dir, *STATES[trial % len(STATES)]) for trial in range(200)]
    assert max(took) <= 0.25
    measured("P1", f"200 kills, median {percentile(took, 0.5) * 1e3:.0f} ms, longest {max(took) * 1e3:.0f} ms")


@pytest.mark.proof
def test_clean_stops(tmp_path: Path) -> None:
    """P2: SIGTERM to a gateway that generates and embeds, at random moments."""
    chance = random.Random(1)
    decoder = models.tiny_llama(tmp_path / "d.gguf")
    took = []
    for _ in range(50):
        with running(tmp_path, str(decoder), "--port", "0") as own:
            body = msgspec.json.encode({"model": "d", "prompt": "a", "max_tokens": 100, "stream": True})
            with socket.create_connection(("127.0.0.1", own.port)) as client:
                head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{own.port}\r\n"
                head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
                client.sendall(head.encode() + body)
                time.sleep(chance.random() * 0.2)
                began = time.monotonic()
                own.process.send_signal(signal.SIGTERM)
                assert stop(own.process) == 0
                took.append(time.monotonic() - began)
    assert max(took) <= 5.0 + 5.0 + 1.0
    measured("P2", f"50 SIGTERMs under load, longest {max(took):.1f} s")


WRONG = ("wrong_nonce", "wrong_version", "hello_twice", "exit_at_boot")


@pytest.mark.proof
async def test_impostors(autojump_clock: MockClock) -> None:
    """P8: handshakes that are wrong, in virtual time."""
    for number in range(10_000):
        site = WRONG[number % len(WRONG)]
        host = SimHost(lambda spec: FaultyEngine(Plan("")), FaultPlan(number, sites={site: 1.0}))
        try:
            async with open_worker(host, WorkerSpec("w1", ["virtual"], f"{number + 1:016x}"), Limits()) as worker:
                assert site == "hello_twice"  # the first was right; what follows it is a crash
                assert (await worker.died()).stage == "protocol"
        except EngineCrashed as crash:
            assert crash.stage in ("spawn", "handshake")  # noqa: PT017 - both branches are judged
        assert host.alive == set()
        assert host.journal == []
    measured("P8", "10,000 wrong handshakes, 0 accepted")


@pytest.mark.proof
async def test_strangers(runtime_dir: Path) -> None:
    """P8: strangers at a real door."""
    endpoint = UnixEndpoint(runtime_dir / "e.sock")
    took: list[float] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.accept, 1)
        for _ in range(2000):
            with trio.socket.socket(socket.AF_UNIX) as stranger:
                await stranger.connect(endpoint.address)
                began = time.monotonic()
                assert await stranger.recv(1) == b""
                took.append(time.monotonic() - began)
        nursery.cancel_scope.cancel()
    endpoint.close()
    assert max(took) <= 0.1
    measured("P8", f"2,000 strangers closed within {max(took) * 1e3:.1f} ms at most")


@pytest.mark.proof
def test_any_frame() -> None:
    """P9: frames with bytes replaced, inserted and removed; each tenth also cut in two ways."""
    chance = random.Random(9)
    words = [b'"req_id"', b'"type"', b"null", b"1e999", b"NaN", b"-1", b"[" * 500, b"{", b"}", b'"\\ud800"', b"\xff"]
    names = list(BYTES)
    count = 2_000_000
    violations = 0
    for number in range(count):
        role = Role.MODULE if number % 2 else Role.WORKER
        data = bytearray(BYTES[chance.choice(names)])
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            data[at : at + chance.randrange(8)] = chance.choice(words)
        if number % 10 == 0:
            cut = chance.randrange(len(data) + 1)
            whole = outcome(connection(role), [bytes(data)], [])
            assert outcome(connection(role), [bytes(data[:cut]), bytes(data[cut:])], []) == whole
            violations += whole[-1].startswith("violation")
            continue
        end = greeted(role)
        if role is Role.MODULE:
            end.send(m.Ping(req_id="7"))
        try:
            feed(end, data)
        except RemoteProtocolError:
            violations += 1
    measured("P9", f"{count:,} mutated frames: events or one RemoteProtocolError ({violations:,})")


@pytest.mark.proof
def test_hostile_prefixes() -> None:
    """P10: lengths that are claimed and never come."""
    before = _rss_bytes()
    for number in range(10_000):
        end = greeted(Role.WORKER)
        feed(end, prefix((m.MAX_JSON_FRAME_BYTES, 2**20, 70_000)[number % 3]) + b"{")
    grown = _rss_bytes() - before
    assert grown <= 2**20
    measured("P10", f"10,000 hostile prefixes, {grown / 1024:.0f} KiB more")


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.proof
def test_crash_budget() -> None:
    """P11: the property of tests/policy/test_budget.py with more schedules."""
    test = test_budget.test_quarantine_comes_with_the_nth_crash_in_the_window_and_never_before
    strategies = test.hypothesis._given_kwargs  # type: ignore[attr-defined]
    examples = settings(max_examples=100_000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    examples(given(**strategies)(test.hypothesis.inner_test))()  # type: ignore[attr-defined]
    measured("P11", "100,000 schedules")


async def test_health_beside_stopped_workers(runtime_dir: Path, tmp_path: Path) -> None:
    """P13: every worker is stopped by SIGSTOP; health says what it knew, with its age."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lanes = [await lab.load("embed", name=f"m{number}") for number in range(2)]
        pids = [worker.pid for lane in lanes for worker in lane.health().workers if worker.pid]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            took = []
            for _ in range(scaled(20, 1000)):
                began = time.monotonic()
                health = lab.supervisor.health()
                took.append(time.monotonic() - began)
                assert [lane.state for lane in health.lanes] == ["loaded", "loaded"]
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
    p99 = percentile(took, 0.99)
    assert not FULL or p99 <= 0.005
    measured("P13", f"{len(took)} answers beside stopped workers, p99 {p99 * 1e3:.2f} ms")


@pytest.mark.proof
async def test_log_flood(runtime_dir: Path) -> None:
    """P14: a gigabyte of output."""
    count = 1_000_000_000
    with RealHost(runtime_dir) as host:
        async with open_worker(host, faulty_spec(f"flood={count}@PING,exit=1@PING.after"), PATIENT) as worker:
            before = _rss_bytes()
            began = time.monotonic()
            await ping(worker, timeout_s=600)
            crash = await worker.died()
            grown, took = _rss_bytes() - before, time.monotonic() - began
    assert crash.log_tail == (b"0123456789abcdef" * 512).decode()
    assert grown <= 2 * 2**20
    measured("P14", f"1 GB in {took:.1f} s, {grown / 1024:.0f} KiB more, the last 8 KiB exact")


@pytest.mark.proof
def test_mutated_bodies() -> None:
    """P21: the property of tests/contract/test_mutations.py with more bodies."""
    chance = random.Random(21)
    count = 1_000_000
    for _ in range(count):
        mutant = mutate(chance)
        error = refusal(mutant.body)
        if error is None:
            assert mutant.code is None, mutant
        else:
            assert error.outcome == "not_admitted", mutant
            assert error.code == (mutant.code or error.code), mutant
            assert error.request_id == echoed_id(mutant.body), mutant
    measured("P21", f"{count:,} mutated bodies, each refused as it must be")
