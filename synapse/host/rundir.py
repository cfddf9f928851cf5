"""The runtime directory: ours alone, checked and not assumed, one instance at a time (W3)."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from pathlib import Path

from synapse.errors import SetupError

SOCKET_PATH_LIMIT = 107 if sys.platform == "linux" else 103
"""Bytes of a Unix socket's path, without the terminating NUL."""
WORKER_ID = re.compile(r"[A-Za-z0-9_-]{1,24}")
_LONGEST_NAME = "x" * 24 + ".sock"


PREFIX = "synapse-"
"""How the names of runtime directories begin that are made for one run."""
_SETTLED_S = 5.0
"""A lock file younger than this may be one that its owner is just about to take."""


def fresh_directory() -> tempfile.TemporaryDirectory[str]:
    """A runtime directory for one run, with a short path: not below TMPDIR. Those of runs that were killed are removed:
    ours, with a lock that nobody holds. One that another run is just making stays."""
    base = "/tmp" if os.path.isdir("/tmp") else tempfile.gettempdir()
    for stale in Path(base).glob(f"{PREFIX}*"):
        if _abandoned(stale):
            shutil.rmtree(stale, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=PREFIX, dir=base)


def _abandoned(directory: Path) -> bool:
    """Whether it is a runtime directory of this user whose run is over."""
    try:
        info = os.lstat(directory)
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or sys.platform == "win32":
            return False
        if time.time() - os.lstat(directory / "synapse" / "lock").st_mtime < _SETTLED_S:
            return False
        os.close(_lock(directory / "synapse" / "lock"))
    except (OSError, SetupError):  # gone meanwhile, not to be read, or in use
        return False
    return True


class RuntimeDirectory:
    """`<root>/synapse/workers`, created where it is missing, locked for this process.

    Opening it raises SetupError when a component that should be ours is a symbolic link, has another owner or a mode
    wider than 0700, when another instance holds it, or when a socket in it would have too long a path. Sockets of
    generations that ended are removed. `close` gives the lock back and never blocks.
    """

    def __init__(self, root: Path | str) -> None:
        root = Path(os.path.abspath(root))
        self.workers = root / "synapse" / "workers"
        longest = os.fsencode(self.workers / _LONGEST_NAME)
        if len(longest) > SOCKET_PATH_LIMIT:
            raise SetupError(
                f"runtime directory {root} is too long: a socket in it needs {len(longest)} bytes, the system allows "
                f"{SOCKET_PATH_LIMIT}; choose a shorter one"
            )
        try:
            for directory in (root, root / "synapse", self.workers):
                _own_directory(directory)
            self._lock = _lock(root / "synapse" / "lock")
        except OSError as error:
            raise SetupError(f"runtime directory {root}: {error}") from error
        for stale in self.workers.glob("*.sock"):
            stale.unlink(missing_ok=True)

    def socket_path(self, worker_id: str) -> Path:
        """Where this worker's socket belongs. Raises SetupError for an id that is no plain short name."""
        if not WORKER_ID.fullmatch(worker_id):
            raise SetupError(f"worker id {worker_id!r} must match {WORKER_ID.pattern}")
        return self.workers / f"{worker_id}.sock"

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _own_directory(path: Path) -> None:
    """Make it if it is missing; then it must be a real directory of ours with mode 0700."""
    with contextlib.suppress(FileExistsError):
        os.makedirs(path.parent, exist_ok=True)
        os.mkdir(path, 0o700)
    info = os.lstat(path)
    if stat.S_ISLNK(info.st_mode):
        raise SetupError(f"{path} is a symbolic link; the runtime directory must be a real one")
    if not stat.S_ISDIR(info.st_mode):
        raise SetupError(f"{path} is not a directory")
    if info.st_uid != os.geteuid():
        raise SetupError(f"{path} belongs to user {info.st_uid}, not to {os.geteuid()}")
    if stat.S_IMODE(info.st_mode) & 0o077:
        raise SetupError(f"{path} has mode {stat.S_IMODE(info.st_mode):04o}; run `chmod 700 {path}`")


def _lock(path: Path) -> int:
    """Take the single-instance lock; it ends with the process or with the descriptor."""
    if sys.platform == "win32":  # a named pipe needs no directory, and its first instance is exclusive
        return -1
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SetupError(f"another instance uses this runtime directory (it holds {path})") from None
    return descriptor
