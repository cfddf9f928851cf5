"""What the engine itself makes of texts, in a process of its own: `python -m tests.text.engine` does the asking."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

Question = tuple[str, bool, bool]
"""text, add_special, parse_special"""


def engine_ids(path: Path, questions: Sequence[Question]) -> list[list[int]]:
    """The engine's ids for each question."""
    asked = subprocess.run(
        [sys.executable, "-m", "tests.text.engine", str(path)],
        input=msgspec.json.encode(questions),
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
    )
    return msgspec.json.decode(asked.stdout, type=list[list[int]])


def main() -> None:
    from worker_bin.text.vocab import EngineVocabulary

    questions = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Question])
    descriptor = os.open(sys.argv[1], os.O_RDONLY)
    with EngineVocabulary(descriptor, sys.argv[1]) as engine:
        rows = [engine.encode(text, add_special=add, parse_special=parse) for text, add, parse in questions]
    sys.stdout.buffer.write(msgspec.json.encode(rows))


if __name__ == "__main__":
    main()
