"""How much of a promise is tried: a little by `make test`, the full figure by `python -m tests.proof`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

FULL = os.environ.get("SYNAPSE_PROOF") == "1"
"""`python -m tests.proof` sets it."""


def scaled(gate: int, full: int) -> int:
    """The gate's count, or the full one."""
    return full if FULL else gate


def measured(promise: str, figure: str) -> None:
    """Write down what was measured: `python -m tests.proof` collects it."""
    print(f"{promise}: {figure}")
    if path := os.environ.get("SYNAPSE_PROOF_LOG"):
        with Path(path).open("ab") as log:
            log.write(msgspec.json.encode([promise, figure]) + b"\n")


def promise(*names: str) -> Callable[[Callable[..., object]], Callable[..., object]]:
    """Marks a test as the proof of these promises, as in `@promise("P3")`."""

    def mark(test: Callable[..., object]) -> Callable[..., object]:
        return pytest.mark.promise(*names)(test)

    return mark
