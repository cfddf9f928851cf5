"""The first import of every worker: it binds the process to its parent and gives up what an engine does not need.

Importing it in a process that was started as a worker (SYNAPSE_WORKER_ID is set) arms everything, before any other
import: the parent-death signal, no_new_privs, rlimits, a higher OOM score, Landlock. `report` says what could be armed:
feature → "on" or why not. With SYNAPSE_REQUIRE_SANDBOX set, a feature that is not on ends the worker (exit 78).

Environment, set by the spawner: SYNAPSE_PARENT_PID; SYNAPSE_READ_DIRS, what may be read beside the program itself
(absent: everything); SYNAPSE_WRITE_DIRS, what may be written (absent: nothing). Both are lists as in PATH.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys

EXIT_PARENT_GONE = 75
EXIT_NO_SANDBOX = 78

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_OOM_SCORE_ADJ = "500"
_OPEN_FILES = 1024

_NOT_HERE = "not on this system"

report: dict[str, str] = {}
"""Feature → "on" or why it is not."""


def arm() -> None:
    """Arm everything and fill `report`. Called once, on import, in worker processes only."""
    readable, writable = _directories("SYNAPSE_READ_DIRS"), _directories("SYNAPSE_WRITE_DIRS")
    report["parent_death_signal"] = die_with_parent()
    report["rlimits"] = _limit_resources(may_write=bool(writable))
    report["oom_score"] = _raise_oom_score()
    if sys.platform == "linux":
        from worker_bin import landlock

        libc = ctypes.CDLL(None, use_errno=True)
        report["no_new_privs"] = _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
        report["landlock"] = landlock.restrict(libc, readable, writable)
    else:
        report["no_new_privs"] = report["landlock"] = _NOT_HERE
    if os.environ.get("SYNAPSE_REQUIRE_SANDBOX"):
        missing = [f"{feature}: {state}" for feature, state in report.items() if state != "on"]
        if missing:
            print("the sandbox is required, but " + "; ".join(missing), file=sys.stderr, flush=True)
            os._exit(EXIT_NO_SANDBOX)


def _prctl(libc: ctypes.CDLL, option: int, value: int) -> str:
    if libc.prctl(option, value, 0, 0, 0) == 0:
        return "on"
    return os.strerror(ctypes.get_errno())


def die_with_parent(number: int = signal.SIGKILL) -> str:
    """Have this signal sent when the parent dies; leave at once if it is dead already. "on", or why not (W8)."""
    state = _NOT_HERE + ": socket EOF only"
    if sys.platform == "linux":
        state = _prctl(ctypes.CDLL(None, use_errno=True), _PR_SET_PDEATHSIG, number)
    # It may have died before the signal was armed. 0: it lives outside our pid namespace, where EOF has to do.
    expected = os.environ.get("SYNAPSE_PARENT_PID", "")
    if expected.isdigit() and os.getppid() not in (int(expected), 0):
        os._exit(EXIT_PARENT_GONE)
    return state


def _limit_resources(*, may_write: bool) -> str:
    """No core files, no files written, a bounded number of descriptors. Never RLIMIT_NPROC (D16)."""
    wanted = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: _OPEN_FILES}
    if not may_write:
        wanted[resource.RLIMIT_FSIZE] = 0
    try:
        for kind, value in wanted.items():
            hard = resource.getrlimit(kind)[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (value, value))
    except (OSError, ValueError) as error:
        return str(error)
    return "on"


def _raise_oom_score() -> str:
    """The kernel should pick a worker before the process that can restart it."""
    if sys.platform != "linux":
        return _NOT_HERE
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write(_OOM_SCORE_ADJ)
    except OSError as error:
        return str(error)
    return "on"


def _directories(name: str) -> list[str] | None:
    value = os.environ.get(name)
    return [part for part in value.split(os.pathsep) if part] if value is not None else None


if "SYNAPSE_WORKER_ID" in os.environ:
    sys.dont_write_bytecode = True
    arm()
