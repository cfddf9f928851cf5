"""The README's library example runs as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.models import minilm_f16_gguf

README = Path(__file__).parents[2] / "README.md"


def test_the_library_example_runs() -> None:
    """Three texts in, a 3 by 3 matrix of similarities out: the two cats are closer than the form."""
    found = re.search(r"<!-- example: library -->\n```python\n(.*?)```", README.read_text("utf-8"), re.S)
    assert found is not None
    done = subprocess.run(
        [sys.executable, "-c", found[1], str(minilm_f16_gguf())], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    rows = [[float(number) for number in re.findall(r"-?\d+\.\d*", line)] for line in done.stdout.splitlines()]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][1] > rows[0][2]
