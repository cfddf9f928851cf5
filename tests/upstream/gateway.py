"""A gateway whose models all live behind other servers, once for all tests of this folder that only ask."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.gateway import PATIENT, Gateway, _lines_until, running
from tests.upstream.fake import Fake, fake_in_thread
from tests.upstream.models import tiny_decision, tiny_projector

CONFIG = """
[server]
port = 0

[limits]
{patient}
ping_s = 60
ping_every_s = 2

[[model]]
path = "tiny.gguf"
name = "local"

[[upstream]]
name = "eyes"
kind = "llama-server"
path = "tiny.gguf"
mmproj = "projector.gguf"
context = 2048
threads = 1

[[upstream]]
name = "vectors"
kind = "llama-server"
path = "vectors.gguf"
mmproj = "projector.gguf"
threads = 1

[[upstream]]
name = "judge"
kind = "llama-server"
path = "judge.gguf"
threads = 1

[[upstream]]
name = "headless"
kind = "llama-server"
path = "headless.gguf"

[[upstream]]
name = "elsewhere"
kind = "llama-server"
url = "unix:{socket}"
profile = "one"

[[upstream]]
name = "elsewhere"
kind = "llama-server"
url = "{tcp}"
profile = "two"

[[upstream]]
name = "smol-there"
kind = "openai"
url = "{pumas}"
model = "smol"

[[upstream]]
name = "minilm-there"
kind = "openai"
url = "{pumas}"
model = "minilm"
capabilities = ["text_embedding"]

[[upstream]]
name = "ranker-there"
kind = "openai"
url = "{pumas}"
model = "ranker"
capabilities = ["rerank"]

[[upstream]]
name = "faked"
kind = "llama-server"
url = "{fake}"
model = "there"
profile = "p"
api_key_file = "key"

[[upstream]]
name = "faked-vectors"
kind = "llama-server"
url = "{fake}"
model = "there"
capabilities = ["text_embedding", "rerank"]
"""
KEY = "sk-key-of-the-fake-provider"


@dataclass
class Upstreams:
    """The gateway, the Pumas behind it, the fake behind it."""

    gateway: Gateway
    behind: Gateway
    fake: Fake

    def ask(self, **fields: Any) -> Any:
        """A typed operation that must succeed: its result."""
        reply = self.gateway.operation(**fields)
        assert reply.status == 200, reply.body
        return reply.json()["result"]


@contextlib.contextmanager
def llama_server(*arguments: str, log: Path) -> Iterator[str]:
    """A llama-server that nobody supervises, ready; its address."""
    command = [sys.executable, "-m", "worker_bin.llama_server", *arguments]
    with open(log, "wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    try:
        yield _lines_until(process, "llama-server (", log)[-1].rpartition(" on ")[2]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="session")
def upstreams(gateway: Gateway, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstreams]:
    """See CONFIG: llama-servers of its own (`eyes`, `vectors`, `judge`, `headless`); two that run elsewhere
    (`elsewhere`: by socket as `one`, by URL as `two`); another Pumas (`...-there`); a fake (`faked`, `faked-vectors`);
    one lane (`local`)."""
    directory = tmp_path_factory.mktemp("upstreams")
    models.tiny_llama(directory / "tiny.gguf", context=2048)
    models.tiny_llama(directory / "vectors.gguf", context=2048, extra={"llama.pooling_type": 3})
    models.tiny_reranker(directory / "headless.gguf", head="none")
    tiny_decision(directory / "judge.gguf")
    tiny_projector(directory / "projector.gguf")
    key = directory / "key"
    key.write_text(KEY)
    key.chmod(0o600)
    with tempfile.TemporaryDirectory(prefix="up-") as short, fake_in_thread() as fake:
        socket = f"{short}/there.sock"
        arguments = ("--model", str(directory / "tiny.gguf"), "--ctx-size", "2048", "--threads", "1")
        with (
            llama_server(*arguments, "--host", socket, log=directory / "one.log"),
            llama_server(*arguments, "--host", "127.0.0.1", "--port", "0", log=directory / "two.log") as tcp,
        ):
            config = directory / "pumas.toml"
            places = {"socket": socket, "tcp": tcp, "pumas": gateway.url, "fake": fake.url}
            config.write_text(CONFIG.format(patient=PATIENT, **places))
            with running(directory, "--config", str(config)) as started:
                yield Upstreams(started, gateway, fake)
