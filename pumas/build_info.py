"""`pumas --build-info`: what runs here. The engine speaks for itself: a worker is started and its HELLO read."""

from __future__ import annotations

import platform
import secrets
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import trio

from pumas.contract.limits import CONTRACT_VERSION
from synapse.host import RealHost
from synapse.limits import Limits
from synapse.ports import WorkerSpec
from synapse.wire.messages import PROTOCOL_VERSION, EngineInfo
from synapse.worker import open_worker

PACKAGES = ("trio", "hypercorn", "starlette", "msgspec", "numpy", "tokenizers", "llguidance", "llama-cpp-python")


def build_info() -> dict[str, Any]:
    """Versions, contract and protocol versions, and the engine's own report. Starts one worker and ends it."""
    return {
        "name": "pumas",
        "version": version("pumas"),
        "contract_versions": [CONTRACT_VERSION],
        "worker_protocol_version": PROTOCOL_VERSION,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in PACKAGES},
        "engine": msgspec.to_builtins(trio.run(_engine)),
    }


async def _engine() -> EngineInfo:
    with tempfile.TemporaryDirectory(prefix="pumas-") as directory:
        spec = WorkerSpec(
            worker_id="build-info", argv=(sys.executable, "-m", "worker_bin.llama"), nonce=secrets.token_hex(8)
        )
        async with open_worker(RealHost(Path(directory)), spec, Limits()) as worker:
            return worker.hello.engine
