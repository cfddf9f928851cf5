"""The same targets, guided by coverage, where atheris is installed (`pip install atheris`; CPython 3.11 to 3.13)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from fuzz.hunt import outcome
from fuzz.targets import CORPUS, FAILURES, load

NEW = Path(__file__).parent / "corpus-new"
"""What it found worth keeping; not part of the project until somebody picks from it."""
_MAX_BYTES = 1 << 16


def search(name: str, seconds: float, seed: int, note: Callable[[bytes], None]) -> int:
    """Search for so long; the exit status, if libFuzzer returns at all (it ends the process itself).

    The target must not have been imported yet: its parser is instrumented on the way in.
    """
    try:
        import atheris
    except ImportError:
        print("--coverage needs atheris: pip install atheris", file=sys.stderr)
        return 2
    with atheris.instrument_imports(include=["pumas", "synapse"]):
        target = load(name)

    def one(data: bytes) -> None:
        note(data)
        if (error := outcome(target, data)) is not None:
            raise error

    kept, new = CORPUS / name, NEW / name
    new.mkdir(parents=True, exist_ok=True)
    FAILURES.mkdir(exist_ok=True)
    arguments = [
        *("fuzz", f"-max_total_time={max(1, int(seconds))}", f"-seed={seed & 0xFFFFFFFF}", f"-max_len={_MAX_BYTES}"),
        *(f"-artifact_prefix={FAILURES}/{name}-", "-verbosity=0", str(new)),
        *([str(kept)] if kept.is_dir() else []),
    ]
    atheris.Setup(arguments, one)
    atheris.Fuzz()
    return 0
