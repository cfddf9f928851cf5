"""A provider that misbehaves: one typed end with the right code and outcome, the connection released, nothing of its
internals in the message; and never a success."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio

from pumas.contract.errors import ContractError
from pumas.operations import Embed, GenerateText, Message, Rerank
from pumas.providers.upstream.provider import UpstreamProvider
from synapse import Limits
from tests.upstream.fake import CHUNKED, DONE, GOOD, OK, SSE, Answer, Exchange, event, fake, provider, said, sends

SECRET = "/srv/internal/path"
CHAT = GenerateText(capability="chat_generation", messages=(Message(role="user", content="Hi"),), stream=True)


def byte_by_byte(data: bytes) -> Answer:
    async def answer(exchange: Exchange) -> None:
        for i in range(len(data)):
            await exchange.send(data[i : i + 1])

    return answer


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def generate(made: UpstreamProvider) -> tuple[str, str]:
    """(text, finish reason) of one streamed generation."""
    with trio.fail_after(60):
        async with made.generate(CHAT) as stream:
            text = "".join([delta.text async for delta in stream])
            return text, stream.finish_reason


async def failure(call: Callable[[], Awaitable[object]]) -> ContractError:
    """The error that the call must end with."""
    with pytest.raises(ContractError) as caught:
        await call()
    return caught.value


BAD: dict[str, tuple[Answer, str]] = {
    "closes in mid-event": (sends(SSE + said("Hel") + b'data: {"choi'), "transport_lost"),
    "ends without [DONE]": (sends(SSE + said("Hello") + said(finish="stop")), "transport_lost"),
    "ends without a finish reason": (sends(SSE + said("Hello") + DONE), "transport_lost"),
    "is cut inside a chunk": (sends(CHUNKED + chunk(GOOD)[:-9]), "transport_lost"),
    "has no last chunk": (sends(CHUNKED + chunk(GOOD)), "transport_lost"),
    "sends an error object in mid-stream": (
        sends(SSE + said("Hel") + event({"error": {"message": "slot lost", "trace": SECRET}})),
        "provider_failure",
    ),
    "sends empty choices": (sends(SSE + event({"choices": []}) + DONE), "invalid_provider_result"),
    "sends two choices": (sends(SSE + event({"choices": [{"index": 0}, {"index": 1}]})), "invalid_provider_result"),
    "sends another index": (sends(SSE + event({"choices": [{"index": 3}]})), "invalid_provider_result"),
    "sends an unknown finish reason": (sends(SSE + said("a", "tired") + DONE), "invalid_provider_result"),
    "sends text behind the end": (sends(SSE + said("a", "stop") + said("b") + DONE), "invalid_provider_result"),
    "ends twice": (sends(SSE + said("a", "stop") + said(finish="stop") + DONE), "invalid_provider_result"),
    "goes on behind [DONE]": (sends(SSE + GOOD + said("more")), "invalid_provider_result"),
    "sends no JSON": (sends(SSE + event(SECRET.encode())), "invalid_provider_result"),
    "sends broken UTF-8": (sends(SSE + b"data: \xff\xfe\n\n"), "invalid_provider_result"),
    "sends a line of 300 kB": (sends(SSE + b"data: " + b"x" * 300_000 + b"\n\n"), "invalid_provider_result"),
    "has the wrong content type": (sends(OK + b"connection: close\r\n\r\n" + GOOD), "invalid_provider_result"),
    "compresses": (
        sends(SSE.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + b"\x1f\x8b"),
        "invalid_provider_result",
    ),
    "redirects": (
        sends(b"HTTP/1.1 307 Elsewhere\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n"),
        "provider_failure",
    ),
    "floods with interim responses": (sends(*[b"HTTP/1.1 102 Processing\r\n\r\n" * 1000] * 20), "transport_lost"),
    "closes before it answers": (sends(), "transport_lost"),
    "speaks no HTTP": (sends(b"SSH-2.0-OpenSSH_9.2\r\n\r\n"), "transport_lost"),
    "refuses": (
        sends(
            b'HTTP/1.1 400 Bad\r\ncontent-length: 45\r\n\r\n{"error":{"message":"too many tokens","x":12}}'[:-1] + b"}"
        ),
        "provider_failure",
    ),
}


@pytest.mark.parametrize("name", BAD)
async def test_it_is_one_typed_failure(name: str) -> None:
    answer, code = BAD[name]
    async with fake() as server, provider(server) as made:
        server.answers[b"/v1/chat/completions"] = answer
        error = await failure(lambda: generate(made))
    assert (error.code, error.outcome) == (code, "unknown")
    assert SECRET not in error.message


GOOD_WAYS: dict[str, Answer] = {
    "two events in one segment": sends(SSE + GOOD),
    "one byte a segment": byte_by_byte(SSE + GOOD),
    "CRLF, comments and data of several lines": sends(
        SSE
        + b": hello\r\n\r\n"
        + b'data: {"choices":\r\ndata: [{"index": 0, "delta": {"content": "Hello"}}]}\r\n\r\n'
        + said(finish="stop").replace(b"\n", b"\r\n")
        + DONE
    ),
    "chunked": sends(CHUNKED, *[chunk(bytes([b])) for b in GOOD], b"0\r\n\r\n"),
    "slow headers": byte_by_byte(SSE + GOOD),
    "a second response behind the first": sends(
        CHUNKED + chunk(GOOD) + b"0\r\n\r\n" + OK + b"content-length: 0\r\n\r\n"
    ),
}


@pytest.mark.parametrize("name", GOOD_WAYS)
async def test_what_is_only_unusual_is_served(name: str) -> None:
    async with fake() as server, provider(server) as made:
        server.answers[b"/v1/chat/completions"] = GOOD_WAYS[name]
        assert await generate(made) == ("Hello", "stop")


async def test_every_cut_of_a_good_stream_fails() -> None:
    """P19: never a success but for the whole; the cut falls on every byte of the body in turn."""
    async with fake() as server, provider(server) as made:
        for cut in range(len(GOOD)):
            server.answers[b"/v1/chat/completions"] = sends(SSE + GOOD[:cut])
            error = await failure(lambda: generate(made))
            assert (error.code, error.outcome) == ("transport_lost", "unknown"), cut


async def test_one_that_never_ends_is_left_by_cancelling_and_released() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE + said("Hel"))
        began.set()
        await exchange.until_closed()
        released.set()

    began, released = trio.Event(), trio.Event()
    async with fake() as server, provider(server) as made:
        server.answers[b"/v1/chat/completions"] = answer

        async def client(scope: trio.CancelScope) -> None:
            with scope:
                async with made.generate(CHAT) as stream:
                    async for _ in stream:
                        pass

        scope = trio.CancelScope()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client, scope)
                await began.wait()
                scope.cancel()
            await released.wait()


async def test_permits_are_kept_to_the_end_and_given_back() -> None:
    """What finds no place in time was not admitted; what a client leaves frees its place (C4, C8)."""
    began = trio.Event()

    async def answer(exchange: Exchange) -> None:
        await exchange.send(SSE + said("Hel"))
        began.set()
        await exchange.until_closed()

    async with fake() as server, provider(server, requests=1, limits=Limits(max_queue_s=0.05)) as made:
        server.answers[b"/v1/chat/completions"] = answer
        scope = trio.CancelScope()

        async def client() -> None:
            with scope:
                async with made.generate(CHAT) as stream:
                    async for _ in stream:
                        pass

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client)
                await began.wait()
                assert made.health().detail["running"] == "1"
                error = await failure(lambda: generate(made))
                assert (error.code, error.outcome) == ("capability_unavailable", "not_admitted")
                assert error.retry_after is not None
                assert len(server.requests) == 1
                scope.cancel()
        assert made.health().detail == {"running": "0", "queued": "0"}
        server.answers[b"/v1/chat/completions"] = sends(SSE + GOOD)
        assert await generate(made) == ("Hello", "stop")


async def test_one_that_cannot_be_reached_is_not_admitted() -> None:
    async with fake() as server, provider(server) as made:
        made._upstream._address = made._upstream._address._replace(port=1)
        error = await failure(lambda: generate(made))
    assert (error.code, error.outcome) == ("capability_unavailable", "not_admitted")


FINITE: dict[str, tuple[object, str]] = {
    "missing vectors": ({"data": [{"index": 0, "embedding": [1.0, 2.0]}]}, "embed"),
    "an index twice": ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]}, "embed"),
    "two dimensions": ({"data": [{"index": 0, "embedding": [1.0]}, {"index": 1, "embedding": [1.0, 2.0]}]}, "embed"),
    "a zero vector": ({"data": [{"index": 0, "embedding": [0.0]}, {"index": 1, "embedding": [1.0]}]}, "embed"),
    "an infinite value": (b'{"data":[{"index":0,"embedding":[1e999]},{"index":1,"embedding":[1]}]}', "embed"),
    "a document not scored": ({"results": [{"index": 0, "relevance_score": 1.0}]}, "rerank"),
    "a score twice": ({"results": [{"index": 1, "relevance_score": 1.0}] * 2}, "rerank"),
    "a foreign index": (
        {"results": [{"index": 0, "relevance_score": 1.0}, {"index": 2, "relevance_score": 1.0}]},
        "rerank",
    ),
}


@pytest.mark.parametrize("name", FINITE)
async def test_a_finite_result_that_is_not_coherent_is_invalid(name: str) -> None:
    value, which = FINITE[name]

    async def answer(exchange: Exchange) -> None:
        if isinstance(value, bytes):
            await exchange.send(OK + b"content-length: %d\r\n\r\n" % len(value) + value)
        else:
            await exchange.send_json(value)

    async with fake() as server, provider(server, recorded=("text_embedding", "rerank")) as made:
        server.answers |= {b"/v1/embeddings": answer, b"/v1/rerank": answer}
        if which == "embed":
            error = await failure(lambda: made.embed(Embed(inputs=("a", "b"))))
        else:
            error = await failure(lambda: made.rerank(Rerank(query="q", documents=("a", "b"))))
    assert (error.code, error.outcome) == ("invalid_provider_result", "unknown")


async def test_nothing_is_sent_twice_and_no_key_leaks() -> None:
    """One request for each operation, whatever happens to it; the key is in the header only."""
    async with fake() as server, provider(server, key="sk-secret-of-the-provider") as made:
        server.answers[b"/v1/chat/completions"] = sends()
        error = await failure(lambda: generate(made))
        assert len(server.requests) == 1
        head, body = server.requests[0]
    assert b"authorization: Bearer sk-secret-of-the-provider" in head
    assert b"sk-secret" not in body
    assert "sk-secret" not in error.message
    assert b"cookie" not in head.lower()
