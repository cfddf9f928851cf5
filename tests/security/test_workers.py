"""What a worker that was taken over can do, tried from inside real ones under a real supervisor (P24, P28)."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from synapse import InvalidInput, Lane, Limits, Profile, SupervisorConfig, open_supervisor
from synapse.errors import SynapseError
from synapse.supervisor import Supervisor
from tests import models

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is tried here exists on Linux only")

PROBE = Path(__file__).with_name("probe.py")
PROGRAM = [sys.executable, "-P", str(PROBE)]
PATIENT = Limits(boot_s=60.0, unit_min_s=60.0, text_s=60.0)
FORBIDDEN = (
    "read a file of others",
    "list the directory of others",
    "write beside the file of others",
    "overwrite the file of others",
    "remove the file of others",
    "write to the temporary directory",
    "read the parent's environment",
    "signal the parent",
    "run a program",
    "connect",
    "listen",
)


@asynccontextmanager
async def supervisor(tmp_path: Path, runtime_dir: Path, **more: object) -> AsyncIterator[Supervisor]:
    config = SupervisorConfig(
        runtime_dir=runtime_dir,
        state_dir=tmp_path / "state",
        cache_dir=tmp_path / "cache",
        text_processes=1,
        limits=PATIENT,
        **more,  # type: ignore[arg-type]
    )
    async with open_supervisor(config) as opened:
        yield opened


def profile(**env: str) -> Profile:
    return Profile(argv=PROGRAM, env=env, parallel=1, threads=1, context=64)


def tried(lane: Lane) -> tuple[dict[str, str], dict[str, str]]:
    """What the probe tried, and what it reports as armed."""
    assert lane.measured is not None
    sandbox = lane.measured.sandbox
    attempts = {name.removeprefix("tried: "): how for name, how in sandbox.items() if name.startswith("tried: ")}
    return attempts, {name: how for name, how in sandbox.items() if not name.startswith("tried: ")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return models.tiny_llama(tmp_path / "models" / "m.gguf")


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "diary").write_text("dear diary")
    return tmp_path / "others" / "diary"


async def test_a_worker_is_boxed_in(
    tmp_path: Path, runtime_dir: Path, model: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loads its model, and everything else that it tries is refused; what could be armed is reported."""
    planted = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "PUMAS_API_KEY", "HTTPS_PROXY", "LD_PRELOAD_", "PYTHONSTARTUP")
    for name in planted:
        monkeypatch.setenv(name, "planted")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        env = {"PROBE_SECRET": str(secret), "PROBE_PORT": str(listening.getsockname()[1])}
        async with supervisor(tmp_path, runtime_dir) as opened:
            attempts, armed = tried(await opened.load(model, profile(**env)))
    assert set(attempts["environment"].split()) & set(planted) == set()
    assert attempts["core files"] == "(0, 0)"
    assert {armed[name] for name in ("parent_death_signal", "rlimits", "oom_score", "no_new_privs")} == {"on"}
    if armed["landlock"] != "on":
        pytest.skip(f"landlock: {armed['landlock']}")
    assert {name: attempts[name] for name in FORBIDDEN} == dict.fromkeys(FORBIDDEN, "PermissionError")
    assert secret.read_text() == "dear diary"  # noqa: ASYNC240


async def test_a_boxed_worker_finds_its_model_behind_a_link(tmp_path: Path, runtime_dir: Path, model: Path) -> None:
    """The link's directory and the file's own are readable, also where a name holds the separator of the list."""
    odd = tmp_path / "with:colon" / "deeper"
    odd.mkdir(parents=True)
    link = odd / "link.gguf"
    link.symlink_to(model)
    async with supervisor(tmp_path, runtime_dir) as opened:
        assert (await opened.load(link, profile())).state == "loaded"


async def test_a_text_process_reads_models_and_writes_its_cache_only(
    tmp_path: Path, runtime_dir: Path, model: Path, secret: Path
) -> None:
    cache = tmp_path / "cache"
    argv = ["/usr/bin/env", f"PROBE_TEXT={cache}", f"PROBE_SECRET={secret}", *PROGRAM]
    async with supervisor(tmp_path, runtime_dir, text_argv=argv) as opened:
        assert (await opened.text.ingest(model)).role == "generate"
    attempts, armed = msgspec.json.decode((cache / "probe.json").read_bytes())
    if armed["landlock"] != "on":
        pytest.skip(f"landlock: {armed['landlock']}")
    refused = set(FORBIDDEN) - {"read a file of others", "list the directory of others"}
    assert {name: attempts[name] for name in refused} == dict.fromkeys(refused, "PermissionError")


async def test_require_sandbox_is_enforced(tmp_path: Path, runtime_dir: Path, model: Path) -> None:
    """A worker that reports a missing feature, or none at all, does not serve; the program itself is told as well."""
    async with supervisor(tmp_path, runtime_dir) as opened:
        weak = Profile(argv=PROGRAM, env={"PROBE_ARM": "0"}, parallel=1, threads=1, context=64)
        attempts, _ = tried(await opened.load(model, weak))
        assert "SYNAPSE_REQUIRE_SANDBOX" not in attempts["environment"].split()
        strict = Profile(argv=PROGRAM, env={"PROBE_ARM": "0"}, parallel=1, threads=1, context=64, require_sandbox=True)
        with pytest.raises(SynapseError, match="the sandbox is not complete: landlock"):
            await opened.load(model, strict)
        whole = Profile(parallel=1, threads=1, context=64, require_sandbox=True)
        armed = (await opened.load(model)).measured
        assert armed is not None
        if set(armed.sandbox.values()) == {"on"}:
            assert (await opened.load(model, whole)).state == "loaded"
        else:
            with pytest.raises(SynapseError, match="sandbox"):
                await opened.load(model, whole)


@pytest.mark.parametrize("through_a_link", [False, True])
async def test_a_file_that_is_swapped_between_ingest_and_load_is_refused(
    tmp_path: Path, runtime_dir: Path, model: Path, through_a_link: bool
) -> None:
    """The worker opens the file once and digests what it opened: another one than was ingested is never loaded."""
    other = models.tiny_llama(model.with_name("other.gguf"), seed=9)
    asked = model
    if through_a_link:
        asked, target = model.with_name("link.gguf"), other
        asked.symlink_to(model)
        other = model.with_name("other-link.gguf")
        other.symlink_to(target)
    async with supervisor(tmp_path, runtime_dir) as opened:
        with pytest.raises((SynapseError, InvalidInput), match="artifact_invalid.*SHA-256"):
            await opened.load(asked, profile(PROBE_SWAP=f"{other}:{asked}"))
