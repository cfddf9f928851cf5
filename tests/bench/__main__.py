"""Run all benchmarks, or the named ones, one after the other."""

from __future__ import annotations

import runpy
import sys

NAMES = ("embed", "generate", "mixed", "http", "tokens")

for name in sys.argv[1:] or NAMES:
    print(f"== {name}", flush=True)
    sys.argv = [name]
    runpy.run_module(f"tests.bench.{name}", run_name="__main__")
