"""Children: their environment, their output, their exit, and their groups' end."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from synapse import managed_process
from synapse.errors import EngineCrashed, SetupError
from synapse.host import RealHost
from synapse.host.environment import child_environment
from synapse.host.logring import LogRing, escape
from synapse.host.process import open_child
from synapse.ports import WorkerSpec

_PYTHON = [sys.executable, "-c"]


def _child(code: str):  # type: ignore[no-untyped-def]
    return open_child([*_PYTHON, code], {"PATH": os.environ["PATH"]})


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(3)", 3),
        ("pass", 0),
        ("import os; os.abort()", -signal.SIGABRT),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
async def test_the_exit_status(code: str, status: int) -> None:
    async with _child(code) as child:
        statuses: list[int] = []

        async def wait() -> None:
            statuses.append(await child.wait())

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(wait)
        assert statuses == [status] * 3
        assert child.exit_status == status
        child.kill()
        child.terminate()


async def test_leaving_kills_and_reaps() -> None:
    async with _child("import time; print('up', flush=True); time.sleep(3600)") as child:
        assert child.exit_status is None
    assert child.exit_status == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


async def test_a_stopped_child_is_killed_too() -> None:
    async with _child("import os, signal; os.kill(os.getpid(), signal.SIGSTOP)") as child:
        while "T (stopped)" not in Path(f"/proc/{child.pid}/status").read_text():  # noqa: ASYNC240
            await trio.lowlevel.checkpoint()
    assert child.exit_status == -signal.SIGKILL


def _reap_orphans(group: int) -> None:
    """Orphans come to us; wait until those of this group have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


async def test_what_it_leaves_in_its_group_is_ended_with_it() -> None:
    """A child of the child would otherwise live on, with our sockets and pipes."""
    code = "import os, time\nif os.fork(): print('x', flush=True)\nelse: time.sleep(3600)"
    async with _child(code) as child:
        assert await child.wait() == 0
        assert await child.log_tail() == "x\n"
        _reap_orphans(child.pid)
        with pytest.raises(ProcessLookupError):
            os.killpg(child.pid, 0)


