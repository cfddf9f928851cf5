"""Inputs that may burn CPU or memory, or kill the process they are handled in: tried in a child with a text process's
limits, as in service. `python -m fuzz.boxed TARGET` is that child.

A target that is tried here has `inside(data)`, `CPU_S` and `EXTRA_BYTES`; what it may not raise comes back as the
child's traceback. An end of the process by its own limits is an answer, too: the request is refused.
"""

from __future__ import annotations

import importlib
import select
import struct
import subprocess
import sys
import traceback

from worker_bin.text.bounds import OutOfTime, interrupted_after, memory_of

_SIZE = struct.Struct("<I")
HANG_S = 100.0
"""The limits are seconds of CPU time; on a busy machine they take longer. Only a hang takes this long."""
_SIGABRT, _SIGKILL, _SIGSEGV, _SIGXCPU = 6, 9, 11, 24
BY_LIMITS = frozenset({_SIGKILL, _SIGXCPU})
BY_NATIVE_CODE = frozenset({_SIGABRT, _SIGSEGV})


class Box:
    """The child, started when it is needed and again after it died."""

    def __init__(self, target: str, deaths: frozenset[int] = BY_LIMITS) -> None:
        """`deaths`: signals that may end the child."""
        self._target, self._deaths = target, deaths
        self._child: subprocess.Popen[bytes] | None = None

    def check(self, data: bytes) -> None:
        """Raises AssertionError where the child complains, hangs, or ends as it may not."""
        child = self._child or self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(_SIZE.pack(len(data)) + data)
        child.stdin.flush()
        if not select.select([child.stdout], [], [], HANG_S)[0]:
            self.close()
            raise AssertionError(f"no answer within {HANG_S:g} s")
        head = child.stdout.read(_SIZE.size)
        if len(head) == _SIZE.size:
            complaint = child.stdout.read(_SIZE.unpack(head)[0]).decode()
            assert not complaint, complaint
            return
        status = child.wait(HANG_S)
        self.close()
        assert -status in self._deaths, f"the process ended with status {status}"

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "fuzz.boxed", self._target]
        self._child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return self._child

    def close(self) -> None:
        """End the child. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None


def main(name: str) -> None:
    module = importlib.import_module(f"fuzz.{name}")
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while len(head := source.read(_SIZE.size)) == _SIZE.size:
        data = source.read(_SIZE.unpack(head)[0])
        complaint = ""
        try:
            with memory_of(module.EXTRA_BYTES), interrupted_after(module.CPU_S):
                module.inside(data)
        except (OutOfTime, MemoryError):
            pass
        except BaseException:  # noqa: BLE001 - whatever else comes out is what is looked for
            complaint = traceback.format_exc()
        answer = complaint.encode("utf-8", "replace")
        sink.write(_SIZE.pack(len(answer)) + answer)
        sink.flush()


if __name__ == "__main__":
    main(sys.argv[1])
