"""The commands that ask a running gateway: `pumas models` and `pumas probe`."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import msgspec

from pumas.config import API_KEY_VARIABLE, UserError

MAX_ANSWER_BYTES = 32 * 1024 * 1024


class ClientError(UserError):
    """The gateway could not be asked, or said no."""


def ask(url: str, method: str, path: str, body: Any = None, timeout_s: float | None = 10.0) -> Any:
    """One request to the gateway at `url` (http://, https://, or unix: and a socket's path); its decoded JSON answer.

    The API key is taken from PUMAS_API_KEY. Blocks; `timeout_s` None waits as long as it takes.
    Raises: ClientError.
    """
    base, socket_path = url.rstrip("/").removesuffix("/v1"), None
    if url.startswith("unix:"):
        base, socket_path = "http://localhost", url.removeprefix("unix:").removeprefix("//")
    elif urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise ClientError(f"{url} is no URL; expected http://HOST:PORT, https://HOST:PORT or unix:PATH")
    headers: dict[bytes | str, bytes | str] = {"accept": "application/json", "content-type": "application/json"}
    key = os.environ.get(API_KEY_VARIABLE)
    if key:
        headers["authorization"] = f"Bearer {key}"
    content = b"" if body is None else msgspec.json.encode(body)
    timeouts = {"connect": 5.0, "read": timeout_s, "write": timeout_s, "pool": timeout_s}
    try:
        with httpcore2.ConnectionPool(uds=socket_path) as pool:
            response = pool.request(
                method, base + path, headers=headers, content=content, extensions={"timeout": timeouts}
            )
    except (OSError, httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError) as error:
        raise ClientError(
            f"{url} does not answer ({str(error) or type(error).__name__}); is the gateway running?"
        ) from error
    try:
        answer = msgspec.json.decode(response.content) if response.content else None
    except msgspec.DecodeError as error:
        raise ClientError(f"{url} answered {response.status} with something that is not JSON") from error
    if response.status >= 400:
        found = answer.get("error") if isinstance(answer, dict) else None
        message = found.get("message") if isinstance(found, dict) else None
        if response.status == 401:
            wrong = "is not the one it takes" if key else "is not set"
            raise ClientError(f"{url} needs its API key: {API_KEY_VARIABLE} {wrong}; export {API_KEY_VARIABLE}=...")
        raise ClientError(f"{url} answered {response.status}: {message or 'no message'}")
    return answer


def models_table(url: str) -> str:
    """What `pumas models` prints: one line for each served (alias, profile)."""
    answer = ask(url, "GET", "/v1/served-models")
    rows = [("MODEL", "PROFILE", "STATE", "CONTEXT", "CAPABILITIES", "NOTES")]
    for entry in answer["models"]:
        available = [
            capability["capability"]
            for capability in entry["capabilities"]
            if capability["availability"]["state"] == "available"
        ]
        notes = [f"{key}={' '.join(str(value).split())}" for key, value in (entry.get("detail") or {}).items() if value]
        rows.append(
            (
                entry["model"],
                entry["profile"],
                entry["load_state"],
                str(entry.get("context_tokens") or "-"),
                ",".join(available) or "-",
                " ".join(notes) or "-",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    return "\n".join(lines)


def probe(url: str, alias: str, profile: str | None) -> str:
    """Try a quarantined or failed model again; returns what to print."""
    body = {"model": alias} | ({} if profile is None else {"profile": profile})
    answer = ask(url, "POST", "/admin/probe", body, timeout_s=None)
    return f"{answer['model']} ({answer['profile']}) is {answer['load_state']}"
