"""Fixtures for all tests. `no_leaks` watches every one of them: what a test started must be gone when it ends."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gateway import gateway

__all__ = ["gateway"]

LEAK_BOUND_S = 20.0
"""How long what is on its way out may take; only a leak waits so long."""

_PR_SET_CHILD_SUBREAPER = 36
if sys.platform == "linux":
    # Orphans of processes that a test kills come to us, so that they are seen.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or a descriptor behind."""
    children, threads, descriptors = _children(), set(threading.enumerate()), _descriptors()
    yield
    problems = _leaked_children(children) + _leaked_threads(threads) + _leaked_descriptors(descriptors)
    if problems:
        pytest.fail("left behind: " + "; ".join(problems))


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    """A runtime directory with a short path (sockets need one); no socket may be left in it."""
    path = Path(tempfile.mkdtemp(prefix="sy-"))
    try:
        yield path
        left = [str(socket) for socket in path.rglob("*.sock")]
        assert left == []
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _children() -> set[int]:
    """Direct children, zombies included."""
    found: set[int] = set()
    with contextlib.suppress(FileNotFoundError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.update(int(pid) for pid in (task / "children").read_text().split())
    return found


def _leaked_children(before: set[int]) -> list[str]:
    """Wait for what is ending, reap orphans that have ended, kill and name the rest."""
    problems = []
    for pid in _children() - before:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(LEAK_BOUND_S * 1000):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            problems.append(f"process {pid} ({command.strip()})")
            os.kill(pid, signal.SIGKILL)
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return problems


def _leaked_threads(before: set[threading.Thread]) -> list[str]:
    problems = []
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("Trio thread"):
            continue  # trio keeps idle ones for ten seconds, on purpose
        thread.join(LEAK_BOUND_S)
        if thread.is_alive():
            problems.append(f"thread {thread.name}")
    return problems


def _descriptors() -> dict[int, str]:
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):
                found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _leaked_descriptors(before: dict[int, str]) -> list[str]:
    """New ones that stay. An object in a cycle is not a leak, nor is a connection that a server of a wider fixture has
    just accepted."""
    left = set(_new(before).items())
    if left:
        gc.collect()
    deadline = time.monotonic() + LEAK_BOUND_S
    while (left := left & set(_new(before).items())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return [f"descriptor {number} ({target})" for number, target in sorted(left)]


def _new(before: dict[int, str]) -> dict[int, str]:
    return {number: target for number, target in _descriptors().items() if before.get(number) != target}
