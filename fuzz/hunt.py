"""The search itself, in this process: inputs from a seed, the first failure made small and kept in a file."""

from __future__ import annotations

import contextlib
import hashlib
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fuzz.mutate import damaged
from fuzz.targets import FAILURES, Target

_SHRINK_S = 20.0
_MOST_GROWTH_BYTES = 256 << 20


class TooSlow(AssertionError):
    """An input took more CPU time than any of its size may."""


class TooLarge(AssertionError):
    """An input took more memory than any of its size may."""


@dataclass(frozen=True)
class Failure:
    """An input that breaks an invariant.

    Attributes:
        number: which example it was; with the seed it makes the input again.
        what: the traceback.
    """

    data: bytes
    number: int
    what: str


def inputs(target: Target, seed: int) -> Iterator[bytes]:
    """The kept corpus, then inputs without end. The n-th is the same for the same seed and corpus."""
    kept = [path.read_bytes() for path in target.corpus()]
    yield from kept
    number = 0
    while True:
        rng = random.Random(f"{target.name}:{seed}:{number}")
        number += 1
        if kept and rng.random() < 0.2:
            yield damaged(rng, rng.choice(kept), others=kept)
        else:
            yield target.generate(rng)


def hunt(
    target: Target, seed: int, more: Callable[[int], bool], note: Callable[[bytes], None]
) -> tuple[int, Failure | None]:
    """Try inputs while `more(how many were tried)`; how many were, and the first failure.

    Args:
        note: called with every input before it is tried.
    """
    number = 0
    for data in inputs(target, seed):
        if not more(number):
            break
        note(data)
        if (error := outcome(target, data)) is not None:
            small = _shrunk(target, data, error)
            last = outcome(target, small) or error
            return number + 1, Failure(small, number, "".join(traceback.format_exception(last, limit=-20)))
        number += 1
    return number, None


def outcome(target: Target, data: bytes) -> BaseException | None:
    """What breaks the invariant with this input, if anything."""
    started, before = time.process_time(), _peak_bytes()
    try:
        target.check(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a panic of native code is no Exception
        return error
    if (taken := time.process_time() - started) > target.slow_s:
        return TooSlow(f"{len(data)} bytes took {taken:.1f} s of CPU time, more than {target.slow_s:g}")
    if (grown := _peak_bytes() - before) > _MOST_GROWTH_BYTES:
        return TooLarge(f"{len(data)} bytes took {grown >> 20} MiB of memory")
    return None


def _peak_bytes() -> int:
    """The most memory that this process ever had.

    Linux counts what the process was before exec, a copy of its parent, into ru_maxrss; VmHWM it counts from there.
    """
    with contextlib.suppress(FileNotFoundError), open("/proc/self/status", "rb") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(b"VmHWM:"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def keep(target: Target, data: bytes, directory: Path = FAILURES) -> Path:
    """Write a reproducer; its path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{target.name}-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def _shrunk(target: Target, data: bytes, error: BaseException) -> bytes:
    """A smaller input that fails in the same way, within a bounded time."""
    deadline = time.monotonic() + _SHRINK_S
    size = len(data) // 2
    while size >= 1:
        at = 0
        while at < len(data) and time.monotonic() < deadline:
            shorter = data[:at] + data[at + size :]
            if type(outcome(target, shorter)) is type(error):
                data = shorter
            else:
                at += size
        size //= 2
    return data
