"""Limits of one step over foreign text: CPU time and memory.

A Python loop that runs out of time is interrupted and the process lives on; one that hides inside C is ended with the
process a little later. Both count CPU time, so a busy machine refuses nobody.
"""

from __future__ import annotations

import math
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HARD_AFTER_S = 2.0
"""CPU seconds between the interruption and the end of the process."""
_AGAIN_S = 0.2


class OutOfTime(BaseException):
    """The step used up its CPU time. No Exception, so that nothing on the way catches it."""


@contextmanager
def interrupted_after(cpu_s: float) -> Iterator[None]:
    """Raise OutOfTime inside the block after `cpu_s` seconds of this process's CPU time; end the process soon after.

    Main thread only. Not to be nested.
    """
    armed = True

    def interrupt(signum: int, frame: FrameType | None) -> None:
        if armed:
            raise OutOfTime

    with killed_after(cpu_s + HARD_AFTER_S):
        before = signal.signal(signal.SIGPROF, interrupt)
        signal.setitimer(signal.ITIMER_PROF, cpu_s, _AGAIN_S)
        try:
            try:
                yield
            finally:
                armed = False  # whatever arrives from here on does not interrupt the cleaning up
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)


@contextmanager
def killed_after(cpu_s: float) -> Iterator[None]:
    """End the process (SIGXCPU) if the block takes more CPU time than this, give or take a second."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    with _soft_limit(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + cpu_s)):
        yield


@contextmanager
def memory_of(extra_bytes: int) -> Iterator[None]:
    """Let the block take at most so much more memory; beyond it a MemoryError, or the end of the process in C.

    Only where the system says how much is used (Linux); elsewhere no bound.
    """
    used = _data_bytes()
    if used is None:
        yield
        return
    with _soft_limit(resource.RLIMIT_DATA, used + extra_bytes):
        yield


@contextmanager
def _soft_limit(kind: int, value: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(kind)
    for bound in (soft, hard):
        if bound != resource.RLIM_INFINITY:
            value = min(value, bound)
    resource.setrlimit(kind, (value, hard))
    try:
        yield
    finally:
        resource.setrlimit(kind, (soft, hard))


def _data_bytes() -> int | None:
    """What RLIMIT_DATA counts, now."""
    if sys.platform != "linux":
        return None
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return None
