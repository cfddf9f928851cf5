"""A worker that dies under a stream: what the client sees, what the next one gets, quarantine and the way out of it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.app.test_streams import open_stream, read_until
from tests.gateway import BOUND_S, PATIENT, Gateway, program, running, stop

ENDLESS = "root ::= [a-z] root"
OPTIONS = {"kind": "text_generation", "max_tokens": 4000, "grammar": ENDLESS}
TYPED: dict[str, Any] = {
    "contract_version": 1,
    "request_id": "crash:1",
    "model": "m",
    "capability": "text_generation",
    "input": {"kind": "text", "text": "go on"},
    "output": "text",
    "options": OPTIONS,
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway whose workers may be killed: `m` is a large enough random model, three crashes are too many."""
    directory: Path = tmp_path_factory.mktemp("crashes")
    models.tiny_llama(directory / "m.gguf", context=8192, layers=4, width=512, heads=8)
    (directory / "pumas.toml").write_text(
        f"""
        [server]
        port = 0
        [limits]
        {PATIENT}
        crashes_per_key = 3
        backoff_first_s = 0.01
        backoff_max_s = 0.01
        [[model]]
        path = "m.gguf"
        """
    )
    with running(directory, "--config", str(directory / "pumas.toml")) as gateway:
        yield gateway


def kill_worker(gateway: Gateway) -> None:
    pid = int(gateway.detail("m")["pids"].partition(":")[0])
    os.kill(pid, signal.SIGKILL)


def read_to_end(client: Any, data: bytes) -> bytes:
    """All that comes until the connection ends, cleanly or not."""
    while True:
        try:
            piece = client.recv(65536)
        except ConnectionResetError:
            return data
        if not piece:
            return data
        data += piece


def test_what_clients_see_of_a_crash(own: Gateway) -> None:
    """In this order, since crashes add up: a typed stream fails, an OpenAI stream is cut, and the third crash parks
    the model until it is probed."""
    with open_stream(own, "/v1/model-operations", TYPED | {"stream": True}) as client:
        data = read_until(client, b"event: delta")
        kill_worker(own)
        data += read_until(client, b"\r\n0\r\n\r\n")
    last = data.rpartition(b"event: ")[2]
    assert last.startswith(b"failed")
    assert b'"code":"provider_failure","outcome":"unknown"' in last
    assert b"completed" not in data

    body = {"model": "m", "prompt": "go on", "max_tokens": 4000, "grammar": ENDLESS, "stream": True}
    with open_stream(own, "/v1/completions", body) as client:
        data = read_until(client, b"data: ")
        kill_worker(own)
        data = read_to_end(client, data)
    assert b"[DONE]" not in data
    assert not data.endswith(b"0\r\n\r\n"), "a fault after the headers is a transport error"

    short = TYPED | {"options": {"kind": "text_generation", "max_tokens": 2}}
    assert own.post("/v1/model-operations", short).status == 200, "the lane restarts and serves the next request"

    with open_stream(own, "/v1/model-operations", TYPED | {"stream": True}) as client:
        read_until(client, b"event: delta")
        kill_worker(own)
        read_until(client, b"event: failed")
    refused = own.post("/v1/model-operations", short)
    assert refused.status == 503
    error = refused.json()["error"]
    assert (error["code"], error["outcome"]) == ("capability_unavailable", "not_admitted")
    assert "quarantined" in error["message"]
    health = own.get("/health")
    assert (health.status, health.json()["status"]) == (503, "unavailable")
    (model,) = own.get("/v1/served-models").json()["models"]
    assert model["load_state"] == "quarantined"

    probed = own.post("/admin/probe", {"model": "m"})
    assert (probed.status, probed.json()["load_state"]) == (200, "loaded")
    assert own.post("/v1/model-operations", short).status == 200
    own.until_logged("probe file=m.gguf state=quarantined")
    lines = [line.split()[1] for line in own.log().splitlines()]
    assert (lines.count("worker_crashed"), lines.count("worker_restarts"), lines.count("quarantined")) == (3, 2, 1)
    assert "operation_failed" not in lines, "the crash was told already"
    assert "stage=request" in own.log()


def test_a_dead_worker_is_never_shown_as_connected(tmp_path: Path) -> None:
    """It died idle, and its restart is an hour away: requests wait for it, and everybody is told."""
    models.tiny_llama(tmp_path / "m.gguf")
    hour = "backoff_first_s = 3600\nbackoff_max_s = 3600"
    config = tmp_path / "pumas.toml"
    config.write_text(f"[server]\nport = 0\n[limits]\n{PATIENT}\n{hour}\n[[model]]\npath = 'm.gguf'\n")
    with running(tmp_path, "--config", str(config)) as own:
        assert own.detail("m")["workers"] == "1"
        kill_worker(own)
        own.until_logged("worker_restarts")
        health = own.get("/health")
        assert (health.status, health.json()["status"]) == (200, "degraded")
        (lane,) = health.json()["lanes"]
        assert (lane["state"], lane["detail"]["workers"], lane["detail"]["rss_mb"]) == ("restarting", "0", "0")
        (model,) = own.get("/v1/served-models").json()["models"]
        assert model["load_state"] == "loading"
        assert "restarting" in model["detail"]
        assert model["capabilities"][1]["availability"] == {"state": "available"}
        assert "worker_crashed" in own.log()


def test_quarantine_outlives_the_gateway_until_a_probe(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "m.gguf", context=8192, layers=4, width=512, heads=8)
    config = tmp_path / "pumas.toml"
    config.write_text(f"[server]\nport = 0\n[limits]\n{PATIENT}\ncrashes_per_key = 1\n[[model]]\npath = 'm.gguf'\n")
    with running(tmp_path, "--config", str(config)) as first:
        with open_stream(first, "/v1/model-operations", TYPED | {"stream": True}) as client:
            read_until(client, b"event: delta")
            kill_worker(first)
            read_until(client, b"event: failed")
        assert stop(first.process) == 0
    with running(tmp_path, "--config", str(config)) as second:
        (line,) = [line for line in second.lines if line.startswith("  m ")]
        assert "quarantined" in line
        assert second.get("/health").status == 503
        command = line.partition("pumas probe ")[2].split()
        done = subprocess.run(program("probe", *command), capture_output=True, timeout=BOUND_S)
        assert done.stdout.decode().strip() == "m (default) is loaded"
        assert second.get("/health").status == 200


def test_whoever_stops_it_is_told_what_it_waits_for(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "m.gguf", context=8192, layers=4, width=512, heads=8)
    config = tmp_path / "pumas.toml"
    config.write_text(f"[server]\nport = 0\n[limits]\n{PATIENT}\ngrace_s = 120\n[[model]]\npath = 'm.gguf'\n")
    with running(tmp_path, "--config", str(config)) as own:
        assert own.process.stdout is not None
        with open_stream(own, "/v1/model-operations", TYPED | {"stream": True}) as client:
            read_until(client, b"event: delta")
            own.process.send_signal(signal.SIGINT)
            line = own.process.stdout.readline().decode()
        assert line == "stopping, waiting up to 120 s for 1 request; once more to stop at once\n"
        assert own.process.wait(BOUND_S) == 0
