"""What a gateway and its workers hold, read from /proc, and whether it grows."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from statistics import median

MIB = 2**20


@dataclass(frozen=True)
class Sample:
    """`at` in seconds, memory in bytes."""

    at: float
    gateway: int
    workers: int
    descriptors: int
    processes: int


def children(pid: int) -> list[int]:
    """Direct and indirect children that are alive."""
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *children(int(child))]
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended
    return found


def is_worker(pid: int) -> bool:
    """A worker with an engine, no text process."""
    try:
        return b"worker_bin.llama" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def sample(pid: int, at: float) -> Sample:
    below = children(pid)
    return Sample(at, _rss(pid), sum(map(_rss, below)), len(os.listdir(f"/proc/{pid}/fd")), len(below))


def _rss(pid: int) -> int:
    """Anonymous memory: mapped model files are shared and come and go with the page cache."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended
    return 0


def slope(points: list[tuple[float, float]]) -> float:
    """Theil and Sen: the median of all pairs' slopes, which a kill here and there does not move. Per second."""
    step = max(1, len(points) // 200)
    few = points[::step]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for i, a in enumerate(few) for b in few[i + 1 :] if b[0] > a[0]]
    return median(slopes) if slopes else 0.0


def settled(samples: list[Sample]) -> list[Sample]:
    """Without the first third: caches, arenas and pools fill up then."""
    return samples[len(samples) // 3 :]


def growth(samples: list[Sample], what: str) -> float:
    """How much more of it there is at the end of the settled part, by its slope."""
    rest = settled(samples)
    return slope([(one.at, float(getattr(one, what))) for one in rest]) * (rest[-1].at - rest[0].at)
