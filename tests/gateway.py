"""A gateway as people run it: the `pumas serve` command in a process of its own, on a free port, with real engines.

One serves all tests of a run that only ask (`gateway`); a test that needs another one starts it with `running`.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests import models

BOUND_S = 120.0
"""Only a hang waits so long."""
HERMES = (
    "{% if tools %}{{ '<|im_start|>system\nTools: ' }}{{ tools | tojson }}{{ '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['content'] %}{{ message['content'] }}{% endif %}"
    "{% for call in message['tool_calls'] or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{ call.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""A chat template that teaches Hermes tool calls."""


@dataclass
class Reply:
    """An HTTP answer, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True
    """False: the connection was cut before the answer's end."""

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


@dataclass
class Gateway:
    """A running `pumas serve`."""

    process: subprocess.Popen[bytes]
    url: str
    port: int
    lines: list[str]
    """What it printed until it was ready."""
    log_path: Path
    headers: dict[str, str] = field(default_factory=dict)

    def log(self) -> str:
        return self.log_path.read_text()

    def until_logged(self, words: str) -> None:
        """Wait for the words to stand in the log; it is written beside the work."""
        deadline = time.monotonic() + BOUND_S
        while words not in self.log():
            assert time.monotonic() < deadline, f"{words!r} was not logged"
            self.get("/health")

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        """One request on a connection of its own. `body`: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND_S)
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        sent = self.headers | ({} if data is None else {"Content-Type": "application/json"}) | (headers or {})
        try:
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            complete = True
            try:
                received = response.read()
            except http.client.IncompleteRead as error:
                received, complete = error.partial, False
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, received, complete)
        finally:
            connection.close()

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, body: Any) -> Reply:
        return self.ask("POST", path, body)

    def operation(self, **fields: Any) -> Reply:
        """POST /v1/model-operations with version and request ID filled in."""
        return self.post("/v1/model-operations", {"contract_version": 1, "request_id": "t:1"} | fields)

    def detail(self, model: str) -> dict[str, str]:
        """What /health shows of a model's lane."""
        lanes = self.get("/health").json()["lanes"]
        found: dict[str, str] = next(lane["detail"] for lane in lanes if lane["model"] == model)
        return found

    def until_idle(self, model: str) -> dict[str, str]:
        """The lane's counts once nothing runs or waits in it."""
        deadline = time.monotonic() + BOUND_S
        while (detail := self.detail(model))["running"] != "0" or detail["queued"] != "0":
            assert time.monotonic() < deadline, f"{model} did not come to rest: {detail}"
        return detail


def program(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pumas", *arguments]


@contextlib.contextmanager
def running(directory: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Gateway]:
    """`pumas serve ARGUMENTS` until the block ends; what it keeps lies below `directory`."""
    places = {"XDG_STATE_HOME": str(directory / "state"), "XDG_CACHE_HOME": str(directory / "cache")}
    log_path = directory / "log"
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            program("serve", *arguments), stdout=subprocess.PIPE, stderr=log, env=os.environ | places | (env or {})
        )
    try:
        lines = _lines_until(process, "ready on http", log_path)
        url = next(line for line in lines if line.startswith("ready on http")).removeprefix("ready on ")
        found = re.search(r":(\d+)$", url)
        assert found
        yield Gateway(process, url, int(found[1]), lines, log_path)
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> int:
    """End it as Ctrl-C does. Returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        return process.wait(BOUND_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise
    finally:
        if process.stdout is not None:
            process.stdout.close()


def _lines_until(process: subprocess.Popen[bytes], word: str, log_path: Path) -> list[str]:
    """Its output, line by line, until one begins with `word`."""
    assert process.stdout is not None
    deadline = time.monotonic() + BOUND_S
    text = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not any(line.startswith(word) for line in text.decode().split("\n")[:-1]):
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            piece = os.read(process.stdout.fileno(), 65536) if ready else b""
            if not piece:
                raise AssertionError(f"no line {word!r} in {text.decode()!r}; its log: {log_path.read_text()[-4000:]}")
            text += piece
    return text.decode().rstrip("\n").split("\n")


PATIENT = """
boot_s = 60
unit_min_s = 60
text_s = 60
max_queue_s = 60
"""
"""`[limits]` that a busy machine does not reach."""
CONFIG = """
[server]
port = 0

[limits]
{patient}

[[model]]
path = "{smol}"
name = "smol"

[[model]]
path = "{minilm}"
name = "minilm"

[[model]]
path = "ranker.gguf"

[[model]]
path = "headless.gguf"

[[model]]
path = "tools.gguf"
pooling = "mean"

[[model]]
path = "tiny.gguf"
name = "twice"
profile = "one"
parallel = 1

[[model]]
path = "tiny.gguf"
name = "twice"
profile = "two"
context = 64
injection = "engine"
"""


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """SmolLM2 as `smol`, MiniLM as `minilm`; tiny random models: `ranker`, `headless` (a reranker without a head: it
    fails), `tools` (Hermes template; it embeds as well), and `twice` under the profiles `one` and `two` (window
    64, special-token text parsed)."""
    directory = tmp_path_factory.mktemp("gateway")
    models.tiny_reranker(directory / "ranker.gguf")
    models.tiny_reranker(directory / "headless.gguf", head="none")
    models.tiny_llama(directory / "tools.gguf", chat_template=HERMES)
    models.tiny_llama(directory / "tiny.gguf", seed=7)
    config = directory / "pumas.toml"
    config.write_text(CONFIG.format(patient=PATIENT, smol=models.smollm2(), minilm=models.minilm_f16_gguf()))
    with running(directory, "--config", str(config)) as running_gateway:
        yield running_gateway
