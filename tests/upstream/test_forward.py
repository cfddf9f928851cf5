"""OpenAI routes are passed on byte for byte, bounded, and a fault never looks like an end; typed streams of the same
provider end in one typed event (decisions D13, C7)."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.gateway import BOUND_S, Reply
from tests.upstream.fake import (
    CHUNKED,
    DONE,
    GOOD,
    OK,
    SSE,
    Answer,
    Exchange,
    answers_json,
    event,
    models,
    said,
    sends,
)
from tests.upstream.gateway import KEY, Upstreams

CHAT = "/v1/chat/completions"
MIB = 1024 * 1024


@pytest.fixture
def fake(upstreams: Upstreams) -> Iterator[dict[bytes, Answer]]:
    """The fake's answers by path; what a test sets is gone after it."""
    before = dict(upstreams.fake.answers)
    upstreams.fake.requests.clear()
    yield upstreams.fake.answers
    upstreams.fake.answers.clear()
    upstreams.fake.answers.update(before)


def chat(upstreams: Upstreams, **fields: Any) -> Reply:
    messages = [{"role": "user", "content": "Hi"}]
    return upstreams.gateway.post(CHAT, {"model": "faked", "messages": messages} | fields)


def chunked(*pieces: bytes, end: bool = True) -> Answer:
    body = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return sends(CHUNKED + body + (b"0\r\n\r\n" if end else b""))


