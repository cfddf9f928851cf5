"""Who may ask, and how much."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from pumas.contract.errors import ContractError
from pumas.http.body import read_body
from pumas.http.exchange import Scope
from pumas.http.guard import Guard, Policy, trusted
from pumas.http.stream import Answer
from tests.http.support import Client, Server, running, start

JSON = "Content-Type: application/json"


async def routes(scope: Scope, receive: Any, send: Any) -> None:
    """Echoes bodies; fails as the path says."""
    path = scope["path"]
    if path == "/refuse":
        raise ContractError("model_not_found", "no model of that name")
    if path == "/busy":
        raise ContractError("capability_unavailable", "the lane loads", retry_after=2.2)
    if path == "/group":
        async with trio.open_nursery():
            raise ContractError("ambiguous_model", "two profiles")
    if path == "/late":
        await start(send)
        await send({"type": "http.response.body", "body": b"some", "more_body": True})
        raise ContractError("provider_failure", "the engine crashed", outcome="unknown")
    if path == "/bug":
        raise KeyError("a bug")
    if path == "/health":
        await Answer(b"detail" if trusted(scope) else b"bare")(scope, receive, send)
        return
    await Answer(await read_body(receive))(scope, receive, send)


def guarded(**policy: Any) -> Guard:
    return Guard(routes, Policy(**policy))


async def ask(server: Server, *headers: str, path: str = "/", host: str | None = "localhost", body: bytes = b"") -> Any:
    """Status, headers and body of one answer on a connection of its own."""
    client = await server.connect()
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", *headers]
    if host is not None:
        lines.append(f"Host: {host}")
    if body:
        lines.append(f"Content-Length: {len(body)}")
    await client.send(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body)
    status, found = await client.head()
    length = int(found.get("content-length", 0))
    return status, found, await client.exactly(length)


async def code(server: Server, *headers: str, **kwargs: Any) -> tuple[int, str]:
    status, _, body = await ask(server, *headers, **kwargs)
    return status, msgspec.json.decode(body)["error"]["code"] if body.startswith(b"{") else ""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:1234", 200),
        ("gateway.example:8443", 200),
        ("gateway.example:8444", 403),
        ("gateway.example", 403),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("localhost:", 403),
        ("localhost:80x", 403),
        ("a b", 403),
        ("\xff", 403),
        ("", 403),
        ("user@localhost", 403),
        ("localhost, localhost", 403),
        ("::1", 403),
        ("localhost.", 403),
    ],
)
async def test_host(host: str, status: int) -> None:
    names = frozenset({"localhost", "127.0.0.1", "[::1]", "gateway.example:8443"})
    async with running(guarded(hosts=names)) as server:
        assert (await code(server, host=host))[0] == status


async def test_http_1_0_without_host_is_refused() -> None:
    async with running(guarded()) as server:
        client = await server.connect()
        await client.send(b"GET / HTTP/1.0\r\n\r\n")
        assert (await client.answer())[0] == 403


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost", 200),
        ("https://app.example", 200),
        ("https://localhost", 403),
        ("http://localhost:3000", 403),
        ("https://evil.example", 403),
        ("https://app.example.evil.example", 403),
        ("null", 403),
        ("", 403),
        ("*", 403),
    ],
)
async def test_origin(origin: str, status: int) -> None:
    async with running(guarded(origins=frozenset({"https://app.example"}))) as server:
        found, headers, _ = await ask(server, f"Origin: {origin}", JSON, body=b"[]")
        assert found == status
        assert headers.get("access-control-allow-origin") == (
            "https://app.example" if "app" in origin and found == 200 else None
        )


async def test_preflight() -> None:
    """Answered for an allowed origin before the key is asked for; refused for others."""
    policy = guarded(origins=frozenset({"https://app.example"}), api_keys=(b"key",))
    async with running(policy) as server:
        for origin, status in (("https://app.example", 204), ("https://evil.example", 403)):
            client = await server.connect()
            await client.get("/", f"Origin: {origin}", "Access-Control-Request-Method: POST", method="OPTIONS")
            assert (await client.head())[0] == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (["Authorization: Bearer first"], 200),
        (["Authorization: bearer second"], 200),
        ([], 401),
        (["Authorization: Bearer"], 401),
        (["Authorization: Bearer firs"], 401),
        (["Authorization: Bearer firstt"], 401),
        (["Authorization: Bearer f\xefrst"], 401),
        (["Authorization: Basic first"], 401),
        (["Authorization: first"], 401),
        (["Authorization: Bearer first", "Authorization: Bearer first"], 401),
    ],
)
async def test_key(headers: list[str], status: int) -> None:
    async with running(guarded(api_keys=(b"first", b"second"))) as server:
        found, answer, _ = await ask(server, *headers)
        assert found == status
        assert ("www-authenticate" in answer) == (status == 401)


async def test_health_is_open_and_every_other_path_is_not() -> None:
    async with running(guarded(api_keys=(b"key",))) as server:
        assert (await ask(server, path="/health"))[2] == b"detail"  # the test is on this machine
        for path in ("/health/", "/healthz", "/Health", "//health", "/x/../health"):
            assert (await code(server, path=path)) == (401, "unauthenticated")


def test_trust_needs_a_key_or_this_machine() -> None:
    assert trusted({"state": {"authenticated": True}, "client": ("192.0.2.1", 1)})
    assert not trusted({"state": {"authenticated": False}, "client": ("192.0.2.1", 1)})
    assert trusted({"state": {}, "client": ("127.0.0.1", 1)})
    assert trusted({"state": {}, "client": ("::1", 1)})
    assert trusted({"state": {}, "client": None})
    assert not trusted({"state": {}, "client": ("unknown", 1)})


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (JSON, 200),
        ("Content-Type: application/JSON; charset=utf-8", 200),
        ("Content-Type: text/plain", 400),
        ("Content-Type: application/x-www-form-urlencoded", 400),
        ("Content-Type: application/json, text/plain", 400),
        ("X-None: none", 400),
    ],
)
async def test_content_type(header: str, status: int) -> None:
    async with running(guarded()) as server:
        assert (await code(server, header, body=b"[]"))[0] == status


async def test_compressed_bodies_are_refused() -> None:
    async with running(guarded()) as server:
        assert await code(server, JSON, "Content-Encoding: gzip", body=b"[]") == (400, "invalid_request")
        assert (await code(server, JSON, "Content-Encoding: identity", body=b"[]"))[0] == 200


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(("size", "status"), [(1000, 200), (1001, 413)])
async def test_the_bodys_bound(declared: bool, size: int, status: int) -> None:
    """Before it is read where its length is declared, else while it arrives."""
    async with running(guarded(body_bytes=1000)) as server:
        client = await server.connect()
        if declared:
            await client.get("/", JSON, f"Content-Length: {size}", method="POST")
            await client.send(b"x" * size if status == 200 else b"")
        else:
            await client.get("/", JSON, "Transfer-Encoding: chunked", method="POST")
            await client.send(f"{size:x}\r\n".encode() + b"x" * size + b"\r\n0\r\n\r\n")
        found, body = await client.answer()
        assert found == status
        if status == 413:
            error = msgspec.json.decode(body)["error"]
            assert error == {
                "code": "request_limit",
                "outcome": "not_admitted",
                "message": "request body is 1001, over the limit of 1000 bytes",
            }


async def test_bodies_of_all_requests_together_are_bounded() -> None:
    guard = guarded(all_bodies_bytes=150_000)
    async with running(guard) as server:
        first = await server.connect()
        await first.get("/", JSON, "Content-Length: 100001", method="POST")
        await first.send(b"x" * 100_000)
        while guard.bodies_bytes < 100_000:
            await trio.testing.wait_all_tasks_blocked(0.01)
        status, headers, _ = await ask(server, JSON, body=b"x" * 100_000)
        assert (status, headers["retry-after"]) == (503, "1")
        await first.send(b"x")
        assert (await first.answer())[0] == 200
        while guard.bodies_bytes:  # given back once the request's task is over
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert (await ask(server, JSON, body=b"x" * 100_000))[0] == 200


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/refuse", (404, "model_not_found")),
        ("/busy", (503, "capability_unavailable")),
        ("/group", (409, "ambiguous_model")),
        ("/bug", (500, "")),
    ],
)
async def test_errors_become_answers_as_long_as_none_has_begun(path: str, expected: tuple[int, str]) -> None:
    async with running(guarded()) as server:
        assert await code(server, path=path) == expected


async def test_retry_after_is_rounded_up() -> None:
    async with running(guarded()) as server:
        assert (await ask(server, path="/busy"))[1]["retry-after"] == "3"


async def test_an_error_in_an_answer_cuts_it() -> None:
    async with running(guarded()) as server:
        client: Client = await server.connect()
        await client.get("/late")
        await client.head()
        assert await client.chunk() == b"some"
        assert await client.rest() == b""


async def test_another_shape_of_errors() -> None:
    def plain(scope: Scope, error: ContractError) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        return error.status, [(b"content-type", b"text/plain")], f"{scope['path']} {error.code}".encode()

    async with running(Guard(routes, Policy(), plain)) as server:
        assert (await ask(server, path="/refuse"))[2] == b"/refuse model_not_found"
