"""A search in a child process, so that an input that kills or hangs it is found as well and not lost.

The child writes each input into a shared file before it tries it; what stands there when it dies is the reproducer.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

HANG_S = 120.0
"""Without a new input for so long, the child hangs."""
_HEAD = struct.Struct("<QQ")
_BYTES = 4 << 20
_LOOK_EVERY_S = 0.5


class Notes:
    """The shared file: how many inputs were tried, and the one that is being tried."""

    def __init__(self, path: Path) -> None:
        with open(path, "r+b") as file:
            file.truncate(_BYTES)
            self._map = mmap.mmap(file.fileno(), _BYTES)

    def write(self, data: bytes) -> None:
        count, _ = _HEAD.unpack_from(self._map)
        room = data[: _BYTES - _HEAD.size]
        self._map[_HEAD.size : _HEAD.size + len(room)] = room
        _HEAD.pack_into(self._map, 0, count + 1, len(room))

    def read(self) -> tuple[int, bytes]:
        count, size = _HEAD.unpack_from(self._map)
        return count, self._map[_HEAD.size : _HEAD.size + size]

    def close(self) -> None:
        self._map.close()


def watched(arguments: Sequence[str]) -> tuple[int, int, bytes, str]:
    """Run `python -m fuzz ARGUMENTS --notes FILE` and watch it.

    Returns: its exit status (negative: the signal that ended it), how many inputs it tried, the last of them, and what
    the watch has to say ("" while nothing).
    """
    with tempfile.NamedTemporaryFile(prefix="fuzz-") as file:
        notes = Notes(Path(file.name))
        child = subprocess.Popen([sys.executable, "-m", "fuzz", *arguments, "--notes", file.name], env=os.environ)
        try:
            said = _wait(child, notes)
        finally:
            child.kill()
            status = child.wait()
        count, data = notes.read()
        notes.close()
    if not said and status < 0:
        said = f"the process was ended by signal {-status}"
    return status, count, data, said


def _wait(child: subprocess.Popen[bytes], notes: Notes) -> str:
    seen, since = -1, time.monotonic()
    while True:
        try:
            child.wait(_LOOK_EVERY_S)
            return ""
        except subprocess.TimeoutExpired:
            pass
        count, _ = notes.read()
        if count != seen:
            seen, since = count, time.monotonic()
        elif time.monotonic() - since > HANG_S:
            return f"one input took more than {HANG_S:g} s"
