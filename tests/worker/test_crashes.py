"""Every way a worker can fail, by stage (W7): a typed error with status and log tail, and nothing is left."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import textwrap
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
import pytest
import trio

from synapse.errors import EngineCrashed, Stage
from synapse.host import RealHost
from synapse.limits import Limits
from synapse.wire import messages as m
from synapse.worker import Worker, open_worker
from tests.worker.conftest import PATIENT, OpenFaulty, SeenHost, embed, embed_request, faulty_spec, load, ping

SHORT = Limits(boot_s=0.5)
"""For those that hang in boot: whether they are given half a second or a minute, they never come."""


@pytest.mark.parametrize(
    ("faults", "stage", "status", "says"),
    [
        ("exit=3@boot", "spawn", 3, "ended"),
        ("abort@boot", "spawn", -signal.SIGABRT, "ended"),
        ("exit@connect", "handshake", 0, "HELLO"),
        ("segv@connect", "handshake", -signal.SIGSEGV, "HELLO"),
        ("wrong_nonce@HELLO", "handshake", None, "nonce"),
        ("wrong_pid@HELLO", "handshake", None, "pid"),
        ("wrong_version@HELLO", "handshake", None, "version 2"),
        ("version_string@HELLO", "handshake", None, "malformed"),
        ("garbage@HELLO", "handshake", None, "malformed"),
        ("huge_length@HELLO", "handshake", None, "4294967295"),
        ("empty_frame@HELLO", "handshake", None, "0 bytes"),
        ("bad_utf8@HELLO", "handshake", None, "malformed"),
        ("deep@HELLO", "handshake", None, "control frame"),
        ("half@HELLO", "handshake", 0, "HELLO"),
    ],
)
async def test_a_boot_that_fails(
    host: RealHost, faulty: OpenFaulty, faults: str, stage: Stage, status: int | None, says: str
) -> None:
    with pytest.raises(EngineCrashed) as crashed:
        async with faulty("print=here I was@boot," + faults):
            raise AssertionError("never ready")
    crash = crashed.value
    assert crash.stage == stage
    assert says in str(crash)
    assert crash.exit_status is not None
    if status is not None:
        assert crash.exit_status == status
    assert "here I was" in crash.log_tail


@pytest.mark.parametrize(
    ("faults", "stage"),
    [
        ("hang@boot", "spawn"),
        ("stop@boot", "spawn"),
        ("spin_c@boot", "spawn"),
        ("hang@connect", "handshake"),
        ("drip=0.2@HELLO", "handshake"),
    ],
)
async def test_a_boot_that_hangs(faulty: OpenFaulty, faults: str, stage: Stage) -> None:
    """Half a second is enough to connect on a good day only, so on a bad one the stage may be the earlier one."""
    with pytest.raises(EngineCrashed, match=r"not ready within 0\.5 s") as crashed:
        async with faulty(faults, SHORT):
            raise AssertionError("never ready")
    assert crashed.value.stage in ("spawn", stage)
    assert crashed.value.exit_status == -signal.SIGKILL


@pytest.mark.parametrize(
    ("faults", "status"),
    [
        ("abort@LOAD", -signal.SIGABRT),
        ("segv@LOAD", -signal.SIGSEGV),
        ("illegal@LOAD", -signal.SIGILL),
        ("kill@LOAD", -signal.SIGKILL),
        ("exit@LOAD", 0),
        ("raise@LOAD", 70),
    ],
)
async def test_death_in_load(faulty: OpenFaulty, faults: str, status: int) -> None:
    async with faulty(faults) as worker:
        with pytest.raises(EngineCrashed) as crashed:
            await load(worker)
        assert (crashed.value.stage, crashed.value.exit_status) == ("load", status)
        assert ("does not fit this CPU" in str(crashed.value)) == (status == -signal.SIGILL)
        assert await worker.died() is crashed.value
        with pytest.raises(EngineCrashed):
            await ping(worker)


async def _embed_five_times(worker: Worker) -> None:
    for _ in range(5):
        await embed(worker)


async def _life(opened: AbstractAsyncContextManager[Worker], load_timeout_s: float) -> None:
    async with opened as worker:
        await load(worker, timeout_s=load_timeout_s)
        await embed(worker)


@pytest.mark.parametrize(
    ("faults", "status"),
    [
        ("abort@EMBED_BATCH", -signal.SIGABRT),
        ("segv@EMBED_BATCH#2", -signal.SIGSEGV),
        ("exit@EMBED_BATCH#3", 0),
        ("kill@any#4", -signal.SIGKILL),
        ("raise@EMBED_BATCH", 70),
        ("half@EMBED_BATCH", 0),
        ("cut@EMBED_BATCH", -signal.SIGKILL),
    ],
)
async def test_death_in_a_request(faulty: OpenFaulty, faults: str, status: int) -> None:
    async with faulty("print=tail of the log@LOAD," + faults) as worker:
        await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await _embed_five_times(worker)
        assert (crashed.value.stage, crashed.value.exit_status) == ("request", status)
        assert "tail of the log" in crashed.value.log_tail


async def test_an_assertion_of_the_engine_is_in_the_tail(faulty: OpenFaulty) -> None:
    async with faulty("abort@EMBED_BATCH") as worker:
        await load(worker)
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker)
    assert "GGML_ASSERT(n_tokens > 0) failed" in crashed.value.log_tail


@pytest.mark.parametrize(
    ("lie", "says"),
    [
        ("garbage", "control frame of|malformed"),
        ("twice", "out of turn"),
        ("wrong_req_id", "in flight"),
        ("wrong_type", "does not answer"),
        ("nan", "NaN"),
        ("dims_lie", "announced"),
        ("short_raw", "announced"),
        ("unsolicited", "out of turn"),
        ("huge_length", "4294967295"),
        ("empty_frame", "0 bytes"),
        ("bad_utf8", "malformed"),
        ("deep", "malformed"),
        ("duplicate_key", "twice"),
    ],
)
async def test_a_lie_is_a_crash_of_stage_protocol(faulty: OpenFaulty, lie: str, says: str) -> None:
    async with faulty(f"{lie}@EMBED_BATCH") as worker:
        await load(worker)
        if lie in ("twice", "unsolicited"):  # the first reply is good; what follows is noticed while idle
            await embed(worker)
            crash = await worker.died()
        else:
            with pytest.raises(EngineCrashed) as crashed:
                await embed(worker)
            crash = crashed.value
        assert crash.stage == "protocol"
        assert crash.exit_status is not None
        assert re.search(says, str(crash))


@pytest.mark.parametrize(
    ("how", "place"),
    [("hang", "LOAD"), ("stop", "LOAD"), ("stop", "EMBED_BATCH"), ("spin", "EMBED_BATCH"), ("spin_c", "EMBED_BATCH")],
)
async def test_a_hang_ends_at_the_deadline(faulty: OpenFaulty, how: str, place: str) -> None:
    async with faulty(f"{how}@{place}") as worker:
        if place != "LOAD":
            await load(worker)
        with pytest.raises(EngineCrashed, match=r"0\.1 s") as crashed:
            await (load if place == "LOAD" else embed)(worker, timeout_s=0.1)
        assert (crashed.value.stage, crashed.value.exit_status) == ("timeout", -signal.SIGKILL)


async def test_after_every_kind_of_end_the_next_worker_serves(faulty: OpenFaulty) -> None:
    """Under the same name, in the same runtime directory."""
    for faults in ("abort@boot", "wrong_nonce@HELLO", "stop@LOAD", "nan@EMBED_BATCH"):
        with pytest.raises(EngineCrashed):
            await _life(faulty(faults), 0.1 if "LOAD" in faults else 60)
        async with faulty() as worker:
            await load(worker)
            await embed(worker)


async def test_a_drip_cannot_extend_the_deadline(faulty: OpenFaulty) -> None:
    async with faulty("drip=0.01@EMBED_BATCH") as worker:
        await load(worker, dims="4096")
        with pytest.raises(EngineCrashed) as crashed:
            await embed(worker, timeout_s=0.5)  # the whole would take three minutes
        assert crashed.value.stage == "timeout"


async def test_a_drip_within_the_deadline_is_an_answer(faulty: OpenFaulty) -> None:
    async with faulty("drip=0.001@EMBED_BATCH") as worker:
        await load(worker)
        assert (await embed(worker)).shape == (1, 8)


@pytest.mark.parametrize("how", ["hang", "stop"])
async def test_a_full_pipe_cannot_extend_the_deadline(faulty: OpenFaulty, how: str) -> None:
    """It never reads: the socket takes a few hundred kilobytes of the 16 MiB, then sending blocks (W6)."""
    async with faulty(f"{how}@ready") as worker:
        handed = trio.Event()
        request, raws = embed_request(2**22)
        with pytest.raises(EngineCrashed) as crashed:
            await worker.call(request, raws, timeout_s=0.3, on_handover=handed.set)
        assert handed.is_set()
        assert crashed.value.stage == "timeout"


@pytest.mark.parametrize(
    ("faults", "status"), [("exit=5@PING.after", 5), ("abort@PING.after", -signal.SIGABRT), ("kill@PING.after", -9)]
)
async def test_death_while_idle_is_noticed_at_once(faulty: OpenFaulty, faults: str, status: int) -> None:
    """A reply that was complete stays a reply, whatever happens next (W7)."""
    async with faulty(faults) as worker:
        assert (await ping(worker)).models_loaded == 0
        crash = await worker.died()
        assert (crash.stage, crash.exit_status) == ("idle", status)


async def test_someone_else_kills_it(faulty: OpenFaulty) -> None:
    async with faulty() as worker:
        os.kill(worker.pid, signal.SIGKILL)
        assert (await worker.died()).exit_status == -signal.SIGKILL


async def test_asking_a_dying_worker_is_a_crash_whenever_it_is_asked(faulty: OpenFaulty) -> None:
    """Between its death and its reaping, too."""
    async with faulty() as worker:
        os.kill(worker.pid, signal.SIGKILL)
        for _ in range(3):
            with pytest.raises(EngineCrashed):
                await ping(worker)


async def test_a_closed_connection_is_death(faulty: OpenFaulty) -> None:
    """It lives on, but nobody can ask it anything."""
    async with faulty("cut@PING") as worker:
        await ping(worker)
        assert (await worker.died()).exit_status == -signal.SIGKILL
        with pytest.raises(EngineCrashed, match="closed its connection"):
            await ping(worker)


@pytest.mark.parametrize("kind", ["grandchild", "daemon"])
async def test_a_grandchild_that_holds_everything_delays_nothing(faulty: OpenFaulty, kind: str) -> None:
    """It holds output and socket beyond the worker's death (M13). In the group it dies too; a daemon ends itself."""
    async with faulty(f"{kind}=2@PING,exit=4@PING") as worker:
        with pytest.raises(EngineCrashed) as crashed:
            await ping(worker)
        assert (crashed.value.stage, crashed.value.exit_status) == ("request", 4)
        assert "grandchild" in crashed.value.log_tail


