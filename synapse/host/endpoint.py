"""Where a worker connects: one listener for one connection of exactly the right peer (W3).

`Endpoint` is the seam for other transports (a named pipe on Windows, W14); `UnixEndpoint` is that of Linux and macOS.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import trio

from synapse.errors import EngineCrashed, SetupError
from synapse.ports import ByteStream

_RETRY_S = 0.05
_MOST_BUFFERS = 64


class Endpoint(Protocol):
    """A listener for one worker."""

    address: str
    """What the worker gets as --socket."""

    async def accept(self, pid: int) -> ByteStream:
        """Wait for the connection of process `pid` of this user; close all others. Closes the listener afterwards."""

    def close(self) -> None:
        """Stop listening and remove the address. Idempotent, never blocks."""


class UnixEndpoint:
    """A Unix socket of mode 0600. Raises SetupError when it cannot be made, EngineCrashed(spawn) when the system has no
    descriptor left."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self._path = path
        try:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise EngineCrashed("spawn", f"no socket: {error}") from error
        try:
            with contextlib.suppress(OSError):  # macOS cannot; its directory is 0700 anyway
                os.fchmod(listener.fileno(), 0o600)  # before bind: no moment with a wider mode (M12)
            listener.bind(self.address)
            _check_mode(path)
            listener.listen(8)
        except OSError as error:
            listener.close()
            raise SetupError(f"cannot listen on {path}: {error}") from error
        except SetupError:
            listener.close()
            raise
        self._listener: trio.socket.SocketType | None = trio.socket.from_stdlib_socket(listener)

    async def accept(self, pid: int) -> ByteStream:
        assert self._listener is not None, "an endpoint accepts once"
        while True:
            try:
                connection, _ = await self._listener.accept()
            except OSError:
                await trio.sleep(_RETRY_S)  # out of descriptors, say; the caller's deadline ends this
                continue
            if _peer(connection) == (pid, os.geteuid()):
                self.close()
                return SocketStream(connection)
            connection.close()

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
            self._path.unlink(missing_ok=True)


class SocketStream:
    """`ports.ByteStream` over a connected socket."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self._socket = connection

    async def send_all(self, buffers: Sequence[bytes | memoryview]) -> None:
        pending = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if len(view)]
        try:
            while pending:
                sent = await self._socket.sendmsg(pending[:_MOST_BUFFERS])
                while pending and sent >= len(pending[0]):
                    sent -= len(pending.pop(0))
                if pending:
                    pending[0] = pending[0][sent:]
        except OSError as error:
            raise trio.BrokenResourceError(f"the connection broke: {error}") from error

    async def receive_into(self, buffer: memoryview) -> int:
        try:
            return int(await self._socket.recv_into(buffer))
        except (ConnectionResetError, BrokenPipeError):
            return 0

    def close(self) -> None:
        self._socket.close()


def _check_mode(path: Path) -> None:
    info = os.lstat(path)
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.geteuid():
        raise SetupError(f"{path} is not our socket")
    if sys.platform == "linux" and stat.S_IMODE(info.st_mode) != 0o600:
        raise SetupError(f"{path} has mode {stat.S_IMODE(info.st_mode):04o} instead of 0600")


def _peer(connection: trio.socket.SocketType) -> tuple[int, int] | None:
    """(pid, effective uid) of the process at the other end, as the kernel knows them; None where it has gone."""
    if sys.platform == "linux":
        pid, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return pid, uid
    else:  # noqa: RET505 - mypy knows what a platform check is
        return _peer_macos(connection)


def _peer_macos(connection: trio.socket.SocketType) -> tuple[int, int] | None:
    sol_local, local_peercred, local_peerpid = 0, 1, 2
    try:
        (pid,) = struct.unpack("i", connection.getsockopt(sol_local, local_peerpid, 4))
        _, uid = struct.unpack_from("Ii", connection.getsockopt(sol_local, local_peercred, 76))
    except OSError:
        return None
    return pid, uid
