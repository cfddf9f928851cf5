"""Who may ask, and how much: the ASGI layer in front of every route.

It refuses foreign hosts and origins (DNS rebinding, cross-site requests), requests without the key, bodies that are too
large or not JSON; it counts bodies while they arrive; and it turns a `ContractError` that comes out of the application
into an answer, as long as none has begun. After that only one honest thing is left: to cut the answer.
"""

from __future__ import annotations

import hmac
import ipaddress
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from pumas.contract.errors import ContractError, encode_error, over_limit, retry_after_header
from pumas.contract.limits import MAX_REQUEST_BYTES
from pumas.http.exchange import AnswerCut, AsgiApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

Headers = list[tuple[bytes, bytes]]
RenderError = Callable[[Scope, ContractError], tuple[int, Headers, bytes]]
"""How a route family writes an error: status, headers (with the content type), body."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
BODY_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_PREFLIGHT: Headers = [
    (b"access-control-allow-methods", b"GET, POST"),
    (b"access-control-allow-headers", b"authorization, content-type"),
    (b"access-control-max-age", b"600"),
]
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]{1,5})?")


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the guard lets through (decision C10)."""

    hosts: frozenset[str] = LOOPBACK_NAMES
    """Names, or `name:port`, that `Host` may have; IPv6 in brackets; `*` for any."""
    origins: frozenset[str] = frozenset()
    """Origins besides the server's own, as in `https://example.org`; their pages may read the answers."""
    api_keys: tuple[bytes, ...] = ()
    """Without one, everybody who reaches the socket may ask."""
    open_paths: frozenset[str] = frozenset({"/health"})
    """Answered without a key; the answer must tell no more than it would tell anybody."""
    body_bytes: int = MAX_REQUEST_BYTES
    all_bodies_bytes: int = 512 << 20
    """Bodies of all requests that are being served, together."""


def contract_error(scope: Scope, error: ContractError) -> tuple[int, Headers, bytes]:
    """An error in the contract's own shape."""
    headers: Headers = [(b"content-type", b"application/json")]
    retry = retry_after_header(error)
    if retry is not None:
        headers.append((b"retry-after", retry.encode()))
    return error.status, headers, encode_error(error)


def trusted(scope: Scope) -> bool:
    """Whether the caller may see more than anybody: it showed a key, or it is on this machine (decision D8)."""
    return bool(scope["state"].get("authenticated")) or _local(scope)


def _local(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return True  # a Unix socket
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


class Guard:
    """ASGI middleware. Everything that reaches `app` passed the policy; its `receive` counts the body."""

    def __init__(self, app: AsgiApp, policy: Policy | None = None, render: RenderError = contract_error) -> None:
        self._app = app
        self._policy = policy or Policy()
        self._render = render
        self._keys = tuple(sha256(key).digest() for key in self._policy.api_keys)
        self._bodies_bytes = 0

    @property
    def bodies_bytes(self) -> int:
        """Body bytes of the requests being served; zero when none is."""
        return self._bodies_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. Cancel: passes through, the body's bytes are given back."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close"})
            return
        begun = False
        held = 0
        shared: Headers = []

        async def counted() -> Message:
            nonlocal held
            message = await receive()
            n = len(message.get("body", b""))
            if n:
                held += n
                self._bodies_bytes += n
                self._check_held(held)
            return message

        async def watched(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                if shared:
                    message["headers"] = [*message.get("headers", ()), *shared]
            await send(message)

        try:
            shared = self._check_origin(scope)
            if shared and scope["method"] == "OPTIONS" and _header(scope, b"access-control-request-method"):
                await _answer(watched, 204, _PREFLIGHT, b"")
                return
            self._check(scope)
            await self._app(scope, counted, watched)
        except (ContractError, BaseExceptionGroup) as raised:
            error = _sole(raised)
            if error is None:
                raise
            if begun:
                log.warning("answer cut: %s%s", error.code, "" if error.logged else f": {error.message}")
                raise AnswerCut(error.code) from raised
            await _answer(watched, *self._render(scope, error))
        finally:
            self._bodies_bytes -= held

    def _check_origin(self, scope: Scope) -> Headers:
        """Refuse foreign hosts and origins; the headers that let an allowed foreign origin read the answer."""
        host = _header(scope, b"host")
        if not self._host_allowed(host):
            raise ContractError("forbidden", f"Host {_shown(host)} is not one of this server's names")
        origin = _header(scope, b"origin")
        if origin is None or origin == f"{scope['scheme']}://{host}":
            return []
        if origin not in self._policy.origins:
            raise ContractError("forbidden", f"Origin {_shown(origin)} is not allowed")
        return [(b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin")]

    def _host_allowed(self, host: str | None) -> bool:
        found = _HOST.fullmatch((host or "").lower())
        if found is None:
            return False
        hosts = self._policy.hosts
        return "*" in hosts or found[1] in hosts or found[0] in hosts

    def _check(self, scope: Scope) -> None:
        """The key, then what can be said of the body before it is read."""
        authenticated = self._authenticated(scope)
        scope["state"]["authenticated"] = authenticated
        if self._keys and not authenticated and scope["path"] not in self._policy.open_paths:
            raise ContractError(
                "unauthenticated",
                "no valid API key came with the request; send it as a bearer token in the Authorization header",
            )
        length = _header(scope, b"content-length")
        if length is not None and int(length) > self._policy.body_bytes:
            raise over_limit("request body", int(length), self._policy.body_bytes, "bytes")
        if (length is None or int(length) == 0) and _header(scope, b"transfer-encoding") is None:
            return
        if scope["method"] in BODY_METHODS:
            kind = (_header(scope, b"content-type") or "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise ContractError("invalid_request", f"Content-Type must be application/json, not {_shown(kind)}")
        if (_header(scope, b"content-encoding") or "identity").lower() != "identity":
            raise ContractError("invalid_request", "Content-Encoding: bodies are taken as they are, not compressed")

    def _authenticated(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) != 1:
            return False
        scheme, _, credential = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        digest = sha256(credential.strip()).digest()
        # Every key is compared, in constant time, on digests: neither the place nor the length of a match shows.
        return sum([hmac.compare_digest(digest, key) for key in self._keys]) > 0

    def _check_held(self, held: int) -> None:
        if held > self._policy.body_bytes:
            raise over_limit("request body", held, self._policy.body_bytes, "bytes")
        if self._bodies_bytes > self._policy.all_bodies_bytes:
            raise ContractError(
                "capability_unavailable",
                f"request bodies in progress are over {self._policy.all_bodies_bytes} bytes together",
                retry_after=1.0,
            )


def _sole(raised: BaseException) -> ContractError | None:
    """The contract error that an exception is, or that its group consists of."""
    while isinstance(raised, BaseExceptionGroup) and len(raised.exceptions) == 1:
        raised = raised.exceptions[0]
    return raised if isinstance(raised, ContractError) else None


def _header(scope: Scope, name: bytes) -> str | None:
    """The header's only value; where it was given several times they are joined, as HTTP reads them."""
    values = [value for key, value in scope["headers"] if key == name]
    return b", ".join(values).decode("latin-1") if values else None


def _shown(value: str | None) -> str:
    return "(none)" if not value else ascii(value[:100])


async def _answer(send: Send, status: int, headers: Headers, body: bytes) -> None:
    if status == 401:
        headers = [*headers, (b"www-authenticate", b"Bearer")]
    if status != 204:
        headers = [*headers, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
