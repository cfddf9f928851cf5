"""Listening sockets: TCP, Unix, TLS, and how many connections this process can hold."""

from __future__ import annotations

import errno
import os
import resource
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from pumas.http.config import HttpConfig, HttpSetupError

DESCRIPTORS_RESERVED = 256
"""Descriptors left to everything that is not a client's connection: workers, upstreams, files."""
UNIX_PATH_BYTES = 103
"""The shortest sun_path of the platforms we know (macOS), without its final NUL."""


@dataclass(frozen=True)
class Listening:
    """Where a server can be reached. `port` is None without TCP."""

    urls: tuple[str, ...]
    port: int | None


def connection_limit(wanted: int) -> int:
    """How many connections, each a descriptor, may be open at once: `wanted`, within this process's limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(4, soft - DESCRIPTORS_RESERVED))


def tls_context(config: HttpConfig) -> ssl.SSLContext | None:
    """TLS 1.2 and up, HTTP/1.1 only; None where TLS is not configured.

    Raises: HttpSetupError.
    """
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise HttpSetupError("TLS needs both a certificate and a key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise HttpSetupError(f"cannot use the TLS certificate {config.tls_cert}: {error}") from error
    return context


@asynccontextmanager
async def open_listeners(config: HttpConfig) -> AsyncIterator[tuple[list[trio.SocketListener], Listening]]:
    """Listen as configured; leaving closes every listener and removes the Unix socket.

    Raises: HttpSetupError: a taken port, an unknown host, a directory that others can write to, and the like.
    """
    scheme = "http" if config.tls_cert is None else "https"
    listeners: list[trio.SocketListener] = []
    urls: list[str] = []
    port: int | None = None
    async with AsyncExitStack() as stack:
        if config.host is not None:
            for listener in await _tcp(config.host, config.port, config.backlog):
                await stack.enter_async_context(listener)
                listeners.append(listener)
                host, bound, *_ = listener.socket.getsockname()
                port = port or bound
                urls.append(f"{scheme}://[{host}]:{bound}" if ":" in host else f"{scheme}://{host}:{bound}")
        if config.unix_path is not None:
            listener = _unix(config.unix_path, config.backlog)
            identity = os.stat(config.unix_path)
            stack.callback(_remove, config.unix_path, identity)
            await stack.enter_async_context(listener)
            listeners.append(listener)
            urls.append(f"unix:{config.unix_path}")
        if not listeners:
            raise HttpSetupError("nothing to listen on: neither a host nor a Unix socket is configured")
        yield listeners, Listening(tuple(urls), port)


async def _tcp(host: str, port: int, backlog: int) -> list[trio.SocketListener]:
    if not 0 <= port <= 65535:
        raise HttpSetupError(f"port {port} is outside 0 to 65535")
    try:
        return list(await trio.open_tcp_listeners(port, host=host, backlog=backlog))
    except (socket.gaierror, UnicodeError) as error:
        raise HttpSetupError(f"cannot listen on {host!r}: not a host of this machine ({error})") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise HttpSetupError(f"cannot listen on {host}:{port}: the port is taken") from error
        raise HttpSetupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _unix(path: Path, backlog: int) -> trio.SocketListener:
    """A socket that only this user can reach: mode 0600 from its first moment, in a directory of mode 0700."""
    if len(os.fsencode(path)) > UNIX_PATH_BYTES:
        raise HttpSetupError(f"the Unix socket's path is longer than {UNIX_PATH_BYTES} bytes: {path}")
    try:
        _private_directory(path.parent)
        _clear(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(sock.fileno(), 0o600)  # before bind: no moment at which the umask decides
            sock.bind(os.fspath(path))
            os.chmod(path, 0o600)  # where fchmod does not reach the name
            sock.listen(backlog)
            return trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise HttpSetupError(f"cannot listen on {path}: {error.strerror or error}") from error


def _private_directory(directory: Path) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(directory)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise HttpSetupError(f"{directory} must be a directory of this user with mode 0700: a Unix socket lies in it")


def _clear(path: Path) -> None:
    """Remove what a server that did not end cleanly left behind; never a socket that is in use, never a file."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise HttpSetupError(f"cannot listen on {path}: a file of that name is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except BlockingIOError:
            pass  # its queue is full: somebody listens
    raise HttpSetupError(f"cannot listen on {path}: another server does")


def _remove(path: Path, identity: os.stat_result) -> None:
    """Unlink the socket, unless another server has put its own there."""
    try:
        now = os.lstat(path)
    except FileNotFoundError:
        return
    if (now.st_dev, now.st_ino) == (identity.st_dev, identity.st_ino):
        path.unlink(missing_ok=True)