async def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "HF_TOKEN", "PYTHONPATH", "LD_PRELOAD", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "x")
    env = child_environment(os.environ, {"MY_SETTING": "1"})
    assert set(env) & {"AWS_SECRET_ACCESS_KEY", "HTTPS_PROXY", "HF_TOKEN", "PYTHONPATH", "LD_PRELOAD"} == set()
    assert env["OMP_NUM_THREADS"] == "x"
    assert env["PATH"] == os.environ["PATH"]
    assert (env["OMP_WAIT_POLICY"], env["GOMP_SPINCOUNT"]) == ("passive", "5000")
    assert (env["GGML_NO_BACKTRACE"], env["MY_SETTING"]) == ("1", "1")
    assert child_environment({"OMP_WAIT_POLICY": "active"}, {"GGML_NO_BACKTRACE": "0"})["GGML_NO_BACKTRACE"] == "0"
    assert child_environment({}, {"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"
    async with open_child([*_PYTHON, "import os; print(sorted(os.environ))"], {"ONLY": "this"}) as child:
        await child.wait()
        assert "'ONLY'" in await child.log_tail()
        assert "PATH" not in await child.log_tail()


async def test_only_the_output_is_inherited() -> None:
    """stdin is empty, no other descriptor passes."""
    os.set_inheritable(extra := os.dup(0), True)
    code = "import os, sys; print(sys.stdin.read() == '', sorted(int(f) for f in os.listdir('/proc/self/fd'))[:4])"
    try:
        async with _child(code) as child:
            await child.wait()
            assert await child.log_tail() == "True [0, 1, 2, 3]\n"  # 3 is the listing itself
    finally:
        os.close(extra)


async def test_programs_that_cannot_be_run(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.touch()
    for program in ("/no/such/program", str(plain), str(tmp_path)):
        with pytest.raises(SetupError, match="cannot run"):
            async with open_child([program], {}):
                raise AssertionError("it does not run")


async def test_without_descriptors_a_spawn_fails_typed_and_leaves_nothing(runtime_dir: Path) -> None:
    """With 0, 1, 2, ... descriptors left: a crash of stage spawn, until there are enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = []
    with RealHost(runtime_dir) as host:
        for spare in range(16):
            used = {int(name) for name in os.listdir("/proc/self/fd")}
            free = [number for number in range(max(used) + 20) if number not in used]
            resource.setrlimit(resource.RLIMIT_NOFILE, (free[spare], hard))
            try:
                async with host.spawn(WorkerSpec("w", [*_PYTHON, "pass"], "0" * 16)) as process:
                    outcomes.append(await process.wait())
            except EngineCrashed as crash:
                outcomes.append(crash.stage)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert outcomes[0] == "spawn"
    assert outcomes[-1] == 0
    assert set(outcomes) == {"spawn", 0}


async def test_a_healthy_child_survives_the_helper_threads_of_trio() -> None:
    """The parent-death signal is tied to the thread that forked: it must be one that stays (M1)."""
    code = (
        "import ctypes, signal, sys\n"
        "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
        "print('armed', flush=True)\n"
        "signal.pause()"
    )
    threads = []

    def here() -> None:
        import threading

        threads.append(threading.get_native_id())

    async with _child(code) as child:
        while "armed" not in await child.log_tail():
            await trio.lowlevel.checkpoint()
        # The kernel names the thread that is the parent: it is the one of the event loop.
        here()
        task = Path(f"/proc/self/task/{threads[0]}/children").read_text()  # noqa: ASYNC240
        assert str(child.pid) in task.split()


def test_the_ring_keeps_the_last_bytes() -> None:
    ring = LogRing(100)
    for index in range(1000):
        ring.write(b"%04d" % index)
    assert ring.total == 4000
    assert len(ring) == 100
    assert ring.tail(8) == "09980999"
    assert len(ring.tail(10_000)) == 100
    ring.write(b"x" * 1000)
    assert ring.tail(1000) == "x" * 100
    assert LogRing(10).tail(5) == ""


def test_control_characters_are_escaped() -> None:
    assert escape("a\tb\nc") == "a\tb\nc"
    assert escape("\x1b[31mred\x07\r\x7f\x9b") == "\\x1b[31mred\\x07\\r\\x7f\\x9b"
    assert escape("\u202eevil\u2066\u200b") == "\\u202eevil\\u2066\\u200b"
    assert escape("déjà 漢字 🙂") == "déjà 漢字 🙂"
    ring = LogRing(100)
    ring.write("é".encode()[1:] + b"\x00ok")
    assert ring.tail(100) == "\ufffd\\x00ok"


# --- programs that are not ours ---------------------------------------------------------------------------------------


async def test_a_managed_program_ends_as_it_ends() -> None:
    async with managed_process([*_PYTHON, "print('hi'); raise SystemExit(7)"]) as process:
        assert await process.wait() == 7
        assert await process.log_tail() == "hi\n"
    async with managed_process([*_PYTHON, "import os; os.abort()"]) as process:
        assert await process.wait() == -signal.SIGABRT


async def test_leaving_asks_a_managed_program_first() -> None:
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('asked', flush=True)))\n"
        "print('up', flush=True)\n"
        "time.sleep(3600)"
    )
    async with managed_process([*_PYTHON, code], grace_s=60) as process:
        while "up" not in await process.log_tail():
            await trio.lowlevel.checkpoint()
    assert process.exit_status == 0
    assert "asked" in await process.log_tail()


async def test_a_managed_program_that_does_not_listen_is_killed() -> None:
    code = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('up', flush=True)\nsignal.pause()"
    async with managed_process([*_PYTHON, code], grace_s=0.05) as process:
        while "up" not in await process.log_tail():
            await trio.lowlevel.checkpoint()
    assert process.exit_status == -signal.SIGKILL


async def test_a_missing_managed_program_is_a_setup_error() -> None:
    with pytest.raises(SetupError, match="no-such-server"):
        async with managed_process(["no-such-server"]):
            raise AssertionError("it does not run")


_TREE = """
import os, signal, sys, time
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True: time.sleep(3600)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getppid(), os.getpid(), child, flush=True)
while True: time.sleep(3600)
"""

_KEEPER = """
import sys, trio
from synapse.host import managed_process
async def main():
    async with managed_process([sys.executable, "-c", sys.argv[1]]) as process:
        while not (line := await process.log_tail()).endswith("\\n"): await trio.lowlevel.checkpoint()
        print(line, end="", flush=True)
        await trio.sleep_forever()
trio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="watched through pidfd")
@pytest.mark.parametrize("victim", ["module", "guard", "program"])
def test_a_managed_programs_tree_dies_with_any_of_its_masters(victim: str) -> None:
    """SIGKILL to the module, to the guard or to the program: guard, program and its child are all gone (D14)."""
    with subprocess.Popen([sys.executable, "-c", _KEEPER, _TREE], stdout=subprocess.PIPE, text=True) as module:
        assert module.stdout is not None
        guard, program, child = (int(pid) for pid in module.stdout.readline().split())
        watched = [os.pidfd_open(pid) for pid in (guard, program, child)]
        os.kill({"module": module.pid, "guard": guard, "program": program}[victim], signal.SIGKILL)
        for descriptor in watched:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            assert poller.poll(60_000), "outlived its masters"
            os.close(descriptor)
        module.kill()


def test_the_suite_sees_a_leak() -> None:
    """The fixture that watches all tests does see what is left behind."""
    from tests import conftest

    before = conftest._children(), conftest._descriptors()
    with subprocess.Popen([*_PYTHON, "input()"], stdin=subprocess.PIPE) as child:
        assert conftest._children() - before[0] == {child.pid}
        assert conftest._new(before[1])
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 100