@pytest.mark.parametrize("count", [100, 5_000_000])
async def test_a_log_flood_is_bounded_and_blocks_nobody(faulty: OpenFaulty, count: int) -> None:
    async with faulty(f"flood={count}@PING,exit=1@PING.after") as worker:
        await ping(worker)
        crash = await worker.died()
    expected = (b"0123456789abcdef" * (count // 16 + 1))[:count][-8192:].decode()
    assert crash.log_tail[-100:] == expected[-100:] or count > 65536
    assert len(crash.log_tail) == min(count, 8192)


async def test_a_worker_that_fails_at_every_boot_fails_the_same_way(faulty: OpenFaulty) -> None:
    for _ in range(3):
        with pytest.raises(EngineCrashed) as crashed:
            async with faulty("abort@boot"):
                raise AssertionError("never ready")
        assert crashed.value.stage == "spawn"


async def test_an_impostor_gets_nothing(host: RealHost, runtime_dir: Path) -> None:
    """A stranger that connects first is closed, the wait goes on, and the right child is served (W3)."""
    path = trio.Path(runtime_dir / "synapse" / "workers" / "w1.sock")
    closed = trio.Event()

    async def intrude() -> None:
        await seen.started.wait()
        with trio.socket.socket(socket.AF_UNIX) as stranger:
            await stranger.connect(str(path))
            assert await stranger.recv(1) == b""
        closed.set()

    async def let_go() -> None:
        pid = await seen.stopped()
        await closed.wait()
        os.kill(pid, signal.SIGCONT)

    seen = SeenHost(host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(intrude)
        nursery.start_soon(let_go)
        async with open_worker(seen, faulty_spec("stop@boot"), PATIENT) as worker:
            await ping(worker)
            assert not await path.exists()


def sockets(directory: Path) -> list[Path]:
    return list(directory.rglob("*.sock"))


async def test_the_socket_is_gone_once_the_worker_is_here(faulty: OpenFaulty, runtime_dir: Path) -> None:
    """One connection, then nobody else: there is nothing to connect to."""
    async with faulty():
        assert sockets(runtime_dir) == []


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_launcher_in_between_is_an_impostor(host: RealHost, tmp_path: Path) -> None:
    """What connects must be the very process that was started."""
    script = tmp_path / "launcher.py"
    write(script, "import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-P', '-m', *sys.argv[1:]]))")
    spec = faulty_spec(argv=[sys.executable, str(script), "worker_bin.faulty"])
    with pytest.raises(EngineCrashed) as crashed:
        async with open_worker(host, spec, Limits(boot_s=1.0)):
            raise AssertionError("never ready")
    assert crashed.value.stage == "spawn"


async def test_a_foreign_worker_that_knows_v1_only(host: RealHost, tmp_path: Path) -> None:
    """Another implementation, written against the specification alone, is served."""
    script = tmp_path / "foreign.py"
    write(
        script,
        textwrap.dedent(
            """
            import json, os, socket, struct, sys
            args = dict(zip(sys.argv[1::2], sys.argv[2::2]))
            s = socket.socket(socket.AF_UNIX); s.connect(args["--socket"])
            def send(x): p = json.dumps(x, indent=1).encode(); s.sendall(struct.pack("<I", len(p)) + p)
            def read():
                n = struct.unpack("<I", s.recv(4, socket.MSG_WAITALL))[0]
                return s.recv(n, socket.MSG_WAITALL)
            send({"max_frame": 65536, "pid": os.getpid(), "v": 1, "nonce": args["--nonce"], "extra": {"a": 1},
                  "engine": {"name": "foreign", "version": "0", "build_flags": {}}})
            assert json.loads(read())["accept"] is True
            while True:
                r = json.loads(read())
                if r["type"] == "SHUTDOWN": sys.exit(0)
                for _ in range(r.get("raw", int(r["type"] in ("EMBED_BATCH", "RERANK", "GENERATE")))): read()
                if r["type"] == "PING": send({"type": "PONG", "req_id": r["req_id"], "rss_mb": 1, "models_loaded": 0})
                else: send({"type": "ERR", "req_id": r["req_id"], "code": "unknown_type", "msg": "?"})
            """
        ),
    )
    async with open_worker(host, faulty_spec(argv=[sys.executable, str(script)]), PATIENT) as worker:
        await ping(worker)
        decode = m.Decode(req_id="d", model_ref="m", max_steps=1, target_ms=1.0)
        with pytest.raises(Exception, match="unknown_type"):
            await worker.call(decode, [np.array([], "<i4")], timeout_s=60)
        await ping(worker)
        process = worker._process
    assert await process.wait() == 0
