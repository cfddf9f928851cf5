"""What a request must be before any application sees it: pure checks of its line and its framing headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes


@dataclass(frozen=True)
class Refusal:
    """An answer that ends the connection. `reason` is one line of ASCII."""

    status: int
    reason: str


def check_request(
    method: bytes,
    target: bytes,
    version: bytes,
    headers: Iterable[tuple[bytes, bytes]],
    header_bytes: int,
) -> Refusal | None:
    """Refuse what two parsers could read differently, and what no route can mean.

    Args:
        headers: names in lower case.
        header_bytes: bound on the request line and all headers.
    """
    if version not in (b"1.0", b"1.1"):
        return Refusal(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    size = len(method) + len(target)
    framing: set[bytes] = set()
    for name, value in headers:
        size += len(name) + len(value) + 4
        if name in (b"content-length", b"transfer-encoding"):
            framing.add(name)
    if size > header_bytes:
        return Refusal(431, f"request line and headers are over {header_bytes} bytes")
    if len(framing) == 2:
        return Refusal(400, "both Content-Length and Transfer-Encoding")
    if version == b"1.0" and b"transfer-encoding" in framing:
        return Refusal(400, "Transfer-Encoding in an HTTP/1.0 request")
    if method == b"CONNECT" or not target.startswith(b"/"):
        return Refusal(400, "the request target must be a path")
    return _check_path(target.partition(b"?")[0])


def _check_path(path: bytes) -> Refusal | None:
    if b"%" not in path:
        return None
    decoded = unquote_to_bytes(path)
    try:
        text = decoded.decode("utf-8")
    except UnicodeDecodeError:
        return Refusal(400, "the path is not UTF-8")
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        return Refusal(400, "the path holds control characters")
    return None


def websocket_upgrade(method: bytes, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request asks for a WebSocket. Names in lower case."""
    upgrade = connection = False
    for name, value in headers:
        if name == b"upgrade":
            upgrade = upgrade or value.strip().lower() == b"websocket"
        elif name == b"connection":
            connection = connection or any(token.strip() == b"upgrade" for token in value.lower().split(b","))
    return upgrade and connection and method == b"GET"
