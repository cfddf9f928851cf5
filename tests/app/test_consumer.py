"""The strict consumer, written from the specification alone, against the running gateway; broken requests over HTTP."""

from __future__ import annotations

import collections
import http.client
import random
from typing import Any

import pytest

from tests.contract import consumer
from tests.contract.consumer import Consumer, Refused, Truncated, Violation
from tests.contract.mutate import echoed_id, mutate
from tests.gateway import BOUND_S, Gateway


def request(model: str, content: dict[str, Any], output: str, **more: Any) -> dict[str, Any]:
    return {
        "contract_version": 1,
        "request_id": "consumer:1",
        "model": model,
        "input": content,
        "output": output,
    } | more


MESSAGES = {
    "kind": "messages",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
}
SHORT = {"kind": "text_generation", "max_tokens": 6, "temperature": 0.5, "top_p": 0.9, "seed": 1}
CHAT = request("smol", MESSAGES, "text", options=SHORT)
REQUESTS = {
    "chat": CHAT,
    "text": request("smol", {"kind": "text", "text": "Go on"}, "text", semantic_task="text_generation", options=SHORT),
    "embedding": request("minilm", {"kind": "text", "text": "One"}, "embeddings_float32"),
    "embeddings": request(
        "minilm",
        {"kind": "text_batch", "texts": ["One", "two"]},
        "embeddings_float32",
        options={"kind": "embeddings", "dimensions": 32},
        profile="default",
    ),
    "rerank": request(
        "ranker",
        {"kind": "rerank", "query": "paris", "documents": ["the cat", "paris"]},
        "relevance_scores",
        options={"kind": "rerank", "top_n": 1},
    ),
}


@pytest.fixture
def strict(gateway: Gateway) -> Consumer:
    return Consumer(gateway.url, timeout_s=BOUND_S)


def test_discovery(strict: Consumer) -> None:
    models = strict.served_models()
    for model in models:
        strict.capabilities(model["model"], model["profile"])
    with pytest.raises(Refused) as refused:
        strict.capabilities("twice")
    assert refused.value.code == "ambiguous_model"


@pytest.mark.parametrize("name", REQUESTS)
def test_finite_operations(strict: Consumer, name: str) -> None:
    strict.operate(REQUESTS[name])


def test_streams(strict: Consumer) -> None:
    strict.stream(CHAT | {"options": SHORT | {"max_tokens": 24}})


def test_bounds_are_what_descriptors_say(strict: Consumer) -> None:
    """At the bound it is served, one beyond it is refused, for options and counts of every local capability."""
    dimensions = {"kind": "embeddings", "dimensions": 384}
    strict.operate(REQUESTS["embedding"] | {"options": dimensions})
    window = strict.capabilities("smol")["context_tokens"]
    for changed in (
        REQUESTS["embedding"] | {"options": dimensions | {"dimensions": 385}},
        CHAT | {"options": SHORT | {"max_tokens": window + 1}},
        REQUESTS["rerank"] | {"input": {"kind": "rerank", "query": "q", "documents": ["a"] * 2049}},
        REQUESTS["embedding"] | {"input": {"kind": "text_batch", "texts": ["a"] * 2049}},
    ):
        with pytest.raises(Refused) as refused:
            strict.operate(changed)
        assert (refused.value.code, refused.value.outcome) == ("request_limit", "not_admitted")


def test_a_stream_that_is_cut_anywhere_is_no_success(gateway: Gateway) -> None:
    sent = CHAT | {"stream": True, "options": SHORT | {"max_tokens": 3}}
    body = gateway.post("/v1/model-operations", sent).body
    assert consumer.read_stream(body, sent, clean_end=True).finish_reason
    for end in range(len(body.rstrip(b"\n"))):
        for clean in (True, False):
            with pytest.raises((Truncated, Violation)):
                consumer.read_stream(body[:end], sent, clean_end=clean)


def test_broken_requests_are_refused_and_the_connection_goes_on(gateway: Gateway) -> None:
    """2,000 mutants on one connection: the right code, the ID where it was readable, never a 5xx of our making."""
    rng = random.Random(29)
    seen: collections.Counter[str] = collections.Counter()
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=BOUND_S)
    connection.connect()
    used = connection.sock
    try:
        while sum(seen.values()) < 2_000:
            mutant = mutate(rng, rng.choice(list(REQUESTS.values())))
            if mutant.code is None:
                continue  # it may be valid, and be served
            seen[mutant.kind] += 1
            connection.request("POST", "/v1/model-operations", mutant.body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            error = consumer.read_error(response.status, response.read(), echoed_id(mutant.body))
            assert (error["code"], error["outcome"]) == (mutant.code, "not_admitted"), mutant
            assert connection.sock is used, "the connection was closed"
    finally:
        connection.close()
    assert len(seen) > 8
    assert "route_failed" not in gateway.log()
