"""A supervisor with workers of the faulty engine, in real processes, whose answers a test can compute."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import trio

from synapse import (
    Generation,
    Lane,
    Limits,
    Profile,
    Sampling,
    Supervisor,
    SupervisorConfig,
    open_supervisor,
)
from synapse.host import python_worker
from synapse.policy.scheduler import Ids
from worker_bin.faulty import arithmetic

BOUND_S = 60.0
"""Only a hang reaches it."""
QUICK = Limits(boot_s=60.0, backoff_first_s=0.01)


def ids(*values: int) -> Ids:
    return np.asarray(values, dtype=np.int32)


def text_of(length: int, start: int = 0) -> Ids:
    return (np.arange(start, start + length) % 250).astype(np.int32)


def expected_vectors(texts: Sequence[Ids], dims: int = 8) -> np.ndarray:
    return np.asarray([arithmetic.vector(text.tolist(), dims) for text in texts], dtype=np.float32)


def expected_text(prompt: Ids, n: int, seed: int = 0) -> str:
    return "".join(chr(arithmetic.token(prompt.tolist(), seed, at)) for at in range(n))


class Lab:
    """Makes model files and lanes of the faulty engine."""

    def __init__(self, directory: Path, supervisor: Supervisor) -> None:
        self.directory, self.supervisor = directory, supervisor

    def model(self, name: str = "model", **settings: object) -> Path:
        """A model file of the faulty engine; its settings are words in it."""
        path = self.directory / f"{name}.gguf"
        path.write_text(" ".join(["faulty", f"name={name}", *(f"{key}={value}" for key, value in settings.items())]))
        return path

    def start(self, model: Path, faults: str = "", **profile: object) -> Lane:
        options = {"argv": python_worker("faulty"), "env": {"SYNAPSE_FAULTS": faults}, **profile}
        return self.supervisor.start(model, Profile(**options))  # type: ignore[arg-type]

    async def load(self, role: str, faults: str = "", name: str = "model", **profile: object) -> Lane:
        lane = self.start(self.model(name, role=role), faults, **profile)
        with trio.fail_after(BOUND_S):
            await lane.ready()
        return lane


@asynccontextmanager
async def open_lab(runtime_dir: Path, directory: Path, limits: Limits = QUICK) -> AsyncIterator[Lab]:
    config = SupervisorConfig(
        runtime_dir=runtime_dir,
        state_dir=directory / "state",
        cache_dir=directory / "cache",
        text_processes=1,
        text_argv=python_worker("faulty"),
        threads=2,
        limits=limits,
    )
    async with open_supervisor(config) as supervisor:
        yield Lab(directory, supervisor)


async def answer(lane: Lane, prompt: Ids, max_tokens: int = 12, **options: object) -> tuple[str, str | None]:
    """A whole generation: its text and why it ended."""
    request = Generation(prompt=prompt, max_tokens=max_tokens, sampling=Sampling(seed=0), **options)  # type: ignore[arg-type]
    async with lane.generate(request) as stream:
        text = "".join([delta.text async for delta in stream])
    return text, stream.finish_reason


def nothing_left(lane: Lane) -> bool:
    """No request, byte, unit or sequence is in the lane."""
    counts = lane.scheduler.counts()
    return (counts.requests, counts.bytes, counts.tokens, counts.units, counts.sequences) == (0, 0, 0, 0, 0)


async def until(condition: object, bound_s: float = BOUND_S) -> None:
    """Wait for what has no event of its own."""
    assert callable(condition)
    with trio.fail_after(bound_s):
        while not condition():  # noqa: ASYNC110 - a state of ours that has no event
            await trio.sleep(0.01)
