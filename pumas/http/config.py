"""The serve loop's settings, with units, and the one error that a wrong surrounding gives."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


class HttpSetupError(Exception):
    """The server cannot listen as configured. The message is one line that names what is wrong."""


@dataclass(frozen=True, kw_only=True)
class HttpConfig:
    """Where to listen and how much one client may take. Names ending in `_s` are seconds, in `_bytes` bytes.

    There is no deadline on a running response: a generation may take hours, and a client that reads slowly blocks
    its own request only.
    """

    host: str | None = "127.0.0.1"
    """None: no TCP."""
    port: int = 8080
    """0: one that is free."""
    unix_path: Path | None = None
    """A socket of mode 0600, in a directory of mode 0700 that is ours (made if it is missing)."""
    tls_cert: Path | None = None
    tls_key: Path | None = None

    max_connections: int = 1024
    """Within RLIMIT_NOFILE; what comes on top waits unaccepted (decision D11)."""
    backlog: int = 1024
    """Connections that the system holds until they are accepted."""
    requests_per_connection: int = 10_000
    """After so many a connection is closed."""

    handshake_s: float = 10.0
    """For TLS."""
    header_s: float = 15.0
    """From a request's first byte to the end of its headers."""
    idle_s: float = 30.0
    """From the connection, or the last answer, to the next request's first byte."""
    body_stall_s: float = 60.0
    """For how long an application may wait for more of a request's body."""
    body_rate_bytes: int = 1024
    """Bytes per second that keep an upload alive: a byte now and then does not put the stall deadline off."""
    grace_s: float = 5.0
    """From shutdown to the closing of connections that are still busy (decision D15)."""
    linger_s: float = 5.0
    """For how long the rest of a refused body is read and dropped, so that the refusal reaches a client that writes
    everything before it reads."""
    linger_bytes: int = 64 << 20
    """At most so much of it."""
    websocket_close_s: float = 1.0
    """From a WebSocket's end to the cancellation of an endpoint that has not noticed."""

    header_bytes: int = 32 << 10
    """Request line and headers together."""
    read_ahead_bytes: int = 256 << 10
    """Body bytes held for an application that is not reading them."""
    pipeline_bytes: int = 64 << 10
    """Bytes held behind a request that is being answered."""

    websocket: bool = False
    """Whether WebSocket upgrades reach the application; else they are refused (decision D11)."""
    websocket_message_bytes: int = 1 << 20
