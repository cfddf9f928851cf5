"""Small helpers of the benchmarks: interleaved rounds, medians of paired ratios, memory of processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path


def rounds(ways: Mapping[str, Callable[[], float]], count: int) -> dict[str, list[float]]:
    """Run all ways in turn, `count` times after one round that does not count; seconds of each, by way."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(count + 1):
        for name, way in ways.items():
            seconds = way()
            if number:
                taken[name].append(seconds)
    return taken


def ratio(taken: Mapping[str, list[float]], name: str, base: str) -> float:
    """Throughput of `name` relative to `base`: the median of the paired ratios of one round each."""
    return statistics.median(b / a for a, b in zip(taken[name], taken[base], strict=True))


def both(taken: Mapping[str, list[float]], name: str, base: str) -> str:
    """`ratio` in words, and the ratio of each one's fastest round: what is left when the machine is at rest."""
    return f"{name} {ratio(taken, name, base):.2f} (best {min(taken[base]) / min(taken[name]):.2f})"


def memory_mb(pid: int) -> float:
    """Proportional resident memory of a process in MB (Linux)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1e3
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Pss")


def anonymous_mb(pid: int) -> float:
    """Memory that is the process's alone: what a mapped model file takes is not in it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1e3
    raise ValueError(f"/proc/{pid}/smaps_rollup has no Anonymous")