def test_the_request_goes_out_as_it_was_written(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    """Only `model` changes and `profile` goes; numbers keep their spelling, unknown fields stay."""
    fake[CHAT.encode()] = answers_json({"any": "thing"})
    body = (
        b'{"model":"faked", "profile":"p", "temperature":1.50, "seed":9007199254740993,'
        b' "x":{"profile":"inner","model":"inner"}, "messages":[{"role":"user","content":"H\\u00ef"}]}'
    )
    reply = upstreams.gateway.post(CHAT, body)
    assert (reply.status, reply.json()) == (200, {"any": "thing"})
    ((head, sent),) = upstreams.fake.requests
    assert sent == (
        b'{"model":"there","temperature":1.50,"seed":9007199254740993,'
        b'"x":{"profile":"inner","model":"inner"},"messages":[{"role":"user","content":"H\\u00ef"}]}'
    )
    assert b"POST /v1/chat/completions HTTP/1.1" in head
    assert b"authorization: Bearer " + KEY.encode() in head.replace(b"Authorization", b"authorization")
    assert b"cookie" not in head.lower()


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/embeddings", "/v1/rerank"])
def test_every_route_is_passed_on(upstreams: Upstreams, fake: dict[bytes, Answer], route: str) -> None:
    raw = b'{ "odd" :  [1.0,\t2e0] }\n'
    fake[route.encode()] = sends(OK + b"content-length: %d\r\n\r\n" % len(raw) + raw)
    model = "faked" if route == "/v1/completions" else "faked-vectors"
    reply = upstreams.gateway.post(route, {"model": model, "input": "a", "query": "q", "documents": ["d"]})
    assert (reply.status, reply.body, reply.headers["content-type"]) == (200, raw, "application/json")
    assert reply.headers["content-length"] == str(len(raw))


ODD = b"\xef\xbb\xbf: hello\r\n\r\nid: 7\r\nevent: x\r\ndata: {\r\ndata: }\r\n\r\n" + GOOD


@pytest.mark.parametrize("answer", [sends(SSE + ODD), chunked(*[bytes([b]) for b in ODD])], ids=["whole", "bytes"])
def test_a_stream_is_passed_on_byte_for_byte(upstreams: Upstreams, fake: dict[bytes, Answer], answer: Answer) -> None:
    fake[CHAT.encode()] = answer
    reply = chat(upstreams, stream=True)
    assert (reply.status, reply.body, reply.complete) == (200, ODD, True)


FAULTS: dict[str, Answer] = {
    "cut inside of an event": sends(SSE + said("Hel") + b'data: {"cho'),
    "a clean end without [DONE]": sends(SSE + said("Hel") + said(finish="stop")),
    "no last chunk": chunked(said("Hel"), end=False),
    "an error in mid-stream": chunked(said("Hel") + event({"error": {"message": "slot lost"}})),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_mid_stream_is_a_broken_connection(
    upstreams: Upstreams, fake: dict[bytes, Answer], name: str
) -> None:
    """What came is passed on; then the connection breaks. No [DONE], no last chunk."""
    fake[CHAT.encode()] = FAULTS[name]
    reply = chat(upstreams, stream=True)
    assert reply.status == 200
    assert reply.body.startswith(said("Hel"))
    assert b"[DONE]" not in reply.body
    assert not reply.complete
    assert len(upstreams.fake.requests) == 1


def test_a_fault_before_the_first_byte_still_has_a_status(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    fake[CHAT.encode()] = sends(SSE)
    reply = chat(upstreams, stream=True)
    assert (reply.status, reply.json()["error"]["code"]) == (502, "transport_lost")
    assert reply.json()["error"]["outcome"] == "unknown"


def test_a_stream_over_the_bound_is_cut(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    piece = said("x" * 65_000)

    async def endless(exchange: Exchange) -> None:
        await exchange.send(SSE)
        while True:
            await exchange.send(piece)

    fake[CHAT.encode()] = endless
    reply = chat(upstreams, stream=True)
    assert 31 * MIB < len(reply.body) <= 32 * MIB
    assert not reply.complete


def test_a_finite_answer_over_the_bound_or_cut_is_an_error(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    """It is read whole before the answer begins, so that a fault still has a status."""
    fake[CHAT.encode()] = sends(OK + b"connection: close\r\n\r\n" + b" " * (32 * MIB + 1))
    assert (chat(upstreams).status, chat(upstreams).json()["error"]["code"]) == (502, "response_limit")
    fake[CHAT.encode()] = sends(OK + b"content-length: 9\r\n\r\n{}")
    error = chat(upstreams).json()["error"]
    assert (error["code"], error["outcome"]) == ("transport_lost", "unknown")


@pytest.mark.parametrize("typed_route", [False, True])
def test_a_client_that_leaves_closes_the_transport(
    upstreams: Upstreams, fake: dict[bytes, Answer], typed_route: bool
) -> None:
    """And gives its permit back (C8)."""
    upstreams.gateway.until_idle("faked")
    closed = threading.Event()

    async def endless(exchange: Exchange) -> None:
        await exchange.send(SSE + said("Hel"))
        await exchange.until_closed()
        closed.set()

    fake[CHAT.encode()] = endless
    messages = [{"role": "user", "content": "Hi"}]
    if typed_route:
        content = {"kind": "messages", "messages": messages}
        path, body = "/v1/model-operations", {
            "contract_version": 1, "request_id": "t:1", "model": "faked", "capability": "chat_generation",
            "input": content, "output": "text", "stream": True,
        }  # fmt: skip
    else:
        path, body = CHAT, {"model": "faked", "messages": messages, "stream": True}
    connection = http.client.HTTPConnection("127.0.0.1", upstreams.gateway.port, timeout=BOUND_S)
    connection.request("POST", path, msgspec.json.encode(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.read(8)
    assert upstreams.gateway.detail("faked")["running"] == "1"
    response.close()
    connection.close()
    assert closed.wait(BOUND_S)
    upstreams.gateway.until_idle("faked")


def test_errors_are_passed_on_but_not_those_about_our_key(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    body = b'{"error":{"message":"busy","type":"rate"}}'
    head = b"HTTP/1.1 429 Busy\r\ncontent-type: application/json\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n"
    fake[CHAT.encode()] = sends(head % len(body) + body)
    reply = chat(upstreams, stream=True)
    assert (reply.status, reply.body, reply.headers["retry-after"]) == (429, body, "7")
    message = f"Incorrect API key provided: {KEY}"
    fake[CHAT.encode()] = answers_json({"error": {"message": message}}, b"401 Unauthorized")
    reply = chat(upstreams)
    assert (reply.status, reply.json()["error"]["code"]) == (502, "provider_failure")
    assert KEY.encode() not in reply.body
    assert KEY not in upstreams.gateway.log()


def test_a_model_that_cannot_do_it_is_refused_before_anything_is_sent(
    upstreams: Upstreams, fake: dict[bytes, Answer]
) -> None:
    reply = upstreams.gateway.post("/v1/embeddings", {"model": "faked", "input": "a"})
    assert (reply.status, reply.json()["error"]["outcome"]) == (503, "not_admitted")
    reply = upstreams.gateway.post(CHAT, {"model": "faked-vectors", "messages": []})
    assert (reply.status, reply.json()["error"]["outcome"]) == (503, "not_admitted")
    assert upstreams.fake.requests == []


# --- the typed stream of the same provider ----------------------------------------------------------------------------


def typed(upstreams: Upstreams) -> list[dict[str, Any]]:
    content = {"kind": "messages", "messages": [{"role": "user", "content": "Hi"}]}
    reply = upstreams.gateway.operation(
        model="faked", capability="chat_generation", input=content, output="text", stream=True
    )
    assert reply.complete
    if reply.status != 200:
        return [reply.json() | {"kind": "refused"}]
    return [msgspec.json.decode(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: ")]


def test_the_typed_stream_completes_on_terminal_done_and_end(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    fake[CHAT.encode()] = sends(SSE + GOOD)
    events = typed(upstreams)
    assert [e["kind"] for e in events] == ["started", "delta", "completed"]
    assert (events[1]["text"], events[2]["finish_reason"]) == ("Hello", "stop")


TYPED_FAULTS: dict[str, tuple[Answer, str]] = {
    "no [DONE]": (sends(SSE + said("Hel") + said(finish="stop")), "transport_lost"),
    "no terminal choice": (sends(SSE + said("Hel") + DONE), "transport_lost"),
    "no clean end": (chunked(said("Hel") + said(finish="stop") + DONE, end=False), "transport_lost"),
    "an event over the bound": (sends(SSE + said("Hel") + said("x" * 262_144) + DONE), "invalid_provider_result"),
    "an error": (sends(SSE + said("Hel") + event({"error": {"code": 500}})), "provider_failure"),
    "no object": (sends(SSE + said("Hel") + event([1])), "invalid_provider_result"),
    "a delta that is no object": (
        sends(SSE + said("Hel") + event({"choices": [{"index": 0, "delta": "x"}]})),
        "invalid_provider_result",
    ),
    "a finish reason that is no string": (
        sends(SSE + said("Hel") + event({"choices": [{"index": 0, "finish_reason": {}}]})),
        "invalid_provider_result",
    ),
}


@pytest.mark.parametrize("name", TYPED_FAULTS)
def test_a_fault_is_the_last_event_of_a_typed_stream(
    upstreams: Upstreams, fake: dict[bytes, Answer], name: str
) -> None:
    fake[CHAT.encode()], code = TYPED_FAULTS[name]
    events = typed(upstreams)
    assert [e["kind"] for e in events if e["kind"] != "delta"] == ["started", "failed"]
    assert events[-1]["error"]["code"] == code
    assert events[-1]["error"]["outcome"] == "unknown"
    assert len(upstreams.fake.requests) == 1


# --- who is asked -----------------------------------------------------------------------------------------------------


def until(upstreams: Upstreams, kind: str) -> dict[str, Any]:
    """Ask until the answer ends like that."""
    deadline = time.monotonic() + BOUND_S
    while (last := typed(upstreams)[-1])["kind"] != kind:
        assert time.monotonic() < deadline, last
    return last


def test_another_model_under_the_same_name_is_not_asked(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    """Admission checks the identity again: what was resolved against one model never goes to another (contract)."""

    async def other(exchange: Exchange) -> None:
        architecture = {"input_modalities": ["text"], "output_modalities": ["decisions"]}
        await exchange.send_json({"data": [{"id": "there", "architecture": architecture, "meta": {"n_embd": 3}}]})

    fake[CHAT.encode()] = sends(SSE + GOOD)
    assert typed(upstreams)[-1]["kind"] == "completed"
    fake[b"/v1/models"] = other
    until(upstreams, "refused")  # the last observation is older than a second then
    upstreams.fake.requests.clear()
    assert typed(upstreams)[-1]["kind"] == "refused"
    assert upstreams.fake.requests == []
    fake[b"/v1/models"] = models
    until(upstreams, "completed")


def test_a_provider_that_is_gone_is_not_admitted(upstreams: Upstreams, fake: dict[bytes, Answer]) -> None:
    fake[CHAT.encode()] = sends(SSE + GOOD)
    fake[b"/v1/models"] = sends()
    last = until(upstreams, "refused")
    assert last["error"]["code"] == "capability_unavailable"
    assert last["error"]["outcome"] == "not_admitted"
    assert upstreams.fake.url not in last["error"]["message"]
    fake[b"/v1/models"] = models
    until(upstreams, "completed")
