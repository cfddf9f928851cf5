"""Where an upstream server is. Pure."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """A server's address, taken apart."""

    scheme: str
    host: str
    port: int
    prefix: str
    """What stands before every path; "" or `/...` without a slash at its end."""
    socket: str | None = None
    """Path of its Unix socket."""

    @property
    def netloc(self) -> bytes:
        """As `Host` has it: without the scheme's own port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == PORTS[self.scheme] else f"{host}:{self.port}").encode("ascii")


def parse_url(url: str) -> Address:
    """Take `http://`, `https://` or `unix:/path` apart.

    Raises: ValueError with the remedy; it does not quote what may hold a credential.
    """
    if url.startswith("unix:"):
        path = url.removeprefix("unix:")
        if not path.startswith("/"):
            raise ValueError("a unix: url holds the socket's absolute path, as in unix:/run/llama.sock")
        return Address("http", "localhost", 80, "", path)
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("a url holds no credentials, query or fragment; a key goes into api_key_file")
    if parts.scheme not in PORTS or not parts.hostname:
        raise ValueError(f"a url begins with http://, https:// or unix:, not {url[:100]!r}")
    host = parts.hostname if ":" in parts.hostname else parts.hostname.encode("idna").decode("ascii")
    prefix = parts.path.rstrip("/")
    if not prefix.isascii() or not prefix.isprintable() or " " in prefix:
        raise ValueError("a url's path is printable ASCII")
    if prefix.endswith("/v1"):
        raise ValueError("a url ends before /v1: the paths of the routes are added to it")
    return Address(parts.scheme, host, parts.port or PORTS[parts.scheme], prefix)
