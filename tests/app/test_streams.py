"""Streamed operations: events in order, the same text as finite, and nothing left when a client goes (C7, C8)."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from pumas.contract.events import Event, EventReader
from tests.gateway import BOUND_S, Gateway

REQUEST: dict[str, Any] = {
    "contract_version": 1,
    "request_id": "stream:1",
    "model": "smol",
    "capability": "chat_generation",
    "input": {"kind": "text", "text": "Count from one to ten."},
    "output": "text",
    "options": {"kind": "text_generation", "temperature": 0, "max_tokens": 24},
    "stream": True,
}


def events_of(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    reader = EventReader()
    events: list[Event] = reader.feed(body)
    reader.finish()
    return [(event.name, msgspec.json.decode(event.data)) for event in events]


def test_events_come_in_order_and_make_the_finite_text(gateway: Gateway) -> None:
    reply = gateway.post("/v1/model-operations", REQUEST)
    assert reply.status == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    events = events_of(reply.body)
    names = [name for name, _ in events]
    assert names[0] == "started"
    assert names[-1] == "completed"
    assert set(names[1:-1]) == {"delta"}
    assert all(data["kind"] == name and data["request_id"] == "stream:1" for name, data in events)
    started = events[0][1]
    assert (started["contract_version"], started["capability"]) == (1, "chat_generation")
    assert (started["model"], started["profile"]) == ("smol", "default")
    finite = gateway.post("/v1/model-operations", REQUEST | {"stream": False}).json()["result"]
    assert "".join(data["text"] for _, data in events[1:-1]) == finite["text"]
    assert events[-1][1]["finish_reason"] == finite["finish_reason"]


def test_a_refusal_before_the_first_event_is_an_answer_of_its_own(gateway: Gateway) -> None:
    long = {"model": "twice", "profile": "two", "input": {"kind": "text", "text": "abc " * 100}}
    reply = gateway.post("/v1/model-operations", REQUEST | long)
    assert (reply.status, reply.json()["error"]["code"]) == (413, "request_limit")
    assert reply.json()["request_id"] == "stream:1"
    embedder = gateway.post("/v1/model-operations", REQUEST | {"model": "minilm"})
    assert (embedder.status, embedder.json()["error"]["code"]) == (503, "capability_unavailable")
    assert "model_task_mismatch" in embedder.json()["error"]["message"]


def open_stream(gateway: Gateway, path: str, body: dict[str, Any]) -> socket.socket:
    data = msgspec.json.encode(body)
    client = socket.create_connection(("127.0.0.1", gateway.port), timeout=BOUND_S)
    client.sendall(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (path.encode(), len(data), data)
    )
    return client


def read_until(client: socket.socket, word: bytes) -> bytes:
    data = b""
    while word not in data:
        piece = client.recv(65536)
        assert piece, f"closed after {data[-500:]!r}"
        data += piece
    return data


LONG = {"options": {"kind": "text_generation", "temperature": 0, "max_tokens": 3500}}
"""A generation that goes on for a minute or more where nobody stops it; see `ENDLESS`."""
ENDLESS = "root ::= [a-z] root"
"""A grammar that never lets it end by itself."""


@pytest.mark.parametrize("when", [b"event: started", b"event: delta"])
def test_a_client_that_leaves_ends_its_generation(gateway: Gateway, when: bytes) -> None:
    options = LONG["options"] | {"grammar": ENDLESS}
    client = open_stream(gateway, "/v1/model-operations", REQUEST | {"options": options})
    read_until(client, when)
    assert gateway.detail("smol")["running"] != "0"
    client.close()
    gateway.until_idle("smol")


def test_a_client_that_leaves_before_its_answer_ends_its_generation(gateway: Gateway) -> None:
    options = LONG["options"] | {"grammar": ENDLESS}
    client = open_stream(gateway, "/v1/model-operations", REQUEST | {"options": options, "stream": False})
    while gateway.detail("smol")["running"] == "0":
        pass  # each turn is a request of its own
    client.close()
    gateway.until_idle("smol")


def test_a_client_that_leaves_withdraws_its_texts(gateway: Gateway) -> None:
    request = {
        "contract_version": 1,
        "request_id": "bulk:1",
        "model": "minilm",
        "input": {"kind": "text_batch", "texts": ["a text of several words, again and again " * 10] * 1000},
        "output": "embeddings_float32",
    }
    client = open_stream(gateway, "/v1/model-operations", request)
    while gateway.detail("minilm")["running"] == "0":
        pass  # each turn is a request of its own
    client.close()
    gateway.until_idle("minilm")


def test_queued_clients_that_leave_never_start(gateway: Gateway) -> None:
    """`twice` under `one` has a single place; the second request waits for it."""
    one = {"model": "twice", "profile": "one", "options": LONG["options"] | {"max_tokens": 400, "grammar": ENDLESS}}
    first = open_stream(gateway, "/v1/model-operations", REQUEST | one)
    read_until(first, b"event: started")
    second = open_stream(gateway, "/v1/model-operations", REQUEST | one)
    second.close()
    first.close()
    gateway.until_idle("twice")
    reply = gateway.post("/v1/model-operations", REQUEST | one | {"stream": False, "options": None})
    assert reply.status == 200


def test_streams_that_share_a_lane_are_each_as_alone(gateway: Gateway) -> None:
    requests = [
        REQUEST
        | {"input": {"kind": "text", "text": text}, "options": REQUEST["options"] | {"seed": 5, "temperature": 1}}
        for text in ("Name a colour.", "Tell me a short story about a fox and a crow.", "Why is the sky blue?")
    ]
    alone = [text_of(gateway.post("/v1/model-operations", request).body) for request in requests]
    with ThreadPoolExecutor(len(requests)) as pool:
        together = list(pool.map(lambda request: gateway.post("/v1/model-operations", request), requests))
    assert [text_of(reply.body) for reply in together] == alone


def text_of(body: bytes) -> str:
    events = events_of(body)
    assert events[-1][0] == "completed"
    return "".join(data["text"] for name, data in events if name == "delta")
