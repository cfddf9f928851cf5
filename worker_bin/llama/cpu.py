"""An illegal instruction told from a bad model: the engine was built for another CPU, and the log says so.

Python's own handler cannot run while the engine's code faults, but its C part writes the signal's number to a pipe. A
thread reads it, says what happened and restores the default; the instruction, tried again, then ends the process with
SIGILL, which is what the module sees.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

_MESSAGE = (
    "illegal instruction: this build of llama.cpp does not fit this CPU. Build it here: "
    'CMAKE_ARGS="-DGGML_NATIVE=ON" pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python '
    "llama-cpp-python (docs/engine.md, Building)"
)


def watch_illegal_instructions() -> None:
    """Arm it, in the main thread. It holds while the faulting code runs without the GIL, as the engine's does."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.signal(signal.SIGILL, lambda number, frame: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_tell, args=(reading,), name="illegal-instruction", daemon=True).start()


def _tell(reading: int) -> None:
    while os.read(reading, 1) != bytes([signal.SIGILL]):
        pass  # another signal's number
    print(_MESSAGE, file=sys.stderr, flush=True)
    libc = ctypes.CDLL(None)
    libc.signal.argtypes, libc.signal.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    libc.signal(signal.SIGILL, None)
