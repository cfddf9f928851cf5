"""The HTTP client for upstream servers: one connection for each request, and a clear line between sent and not sent.

No redirects, no proxy from the environment, no cookies, no retry, no decompression, and no deadline but the one for
connecting. A connection is never used twice: what a server sends behind its answer can reach nobody else's request.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import httpcore2
import trio

from pumas.contract.errors import ContractError
from pumas.providers.upstream.url import parse_url

CONNECT_S = 10.0
"""Seconds for connecting, TLS included: the only bound on an upstream's time."""
MAX_BODY_BYTES = 32 * 1024 * 1024
"""Cumulative bound of a response (contract, Model operations)."""
MAX_HEADER_BYTES = 256 * 1024
"""All that may come before a response's headers are complete, interim responses included."""


class _Stream(httpcore2.AsyncNetworkStream):
    """A network stream that knows whether anything was sent, and bounds what comes before the headers' end."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream, exchange: _Exchange) -> None:
        self._inner, self._exchange = inner, exchange

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(max_bytes, timeout)
        if self._exchange.in_headers:
            self._exchange.header_bytes += len(data)
            if self._exchange.header_bytes > MAX_HEADER_BYTES:
                raise httpcore2.RemoteProtocolError(f"more than {MAX_HEADER_BYTES} bytes before the response's headers")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._exchange.sent = True
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, self._exchange.connect_left())
        return _Stream(inner, self._exchange)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Exchange(httpcore2.AsyncNetworkBackend):
    """The network of one request."""

    def __init__(self) -> None:
        self._trio = httpcore2.TrioBackend()
        self._connect_by = trio.current_time() + CONNECT_S
        self.sent = False
        self.in_headers = True
        self.header_bytes = 0

    def connect_left(self) -> float:
        """Seconds of the one bound on connecting, TLS included, that are left."""
        return max(0.0, self._connect_by - trio.current_time())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(
            await self._trio.connect_tcp(host, port, self.connect_left(), local_address, socket_options), self
        )

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return _Stream(await self._trio.connect_unix_socket(path, self.connect_left(), socket_options), self)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)


class UpstreamResponse:
    """The answer's head, and its body as it comes. Valid inside Upstream.request only."""

    def __init__(self, response: httpcore2.Response, failure: _Failure) -> None:
        self._response, self._failure = response, failure
        self.status: int = response.status
        found = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        self.content_type = found.get(b"content-type", "")
        self.encoding = found.get(b"content-encoding", "").strip().lower()
        self.retry_after = found.get(b"retry-after")
        self.is_stream = self.content_type.lower().startswith("text/event-stream")

    async def chunks(self, limit: int = MAX_BODY_BYTES) -> AsyncGenerator[bytes, None]:
        """The body's pieces as they come; use under aclosing. Blocks without a deadline.

        Raises: ContractError `transport_lost` when it is cut, `response_limit` over `limit` bytes.
        """
        total = 0
        try:
            async with aclosing(self._response.aiter_stream()) as pieces:
                async for piece in pieces:
                    total += len(piece)
                    if total > limit:
                        raise ContractError(
                            "response_limit", f"the provider's response is over {limit} bytes", outcome="unknown"
                        )
                    yield piece
        except _NETWORK_ERRORS as error:
            raise self._failure.from_network(error) from error

    async def read(self, limit: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises as `chunks` does."""
        async with aclosing(self.chunks(limit)) as pieces:
            return b"".join([piece async for piece in pieces])


_NETWORK_ERRORS = (
    httpcore2.NetworkError,
    httpcore2.ProtocolError,
    httpcore2.TimeoutException,
    httpcore2.UnsupportedProtocol,
)


class _Failure:
    """Turns what the network raised into the contract's error, on the right side of the line."""

    def __init__(self, provider: str, exchange: _Exchange) -> None:
        self._provider, self._exchange = provider, exchange

    def from_network(self, error: Exception) -> ContractError:
        if not self._exchange.sent:
            return ContractError(
                "capability_unavailable",
                f"the provider {self._provider} cannot be reached",
                retry_after=1.0,
            )
        return ContractError(
            "transport_lost",
            f"the connection to the provider {self._provider} broke before its answer was complete",
            outcome="unknown",
        )


class Upstream:
    """One upstream server by URL (`http://`, `https://`) or Unix socket (`unix:/path`)."""

    def __init__(
        self, provider: str, url: str, *, key: str | None = None, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        """Raises ValueError for a URL that cannot be used."""
        self.provider = provider
        self._address = parse_url(url)
        self._ssl = ssl_context or (httpcore2.default_ssl_context() if self._address.scheme == "https" else None)
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ValueError("a key is printable ASCII")
        self._authorization = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]

    @asynccontextmanager
    async def request(
        self, method: bytes, path: bytes, body: bytes | None = None, *, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> AsyncIterator[UpstreamResponse]:
        """Send one request and enter with the response's head. Leaving closes the connection, whatever happened.

        Blocks without a deadline once connected; connecting is bounded by CONNECT_S. Cancelling closes the transport.
        Raises: ContractError `capability_unavailable`/`not_admitted` while nothing was sent, `transport_lost`/`unknown`
        afterwards, `provider_failure`/`unknown` for a redirect, `invalid_provider_result` for a compressed answer.
        """
        exchange = _Exchange()
        failure = _Failure(self.provider, exchange)
        address = self._address
        scheme, host = address.scheme.encode(), address.host.encode()
        connection = httpcore2.AsyncHTTPConnection(
            origin=httpcore2.Origin(scheme, host, address.port),
            ssl_context=self._ssl,
            uds=address.socket,
            network_backend=exchange,
            keepalive_expiry=0.0,
        )
        fixed = [
            (b"host", address.netloc),
            (b"accept-encoding", b"identity"),
            (b"connection", b"close"),
            *self._authorization,
            *headers,
        ]
        if body is not None:
            fixed += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=scheme, host=host, port=address.port, target=address.prefix.encode() + path),
            headers=fixed,
            content=body,
            extensions={"timeout": {"connect": CONNECT_S, "read": None, "write": None, "pool": None}},
        )
        try:
            try:
                response = await connection.handle_async_request(request)
            except _NETWORK_ERRORS as error:
                raise failure.from_network(error) from error
            exchange.in_headers = False
            try:
                if 300 <= response.status < 400:
                    raise ContractError(
                        "provider_failure",
                        f"the provider {self.provider} answered with a redirect ({response.status}), which is refused",
                        outcome="unknown",
                    )
                answer = UpstreamResponse(response, failure)
                if answer.encoding not in ("", "identity"):
                    raise ContractError(
                        "invalid_provider_result",
                        f"the provider {self.provider} sent a compressed answer, which it was asked not to do",
                        outcome="unknown",
                    )
                yield answer
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                    await response.aclose()
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 1.0):
                await connection.aclose()
