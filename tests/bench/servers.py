"""What the benchmarks compare with: a gateway of ours and a llama-server, each in a process of its own, over HTTP."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec

from pumas.contract.events import EventReader
from pumas.providers.upstream.client import Upstream
from synapse.host.environment import child_environment
from tests.gateway import Gateway, running


@contextlib.contextmanager
def pumas(*models: dict[str, Any]) -> Iterator[Gateway]:
    """`pumas serve` with these `[[model]]` tables."""
    with tempfile.TemporaryDirectory() as folder:
        tables = "\n".join(
            "[[model]]\n" + "\n".join(f"{key} = {msgspec.json.encode(value).decode()}" for key, value in model.items())
            for model in models
        )
        config = Path(folder) / "pumas.toml"
        config.write_text(f"[server]\nport = 0\n{tables}\n")
        with running(Path(folder), "--config", str(config)) as gateway:
            yield gateway


@contextlib.contextmanager
def llama_server(model: Path, *arguments: str) -> Iterator[str]:
    """The xllamacpp package's llama-server on a Unix socket; yields its URL."""
    with tempfile.TemporaryDirectory(prefix="ls-", dir="/tmp") as folder:
        path = str(Path(folder) / "s.sock")
        command = [sys.executable, "-m", "worker_bin.llama_server", "--model", str(model), "--host", path, *arguments]
        env = child_environment(os.environ, {})
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        try:
            while not healthy(path):
                assert process.poll() is None, "llama-server did not start"
                time.sleep(0.1)
            yield f"unix:{path}"
        finally:
            process.terminate()
            process.wait()


def healthy(path: str) -> bool:
    """Whether the server on this Unix socket answers /health with a 200. Blocks."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return connection.recv(64).startswith(b"HTTP/1.1 200")
        except OSError:
            return False


async def post(url: str, path: bytes, body: Any) -> bytes:
    """One finite request."""
    async with Upstream("bench", url).request(b"POST", path, msgspec.json.encode(body)) as response:
        data = await response.read()
        assert response.status == 200, data[:500]
        return data


async def events(url: str, path: bytes, body: Any) -> AsyncIterator[str]:
    """The data of a stream's events as they come."""
    reader = EventReader()
    async with Upstream("bench", url).request(b"POST", path, msgspec.json.encode(body)) as response:
        assert response.status == 200, await response.read()
        async with aclosing(response.chunks()) as chunks:
            async for chunk in chunks:
                for event in reader.feed(chunk):
                    yield event.data


async def complete(url: str, model: str, prompt: Sequence[int], n: int) -> int:
    """Stream `n` greedy tokens of a prompt of ids; returns how many there were."""
    body = {"model": model, "prompt": list(map(int, prompt)), "max_tokens": n, "temperature": 0, "stream": True}
    count = 0
    async with aclosing(events(url, b"/v1/completions", body | {"stream_options": {"include_usage": True}})) as found:
        async for data in found:
            if data != "[DONE]" and (usage := msgspec.json.decode(data).get("usage")):
                count = usage["completion_tokens"]
    return count
