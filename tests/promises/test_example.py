"""docs/testing.md: the example runs as it stands there, and every name of the page is public."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import synapse.testing

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
BOUND_S = 120.0


def test_the_drill_runs(tmp_path: Path) -> None:
    example = re.search(r"<!-- example: drill -->\n```python\n(.*?)```\n<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert example
    script = tmp_path / "drill.py"
    script.write_text(example[1])
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "model.gguf")],
        capture_output=True,
        text=True,
        timeout=BOUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\d+ checks passed$", done.stdout, re.MULTILINE)
    assert "'served'" in done.stdout


def test_every_name_is_there() -> None:
    for name in synapse.testing.__all__:
        assert getattr(synapse.testing, name) is not None
    words = set(re.findall(r"\w+", PAGE.read_text()))
    checkers = ("one_outcome", "nothing_replayed", "not_admitted_is_true", "single_lane", "no_hang", "left_is_gone")
    assert {*checkers, "nothing_left", "healed", "verdict"} <= words & set(synapse.testing.__all__)
