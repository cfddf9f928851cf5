"""Who may ask the real gateway, and what its answers and its log let out (P22, P23)."""

from __future__ import annotations

import itertools
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from pumas.app import Routes
from tests import models
from tests.contract.test_redact import PLANTED
from tests.gateway import BOUND_S, PATIENT, Gateway, running
from tests.security.test_workers import PROGRAM

KEY = "a-long-enough-k3y"
CONFIG = """
[server]
port = 0
allowed_origins = ["https://app.example"]
allowed_hosts = ["gateway.example"]

[limits]
{patient}

[[model]]
path = "m.gguf"
parallel = 1
context = 64

[[model]]
path = "m.gguf"
name = "liar"
argv = {argv}
env = {{ PROBE_REFUSES = {message} }}
"""
MESSAGE = "\x1b[2J\u202e\nforged line status=200 " + " ; ".join(message for message, _ in PLANTED.values())


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a key, one model that serves, and one whose worker's words are hostile."""
    directory = tmp_path_factory.mktemp("guarded")
    models.tiny_llama(directory / "m.gguf")
    config = CONFIG.format(
        patient=PATIENT,
        argv=msgspec.json.encode(PROGRAM).decode(),
        message=msgspec.json.encode(MESSAGE[:4000]).decode(),
    )
    (directory / "pumas.toml").write_text(config)
    with running(directory, "--config", str(directory / "pumas.toml"), env={"PUMAS_API_KEY": KEY}) as gateway:
        yield gateway


HOSTS = {"127.0.0.1": True, "localhost:{port}": True, "gateway.example": True, "evil.example": False, "": False}
ORIGINS = {None: True, "http://{host}": True, "https://app.example": True, "https://evil.example": False, "null": False}
KEYS = {f"Bearer {KEY}": True, None: False, "Bearer wrong": False, f"Basic {KEY}": False, f"Bearer {KEY}x": False}
TYPES = {
    "application/json": True,
    "Application/JSON; charset=utf-8": True,
    "text/plain": False,
    "application/x-www-form-urlencoded": False,
    None: False,
}


def test_host_origin_key_and_type(guarded: Gateway) -> None:
    """Every cell of the matrix, over one connection each: the first rule that is broken answers."""
    body = msgspec.json.encode({"model": "nobody", "input": "x"})
    for host, origin, key, kind in itertools.product(HOSTS, ORIGINS, KEYS, TYPES):
        named = host.format(port=guarded.port)
        headers = {"Host": named, "Content-Length": str(len(body))}
        if origin is not None:
            headers["Origin"] = origin.format(host=named)
        if key is not None:
            headers["Authorization"] = key
        if kind is not None:
            headers["Content-Type"] = kind
        wanted = 404  # the model's name: the request was let in
        for allowed, status in ((TYPES[kind], 400), (KEYS[key], 401), (ORIGINS[origin], 403), (HOSTS[host], 403)):
            wanted = wanted if allowed else status
        assert _status(guarded, "POST", "/v1/embeddings", headers, body) == wanted, headers


def test_every_route_but_the_bare_health_needs_the_key(guarded: Gateway) -> None:
    table = {(method, route.path) for route in Routes(None)._router.routes for method in route.methods}  # type: ignore[attr-defined,arg-type]
    assert len(table) > 10
    for method, path in sorted(table) + [
        ("GET", "/nowhere"),
        ("PUT", "/v1/models"),
        ("GET", "/health/"),
        ("GET", "//health"),
    ]:
        headers = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": "2"}
        status = _status(guarded, method, path, headers, b"{}")
        assert status == (200 if path == "/health" else 401), (method, path, status)
    assert guarded.get("/health").status == 200


def test_the_bare_health_tells_nothing_but_its_word(guarded: Gateway) -> None:
    """A caller from this machine sees lanes; what anybody sees is one word (tests/http/test_guard.py)."""
    body = guarded.get("/health").json()
    assert body["status"] in ("ok", "degraded")
    assert set(body) <= {"status", "lanes"}


def test_what_a_worker_says_leaves_without_credentials_or_control_characters(guarded: Gateway) -> None:
    """In every answer that shows it, on the terminal, and in the log."""
    authorized = {"Authorization": f"Bearer {KEY}"}
    operation = {"contract_version": 1, "request_id": "t:1", "model": "liar", "output": "text"}
    operation["input"] = {"kind": "text", "text": "x"}  # type: ignore[assignment]
    chat = {"model": "liar", "messages": [{"role": "user", "content": "x"}]}
    shown = [
        guarded.ask("GET", "/health", headers=authorized).body,
        guarded.ask("GET", "/v1/served-models", headers=authorized).body,
        guarded.ask("GET", "/v1/models/liar", headers=authorized).body,
        guarded.ask("POST", "/v1/model-operations", operation, headers=authorized).body,
        guarded.ask("POST", "/v1/chat/completions", chat, headers=authorized).body,
        guarded.ask("POST", "/admin/probe", {"model": "liar"}, headers=authorized).body,
        "\n".join(guarded.lines).encode(),
        guarded.log().encode(),
    ]
    assert sum(b"forged line" in text for text in shown) >= 3, "the message is seen at all"
    for text in shown:
        for message, secret in PLANTED.values():
            if message in MESSAGE[:4000]:
                assert secret.encode() not in text.replace(KEY.encode(), b"")
        assert b"\x1b" not in text
        assert "\u202e".encode() not in text
        assert b"\nforged" not in text
    assert KEY not in guarded.log() + "".join(guarded.lines)


def test_clients_forge_no_line_of_the_log(guarded: Gateway) -> None:
    key = "sk-proj-aB3dE5fG7hJ9kL1mN2pQ4rS6tU8vW0xY"
    paths = [
        "/forge%0aforged%20status=200",
        "/forge%1b[2J",
        "/forge%e2%80%ae",
        f"/forge/{key}",
        f"/forge?api_key={key}",
    ]
    statuses = [guarded.ask("GET", path, headers={"Authorization": f"Bearer {KEY}"}).status for path in paths]
    assert statuses == [400, 400, 404, 404, 404]
    deadline = time.monotonic() + BOUND_S
    while len(lines := [line for line in guarded.log().split("\n")[:-1] if re.search('path="?/forge', line)]) < 3:
        assert time.monotonic() < deadline, "a thread writes the log; it did not come"
    assert len(lines) == 3, "what is refused as HTTP reaches no log"
    assert "\nforged" not in guarded.log()
    assert all(line[0].isdigit() and line.isprintable() for line in lines), lines
    assert "aB3dE5fG7hJ9" not in "".join(lines)


def _status(gateway: Gateway, method: str, path: str, headers: dict[str, str], body: bytes) -> int:
    """One request as bytes: nothing is added to its headers, nothing corrected."""
    head = "".join([f"{method} {path} HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in headers.items()), "\r\n"])
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=BOUND_S) as connection:
        connection.sendall(head.encode("latin-1") + body)
        with connection.makefile("rb") as answer:
            return int(answer.readline().split()[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the mode of a link is what Linux says")
def test_files_of_the_gateway_are_private(tmp_path: Path) -> None:
    """Its socket and what it keeps: nobody else may enter."""
    path = models.tiny_llama(tmp_path / "m.gguf")
    at = tmp_path / "run" / "s"
    with running(tmp_path, str(path), "--port", "0", "--unix-socket", str(at)):
        assert at.stat().st_mode & 0o777 == 0o600
        assert at.parent.stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "cache" / "synapse").stat().st_mode & 0o077 == 0
