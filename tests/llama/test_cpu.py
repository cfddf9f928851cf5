"""A build that does not fit this CPU says so and dies of SIGILL, as the real instruction makes it."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CODE = {"x86_64": b"\x0f\x0b", "AMD64": b"\x0f\x0b", "aarch64": b"\0\0\0\0", "arm64": b"\0\0\0\0"}

PROGRAM = """
import ctypes, mmap
from worker_bin.llama.cpu import watch_illegal_instructions
watch_illegal_instructions()
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write({code!r})
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""


@pytest.mark.skipif(platform.machine() not in CODE, reason="no illegal instruction known for this CPU")
def test_an_illegal_instruction_is_explained() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(code=CODE[platform.machine()])],
        stderr=subprocess.PIPE,
        timeout=60,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert ran.returncode == -signal.SIGILL
    assert b"does not fit this CPU" in ran.stderr
