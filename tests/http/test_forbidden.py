"""What docs/http.md forbids appears nowhere in the gateway's code."""

from __future__ import annotations

import ast
from pathlib import Path

import pumas

FORBIDDEN = {
    "BaseHTTPMiddleware": "turns faults into clean ends",
    "StreamingResponse": "leaves closing its generator to the garbage collector",
    "is_disconnected": "never turns true under trio",
    "server_names": "a Host header that is not ASCII ends the server",
    "read_timeout": "is a deadline on generation",
    "worker_serve": "one client can end it",
    "TCPServer": "its writes cannot be cancelled",
    "PerMessageDeflate": "a few bytes become many",
    "H2Protocol": "buffers without bound",
}


def names(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.add(node.name.rpartition(".")[2])
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found


def sources(below: str = "") -> list[Path]:
    files = sorted((Path(pumas.__file__).parent / below).rglob("*.py"))
    assert files
    return files


def test_nothing_forbidden_is_used() -> None:
    used = {(path.name, name) for path in sources() for name in names(ast.parse(path.read_text()))}
    assert not {(path, name, FORBIDDEN[name]) for path, name in used if name in FORBIDDEN}


def test_no_socket_is_written_under_a_shield() -> None:
    """A shielded write is one that a client can hold up for ever."""
    assert not [path.name for path in sources("http") if "shield" in names(ast.parse(path.read_text()))]
