"""`python -m worker_bin.guard -- program args...`: runs a foreign program that must not outlive the process above.

The guard leads the process group, which the program and its children share. It ends the group when its own parent dies
(the parent-death signal; elsewhere it looks twice a second) and when the program ends; then it ends as the program did.
The program is tied to the guard in the same way, so killing the guard alone ends it too.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence

from worker_bin.harden import die_with_parent

EXIT_CANNOT_RUN = 127
_PARENT_DIED = signal.SIGUSR2
_LOOK_EVERY_S = 0.5


def main(argv: Sequence[str]) -> int:
    """Run `argv` behind `--`; the exit status, if the program had one."""
    command = list(argv[argv.index("--") + 1 :])
    signals = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, _PARENT_DIED}
    # Blocked before anything can be sent: from here on they wait until sigwait takes them.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    if die_with_parent(_PARENT_DIED) != "on":
        threading.Thread(target=_watch_parent, daemon=True).start()
    guard = os.getpid()
    program = os.fork()
    if program == 0:
        _become(command, unblocked, guard)
    while True:
        # A SIGTERM went to the whole group (and so to the program), which answers by ending.
        received = signal.sigwait(signals)
        if received == _PARENT_DIED:
            os.killpg(0, signal.SIGKILL)
        if received == signal.SIGCHLD:
            pid, status = os.waitpid(program, os.WNOHANG)
            if pid:
                return _end(os.waitstatus_to_exitcode(status))


def _become(command: list[str], mask: set[int | signal.Signals], guard: int) -> None:
    """In the child: tie it to the guard, then be the program."""
    os.environ["SYNAPSE_PARENT_PID"] = str(guard)
    die_with_parent()
    os.environ.pop("SYNAPSE_PARENT_PID")
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execv(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(EXIT_CANNOT_RUN)


def _end(status: int) -> int:
    """End as the program did. What it left behind in the group is swept by whoever reaps this process."""
    if status >= 0:
        return status
    if -status != signal.SIGKILL:  # whose disposition cannot be set and need not be
        signal.signal(-status, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-status})
    os.kill(os.getpid(), -status)
    return 128 - status


def _watch_parent() -> None:
    """Where the kernel does not tell: a changed parent is a dead one."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(_LOOK_EVERY_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if "--" not in sys.argv or sys.argv[-1] == "--":
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv))
