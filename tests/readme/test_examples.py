"""The examples of the README and of docs/library.md run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.models import minilm_f16_gguf, smollm2

ROOT = Path(__file__).parents[2]


def example(page: str, name: str) -> str:
    found = re.search(rf"<!-- example: {name} -->\n```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S)
    assert found is not None
    return found[1]


def run(code: str, model: Path, directory: Path) -> list[str]:
    """What it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(model)],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=directory,
        env=os.environ | {"XDG_STATE_HOME": str(directory / "state")},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_readmes_library_example_runs(tmp_path: Path) -> None:
    """Three texts in, a 3 by 3 matrix of similarities out: the two cats are closer than the form."""
    lines = run(example("README.md", "library"), minilm_f16_gguf(), tmp_path)
    rows = [[float(number) for number in re.findall(r"-?\d+\.\d*", line)] for line in lines]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][1] > rows[0][2]


def test_text_is_generated(tmp_path: Path) -> None:
    *text, last = run(example("docs/library.md", "generate"), smollm2(), tmp_path)
    assert "".join(text).strip()
    reason, _, count, seed = last.split()
    assert reason in ("stop", "length")
    assert 1 <= int(count) <= 16
    assert seed == "7"


def test_health_shows_a_quarantine_and_a_probe_ends_it(tmp_path: Path) -> None:
    lines = run(example("docs/library.md", "health"), minilm_f16_gguf(), tmp_path)
    assert lines == ["loaded [('idle', True)]", "quarantined 1", "loaded"]


def test_an_own_worker_serves(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(example("docs/library.md", "worker"))
    assert run(example("docs/library.md", "own worker"), minilm_f16_gguf(), tmp_path) == ["(2, 2)"]
