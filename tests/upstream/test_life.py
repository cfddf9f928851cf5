"""The life of a llama-server of our own under `pumas serve`: quarantine and the way out of it, crashes, no orphans."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests import models
from tests.gateway import BOUND_S, PATIENT, Gateway, program, running

CONFIG = """
[server]
port = 0

[limits]
{patient}
backoff_first_s = 0.01
backoff_max_s = 0.01

[[model]]
path = "tiny.gguf"
name = "local"

[[upstream]]
name = "m"
kind = "llama-server"
path = "tiny.gguf"
program = "bin/llama-server"
context = 2048
threads = 1
"""
OPERATION: dict[str, Any] = {
    "model": "m",
    "capability": "text_generation",
    "input": {"kind": "text", "text": "go on"},
    "output": "text",
    "options": {"kind": "text_generation", "max_tokens": 2},
}


def prepare(directory: Path) -> Path:
    """A configuration whose llama-server runs only while there is a file `works` beside it; it counts its starts."""
    models.tiny_llama(directory / "tiny.gguf", context=2048)
    folder = directory / "bin"
    folder.mkdir()
    script = folder / "llama-server"
    here, python = shlex.quote(str(folder)), shlex.quote(sys.executable)
    script.write_text(
        f"#!/bin/sh\necho start >> {here}/starts\n[ -e {here}/works ] || exit 3\n"
        f'exec {python} -P -m worker_bin.llama_server "$@"\n'
    )
    script.chmod(0o755)
    config = directory / "pumas.toml"
    config.write_text(CONFIG.format(patient=PATIENT))
    return config


def starts(directory: Path) -> int:
    return (directory / "bin" / "starts").read_text().count("start")


def described(gateway: Gateway) -> Any:
    return next(m for m in gateway.get("/v1/served-models").json()["models"] if m["model"] == "m")


def test_quarantine_outlives_a_restart_and_a_probe_ends_it(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    with running(tmp_path, "--config", str(config)) as gateway:
        found = described(gateway)
        assert found["load_state"] == "quarantined"
        assert "status 3" in found["detail"]["error"]
        assert {c["availability"]["reason"] for c in found["capabilities"]} == {"quarantined"}
        assert starts(tmp_path) == 3
        log = gateway.log()
        assert log.count("server_crashed server=m stage=load exit_status=3") == 3
        assert log.count(" quarantined server=m crashes=3") == 1
        refused = gateway.operation(**OPERATION)
        error = refused.json()["error"]
        assert (refused.status, error["code"], error["outcome"]) == (503, "capability_unavailable", "not_admitted")
        assert "quarantined" in error["message"]
        assert "retry-after" not in refused.headers, "waiting does not help"
        local = gateway.operation(**OPERATION | {"model": "local"})
        assert local.status == 200, "the others are served (D7)"
    with running(tmp_path, "--config", str(config)) as gateway:
        assert described(gateway)["load_state"] == "quarantined"
        assert starts(tmp_path) == 3, "nothing was started"
        (tmp_path / "bin" / "works").touch()
        probed = subprocess.run(program("probe", "m", "--url", gateway.url), capture_output=True, timeout=BOUND_S)
        assert probed.returncode == 0, probed.stderr
        assert starts(tmp_path) == 4
        until_served(gateway)
        crash_and_recover(gateway, tmp_path)
    assert list((tmp_path / "state" / "synapse" / "quarantine").glob("*.json")) == []


def crash_and_recover(gateway: Gateway, directory: Path) -> None:
    """Killed while idle: noticed at once, started again, served again."""
    before = starts(directory)
    os.killpg(int(gateway.detail("m")["pid"]), signal.SIGKILL)
    deadline = time.monotonic() + BOUND_S
    while starts(directory) == before:
        assert time.monotonic() < deadline
    until_served(gateway)


def until_served(gateway: Gateway) -> None:
    """Ask until it is served; meanwhile every refusal says that nothing was done, and when to come again."""
    deadline = time.monotonic() + BOUND_S
    while (reply := gateway.operation(**OPERATION)).status != 200:
        error = reply.json()["error"]
        if error["outcome"] != "unknown":  # a request that met the crash itself is the one that may be
            assert (error["code"], reply.status) == ("capability_unavailable", 503)
            assert "retry-after" in reply.headers, error
        assert time.monotonic() < deadline, error


def test_no_llama_server_outlives_a_killed_gateway(tmp_path: Path) -> None:
    config = prepare(tmp_path)
    (tmp_path / "bin" / "works").touch()
    with running(tmp_path, "--config", str(config)) as gateway:
        guard = int(gateway.detail("m")["pid"])
        (server,) = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()
        assert b"llama_server" in Path(f"/proc/{server}/cmdline").read_bytes()
        watched = [os.pidfd_open(int(pid)) for pid in (server, str(guard))]
        gateway.process.kill()
        gateway.process.wait()
        for descriptor in watched:
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            assert poller.poll(BOUND_S * 1000), "it lives on"
            os.close(descriptor)
