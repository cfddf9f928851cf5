"""What a worker can still do, tried from inside one (harden.py, B5)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest

from worker_bin.harden import EXIT_NO_SANDBOX, EXIT_PARENT_GONE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is tried here exists on Linux only")

_PROBE = textwrap.dedent(
    """
    from worker_bin import harden
    import ctypes, msgspec, os, resource, signal, socket, sys
    results = {}
    def attempt(name, what):
        try:
            what()
            results[name] = "yes"
        except OSError as error:
            results[name] = error.__class__.__name__
    readable, secret, writable, port, parent = sys.argv[1:6]
    attempt("read", lambda: open(readable).close())
    attempt("secret", lambda: open(secret).close())
    attempt("list", lambda: os.listdir(os.path.dirname(secret)))
    attempt("null", lambda: open("/dev/null", "w").close())
    attempt("write", lambda: open(writable + "/new", "w").write("x"))
    attempt("write_elsewhere", lambda: open(os.path.dirname(readable) + "/new", "w").close())
    attempt("remove", lambda: os.unlink(readable))
    attempt("connect", lambda: socket.create_connection(("127.0.0.1", int(port))).close())
    attempt("bind", lambda: socket.socket().bind(("127.0.0.1", 0)))
    attempt("environment", lambda: open(f"/proc/{parent}/environ").read())
    attempt("signal", lambda: os.kill(int(parent), 0))
    pair = socket.socketpair()
    attempt("unix", lambda: pair[0].sendall(b"x"))
    attempt("import", lambda: __import__("sqlite3"))
    attempt("exec", lambda: os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0))
    death = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
    results["death_signal"] = str(death.value)
    results["core"] = str(resource.getrlimit(resource.RLIMIT_CORE))
    results["oom"] = open("/proc/self/oom_score_adj").read().strip()
    results["privs"] = [l for l in open("/proc/self/status") if l.startswith("NoNewPrivs")][0].split()[1]
    results["fsize"] = str(resource.getrlimit(resource.RLIMIT_FSIZE)[0])
    print(msgspec.json.encode([results, harden.report]).decode())
    """
)


def _probe(tmp_path: Path, **env: str) -> tuple[dict[str, str], dict[str, str]]:
    models, secrets, cache = (tmp_path / name for name in ("models", "secrets", "cache"))
    for directory in (models, secrets, cache):
        directory.mkdir()
    (models / "m.gguf").touch()
    (secrets / "key").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv = [sys.executable, "-c", _PROBE, str(models / "m.gguf"), str(secrets / "key"), str(cache)]
        argv += [str(server.getsockname()[1]), str(os.getpid())]
        armed = {"SYNAPSE_WORKER_ID": "w", "SYNAPSE_PARENT_PID": str(os.getpid()), "PATH": os.environ["PATH"]}
        done = subprocess.run(argv, env=armed | env, capture_output=True, text=True, check=True)
    results, report = msgspec.json.decode(done.stdout, type=tuple[dict[str, str], dict[str, str]])
    return results, report


def test_a_worker_reads_its_model_and_nothing_else(tmp_path: Path) -> None:
    results, report = _probe(tmp_path, SYNAPSE_READ_DIRS=str(tmp_path / "models"))
    assert results["death_signal"] == "9"
    assert results["core"] == "(0, 0)"
    assert (results["oom"], results["privs"], results["fsize"]) == ("500", "1", "0")
    assert report["parent_death_signal"] == report["no_new_privs"] == report["rlimits"] == report["oom_score"] == "on"
    if report["landlock"] != "on":
        pytest.skip(f"landlock: {report['landlock']}")
    tried = {name: results[name] for name in ("read", "null", "unix", "import")}
    assert set(tried.values()) == {"yes"}, tried
    tried = {
        name: results[name]
        for name in ("secret", "list", "write", "write_elsewhere", "remove", "connect", "bind", "environment", "exec")
    }
    assert set(tried.values()) == {"PermissionError"}, tried
    assert results["signal"] == "PermissionError"


def test_a_text_process_writes_to_its_cache_only(tmp_path: Path) -> None:
    results, report = _probe(
        tmp_path,
        SYNAPSE_READ_DIRS=str(tmp_path / "models"),
        SYNAPSE_WRITE_DIRS=str(tmp_path / "cache"),
    )
    assert results["fsize"] == "-1"
    if report["landlock"] == "on":
        assert (results["write"], results["write_elsewhere"]) == ("yes", "PermissionError")
        assert results["remove"] == "PermissionError"


def test_without_a_list_everything_is_read_and_nothing_written(tmp_path: Path) -> None:
    results, report = _probe(tmp_path)
    assert results["secret"] == "yes"
    assert results["write"] in ("PermissionError", "OSError")
    if report["landlock"] == "on":
        assert results["environment"] == "PermissionError"
    assert report.keys() == {"parent_death_signal", "rlimits", "oom_score", "no_new_privs", "landlock"}


def test_a_worker_whose_parent_is_gone_does_not_begin() -> None:
    """The parent may die between fork and the arming of the signal."""
    env = {"SYNAPSE_WORKER_ID": "w", "SYNAPSE_PARENT_PID": "1", "PATH": os.environ["PATH"]}
    done = subprocess.run([sys.executable, "-c", "import worker_bin.harden; print('on')"], env=env, capture_output=True)
    assert (done.returncode, done.stdout) == (EXIT_PARENT_GONE, b"")


def test_a_required_sandbox_that_is_missing_ends_the_worker() -> None:
    """What is missing is named. On a kernel that has everything the worker begins."""
    env = {"SYNAPSE_WORKER_ID": "w", "SYNAPSE_PARENT_PID": str(os.getpid()), "PATH": os.environ["PATH"]}
    code = "import worker_bin.harden as h; print(sorted(set(h.report.values())))"
    free = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    required = subprocess.run(
        [sys.executable, "-c", code], env=env | {"SYNAPSE_REQUIRE_SANDBOX": "1"}, capture_output=True, text=True
    )
    if free.stdout == "['on']\n":
        assert required.stdout == free.stdout
    else:
        assert required.returncode == EXIT_NO_SANDBOX
        assert "the sandbox is required, but " in required.stderr


def test_importing_it_elsewhere_arms_nothing() -> None:
    code = "import worker_bin.harden as h, resource; print(h.report, resource.getrlimit(resource.RLIMIT_CORE)[1])"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True
    )
    import resource

    assert done.stdout == f"{{}} {resource.getrlimit(resource.RLIMIT_CORE)[1]}\n"
