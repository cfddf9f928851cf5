"""The client itself: TLS, and the line between sent and not sent."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trustme

from pumas.contract.errors import ContractError
from pumas.providers.upstream import client
from pumas.providers.upstream.client import Upstream
from tests.upstream.fake import fake

KEY = "sk-key-for-nobody-else"


@asynccontextmanager
async def secured(authority: trustme.CA, received: list[bytes]) -> AsyncIterator[str]:
    """A TLS server that answers every request with 200; its URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(context)

    async def handle(plain: trio.SocketStream) -> None:
        stream = trio.SSLStream(plain, context, server_side=True, https_compatible=True)
        try:
            received.append(await stream.receive_some(65536))
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handle, listeners)
        yield f"https://localhost:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def test_tls_is_verified_before_anything_is_said() -> None:
    """With the authority it trusts it speaks; with another it says nothing, not even its key."""
    authority, trusted = trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusted)
    received: list[bytes] = []
    with trio.fail_after(60):
        async with secured(authority, received) as url:
            async with Upstream("tls", url, key=KEY, ssl_context=trusted).request(b"GET", b"/x") as response:
                assert await response.read() == b"ok"
            assert b"authorization: bearer " + KEY.encode() in received.pop().lower()
            with pytest.raises(ContractError) as caught:
                async with Upstream("tls", url, key=KEY).request(b"GET", b"/x"):
                    pass
            assert (caught.value.code, caught.value.outcome) == ("capability_unavailable", "not_admitted")
            assert url not in caught.value.message
        assert received == []


async def test_connecting_is_all_that_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts but never shakes hands is left; the same patience does not end a slow answer."""
    monkeypatch.setattr(client, "CONNECT_S", 0.05)

    async def mute(stream: trio.SocketStream) -> None:
        with trio.move_on_after(60):
            async with stream:
                while await stream.receive_some(65536):
                    pass

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, mute, listeners)
            with pytest.raises(ContractError) as caught:
                async with Upstream("mute", f"https://localhost:{port}").request(b"GET", b"/x"):
                    pass
            assert (caught.value.code, caught.value.outcome) == ("capability_unavailable", "not_admitted")
            nursery.cancel_scope.cancel()


async def test_neither_proxy_nor_cookies_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    heads: list[bytes] = []
    async with fake() as server:

        async def answer(exchange: object) -> None:
            heads.append(exchange.head)  # type: ignore[attr-defined]
            await exchange.send(  # type: ignore[attr-defined]
                b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n"
            )

        server.answers[b"/x"] = answer
        upstream = Upstream("fake", server.url)
        for _ in range(2):
            async with upstream.request(b"GET", b"/x") as response:
                assert response.status == 200
    assert len(heads) == 2
    assert b"cookie" not in heads[1].lower()
