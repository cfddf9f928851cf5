"""The runtime directory is ours alone, or nothing starts (W3, B5)."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from synapse.errors import SetupError
from synapse.host import RealHost
from synapse.host.rundir import SOCKET_PATH_LIMIT, RuntimeDirectory, fresh_directory


def test_it_is_made_private(runtime_dir: Path) -> None:
    before = os.umask(0)
    try:
        with RealHost(runtime_dir / "new"):
            for path in (runtime_dir / "new", runtime_dir / "new/synapse", runtime_dir / "new/synapse/workers"):
                assert stat.S_IMODE(path.stat().st_mode) == 0o700
    finally:
        os.umask(before)


@pytest.mark.parametrize("level", ["", "synapse", "synapse/workers"])
@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_wider_mode_is_refused(runtime_dir: Path, level: str, mode: int) -> None:
    RuntimeDirectory(runtime_dir / "run").close()
    (runtime_dir / "run" / level).chmod(mode)
    with pytest.raises(SetupError, match=f"{mode:04o}.*chmod 700"):
        RealHost(runtime_dir / "run")


@pytest.mark.parametrize("level", ["run", "run/synapse", "run/synapse/workers"])
def test_a_symbolic_link_is_refused(runtime_dir: Path, level: str) -> None:
    elsewhere = runtime_dir / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    link = runtime_dir / level
    link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for parent in (runtime_dir / "run", runtime_dir / "run/synapse"):
        if parent.exists():
            parent.chmod(0o700)
    link.symlink_to(elsewhere)
    with pytest.raises(SetupError, match="symbolic link"):
        RealHost(runtime_dir / "run")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_owner_is_refused(runtime_dir: Path) -> None:
    (runtime_dir / "run").mkdir(mode=0o700)
    os.chown(runtime_dir / "run", 12345, -1)
    with pytest.raises(SetupError, match="belongs to user 12345"):
        RealHost(runtime_dir / "run")


def test_a_file_in_its_place_is_refused(runtime_dir: Path) -> None:
    (runtime_dir / "run").write_text("")
    with pytest.raises(SetupError, match="not a directory"):
        RealHost(runtime_dir / "run")


def test_a_directory_that_cannot_be_made(runtime_dir: Path) -> None:
    (runtime_dir / "file").write_text("")
    with pytest.raises(SetupError, match="file/run"):
        RealHost(runtime_dir / "file" / "run")


def test_a_path_too_long_for_sockets_is_refused_at_once(runtime_dir: Path) -> None:
    room = SOCKET_PATH_LIMIT - len(os.fsencode(runtime_dir)) - len("//synapse/workers/" + "x" * 24 + ".sock")
    with RealHost(runtime_dir / ("d" * room)):
        pass
    with pytest.raises(SetupError, match=f"{SOCKET_PATH_LIMIT + 1} bytes, the system allows {SOCKET_PATH_LIMIT}"):
        RealHost(runtime_dir / ("d" * (room + 1)))
    assert not (runtime_dir / ("d" * (room + 1))).exists()


def test_a_second_instance_is_refused(runtime_dir: Path) -> None:
    with RealHost(runtime_dir) as host:
        with pytest.raises(SetupError, match="another instance"):
            RealHost(runtime_dir)
        host.close()
        host.close()
        with RealHost(runtime_dir):
            pass


def test_the_lock_ends_with_its_holder(runtime_dir: Path) -> None:
    """A module killed by SIGKILL does not keep the next one out, and its sockets are swept away."""
    code = (
        "import sys, socket; from synapse.host import RealHost; h = RealHost(sys.argv[1]);"
        "s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1] + '/synapse/workers/old.sock');"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(runtime_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(SetupError, match="another instance"):
            RealHost(runtime_dir)
        assert (runtime_dir / "synapse/workers/old.sock").exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RealHost(runtime_dir):
        assert not (runtime_dir / "synapse/workers/old.sock").exists()


def test_a_lock_that_is_a_link_is_refused(runtime_dir: Path) -> None:
    victim = runtime_dir / "victim"
    victim.write_text("precious")
    (runtime_dir / "synapse").mkdir(mode=0o700)
    (runtime_dir / "synapse/lock").symlink_to(victim)
    with pytest.raises(SetupError):
        RealHost(runtime_dir)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("worker_id", ["", "a/b", "..", "a" * 25, "ä", "a\0", "a b"])
def test_a_worker_id_is_a_plain_short_name(runtime_dir: Path, worker_id: str) -> None:
    directory = RuntimeDirectory(runtime_dir)
    with pytest.raises(SetupError):
        directory.socket_path(worker_id)
    assert directory.socket_path("llama-1").name == "llama-1.sock"
    directory.close()


async def test_the_socket_is_private_from_the_start(runtime_dir: Path) -> None:
    from synapse.host.endpoint import UnixEndpoint

    before = os.umask(0)
    try:
        endpoint = UnixEndpoint(runtime_dir / "s.sock")
    finally:
        os.umask(before)
    mode = os.stat(endpoint.address).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    endpoint.close()
    endpoint.close()
    with pytest.raises(FileNotFoundError):
        os.stat(endpoint.address)


def test_what_killed_runs_left_is_swept_and_nothing_else() -> None:
    """A directory with a free lock goes; one in use, one without a lock and one of another name stay."""
    made = [fresh_directory() for _ in range(3)]
    stale, used, unlocked = (Path(directory.name) for directory in made)
    RuntimeDirectory(stale).close()
    holder = RuntimeDirectory(used)
    for directory in (stale, used):
        os.utime(directory / "synapse/lock", (0, 0))
    try:
        with fresh_directory():
            assert (stale.exists(), used.exists(), unlocked.exists()) == (False, True, True)
    finally:
        holder.close()
        for directory in made[1:]:
            directory.cleanup()
        stale.mkdir()  # so that its own cleanup finds it
        made[0].cleanup()
