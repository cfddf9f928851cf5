"""What we encode is what a strict consumer reads, and the consumer has teeth."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from pumas.contract import events, results
from pumas.contract.descriptors import capabilities_response, served_models_response
from pumas.contract.errors import STATUS, ContractError, encode_error
from tests.contract import consumer
from tests.contract.consumer import Refused, Truncated, Violation
from tests.contract.samples import SERVED, VALID, png
from tests.contract.test_resolve import EVERY
from tests.contract.test_results import ANSWERS

ID = "example:1"


def test_discovery() -> None:
    models = consumer.read_served_models(served_models_response(EVERY))
    assert [entry["model"] for entry in models] == [served.model for served in EVERY]
    for served in SERVED:
        query = [("model", served.model)]
        consumer.read_capabilities(capabilities_response(SERVED, query), served.model, "default")


@pytest.mark.parametrize("code", STATUS)
def test_errors(code: str) -> None:
    error = ContractError(code, "why")
    for request_id in (None, ID):
        record = consumer.read_error(error.status, encode_error(error, request_id), request_id)
        assert record["code"] == code
        with pytest.raises(Violation):
            consumer.read_error(error.status, encode_error(error, "other"), request_id)
    if code in consumer.STATUS:
        with pytest.raises(Violation):
            consumer.read_error(500, encode_error(error, ID), ID)


def results_of() -> dict[str, bytes]:
    """One success for each output, as our routes send it, by the sample that asks for it."""
    rng = np.random.default_rng(2)
    vectors = results.normalized(rng.standard_normal((2, 384)).astype(np.float32))
    return {
        "text": results.encode_text(ID, "Hi \U0001f3b5", "stop", seed=1),
        "embedding": results.encode_embeddings(ID, vectors[:1], dimensions=64, input_tokens=3),
        "embeddings": results.encode_embeddings(ID, vectors),
        "content batch": results.encode_embeddings(ID, vectors),
        "image generation": results.encode_image(ID, png(64, 64), 1),
        "rerank": results.encode_scores(ID, [0.5, 0.5], 9, top_n=1),
        "decision": results.encode_decisions(ID, ANSWERS, 4),
    }


@pytest.mark.parametrize("name", results_of())
def test_results(name: str) -> None:
    consumer.read_result(results_of()[name], VALID[name])


def vectors(*rows: list[float]) -> Callable[[dict[str, Any]], None]:
    return lambda result: result.update(vectors=list(rows))


def half(result: dict[str, Any]) -> None:
    result["vectors"] = [[item / 2 for item in row] for row in result["vectors"]]


BROKEN: list[tuple[str, Callable[[dict[str, Any]], None]]] = [
    ("text", lambda result: result.update(finish_reason="tool_calls")),
    ("text", lambda result: result.update(text=None)),
    ("text", lambda result: result.update(kind="embeddings")),
    ("embeddings", vectors([1.0])),
    ("embeddings", vectors([1.0], [0.6, 0.8])),
    ("embeddings", half),
    ("embedding", vectors([1.0])),
    ("rerank", lambda result: result.update(results=[])),
    ("rerank", lambda result: result["results"].append({"index": 1, "relevance_score": 9.0})),
    ("rerank", lambda result: result["results"][0].update(index=2)),
    ("image generation", lambda result: result.update(png_base64=base64.b64encode(png(64, 63)).decode())),
    ("decision", lambda result: result["answers"].pop("is")),
    ("decision", lambda result: result["answers"]["which"].update(choice="c")),
]


@pytest.mark.parametrize(("name", "damage"), BROKEN)
def test_a_broken_result_is_noticed(name: str, damage: Callable[[dict[str, Any]], None]) -> None:
    envelope = msgspec.json.decode(results_of()[name])
    damage(envelope["result"])
    with pytest.raises(Violation):
        consumer.read_result(msgspec.json.encode(envelope), VALID[name])
    with pytest.raises(Violation):
        consumer.read_result(results_of()[name].replace(b'"example:1"', b'"other"'), VALID[name])


@pytest.mark.parametrize("body", [b'{"a":NaN}', b'{"a":1,"a":2}', b'{"a":1e999}', b'"\\ud800"', b"\xff", b"{", b""])
def test_the_consumer_reads_strictly(body: bytes) -> None:
    with pytest.raises(Violation):
        consumer.read_json(body)


STARTED = events.started(ID, "chat_generation", "chat", "default")
DELTAS = events.KEEP_ALIVE + events.delta(ID, "Hi ") + events.delta(ID, "\U0001f3b5")
COMPLETED = events.completed(ID, "length")
FAILED = events.failed(ID, ContractError("provider_failure", "engine crashed", outcome="unknown"))


def read(*pieces: bytes, clean: bool = True) -> consumer.Stream:
    return consumer.read_stream(b"".join(pieces), VALID["messages"], clean_end=clean)


def test_streams() -> None:
    stream = read(STARTED, DELTAS, COMPLETED)
    assert (stream.text, stream.finish_reason) == ("Hi \U0001f3b5", "length")
    assert stream.started["capability"] == "chat_generation"
    with pytest.raises(Refused, match="engine crashed"):
        read(STARTED, DELTAS, FAILED)


def test_a_stream_cut_at_any_byte_is_never_a_success() -> None:
    whole = STARTED + DELTAS + COMPLETED
    for at in range(len(whole)):
        with pytest.raises(Truncated):
            read(whole[:at], clean=False)
    with pytest.raises(Truncated):
        read(whole, clean=False)


@pytest.mark.parametrize(
    "pieces",
    [
        (DELTAS, COMPLETED),
        (COMPLETED,),
        (STARTED, STARTED, COMPLETED),
        (STARTED, COMPLETED, DELTAS),
        (STARTED, COMPLETED, COMPLETED),
        (STARTED, COMPLETED, FAILED),
        (STARTED, events.delta("other", "x"), COMPLETED),
        (STARTED, COMPLETED.replace(b"event: completed", b"event: done")),
        (STARTED, b'event: completed\ndata: {"kind":"completed","request_id":"example:1","finish_reason":"x"}\n\n'),
    ],
)
def test_a_disorderly_stream_is_noticed(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(Violation):
        read(*pieces)
