"""Numbers are faithful, projections are checked (P27)."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from pumas.contract import results
from pumas.contract.describe import max_inputs
from pumas.contract.errors import ContractError
from pumas.contract.limits import MAX_FLOAT_TEXT, MAX_RESPONSE_BYTES
from tests.contract.samples import QUESTIONS

Floats = NDArray[np.float32]


def bits(vectors: Any) -> NDArray[np.uint32]:
    return np.asarray(vectors, np.float32).view(np.uint32)


def result_of(body: bytes) -> dict[str, Any]:
    envelope = msgspec.json.decode(body)
    assert envelope["contract_version"] == 1
    assert envelope["request_id"] == "example:1"
    found: dict[str, Any] = envelope["result"]
    return found


def refused(code: str, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(ContractError) as caught:
        call(*args, **more)
    assert caught.value.code == code
    assert caught.value.outcome == "unknown"


def test_float32_survives_json_bit_for_bit() -> None:
    """Every exponent, subnormals, both zeros, and a million random patterns, read by a double-precision reader."""
    rng = np.random.default_rng(7)
    patterns = rng.integers(0, 2**32, 1_000_000, dtype=np.uint64).astype(np.uint32)
    edges = [
        (exponent << 23) | low for exponent in range(255) for low in (0, 1, 2, 0x3FFFFF, 0x400000, 0x7FFFFE, 0x7FFFFF)
    ]
    patterns = np.concatenate([patterns, np.array(edges, np.uint32), np.array(edges, np.uint32) | 0x80000000])
    values: Floats = patterns.view(np.float32)
    values = values[np.isfinite(values)]
    text = results.floats_json(values)
    assert np.array_equal(bits(np.array(msgspec.json.decode(text), np.float64)), bits(values))
    assert max(map(len, text[1:-1].split(b","))) < MAX_FLOAT_TEXT


def test_embeddings_are_encoded_exactly() -> None:
    rng = np.random.default_rng(8)
    vectors = results.normalized(rng.standard_normal((256, 1024)).astype(np.float32))
    found = result_of(results.encode_embeddings("example:1", vectors, input_tokens=9))
    assert (found["kind"], found["input_tokens"]) == ("embeddings", 9)
    assert np.array_equal(bits(found["vectors"]), bits(vectors))
    again = np.frombuffer(base64.b64decode(results.vector_base64(vectors[3])), "<f4")
    assert np.array_equal(bits(again), bits(vectors[3]))


@pytest.mark.parametrize("dimensions", [1, 2, 63, 64, 128])
def test_cut_vectors_are_the_leading_values_with_norm_one(dimensions: int) -> None:
    rng = np.random.default_rng(9)
    vectors = results.normalized(rng.standard_normal((20, 128)).astype(np.float32))
    body = results.encode_embeddings("example:1", vectors, dimensions=dimensions)
    short = np.array(result_of(body)["vectors"], np.float32)
    assert short.shape == (20, dimensions)
    assert np.abs(np.linalg.norm(short.astype(np.float64), axis=1) - 1).max() < 1e-6
    direction = vectors[:, :dimensions].astype(np.float64)
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    assert np.abs(short - direction).max() < 1e-7


def test_all_dimensions_are_the_same_bits() -> None:
    vectors = np.array([[0.6, 0.8]], np.float32)
    assert results.cut(vectors, 2) is vectors


def test_more_dimensions_than_there_are_fail() -> None:
    refused("request_limit", results.cut, np.ones((1, 4), np.float32), 5)


def test_vectors_without_a_direction_fail() -> None:
    refused("invalid_provider_result", results.cut, np.array([[0, 0, 1]], np.float32), 2)
    refused("invalid_provider_result", results.normalized, np.zeros((1, 3), np.float32))


@pytest.mark.parametrize(
    "vectors",
    [[[1.0, np.nan]], [[1.0, np.inf]], [[1.0], [1.0, 2.0]], [], [[]], [1.0], [["a"]], None, [[1e60]], [[None]]],
)
def test_incoherent_embeddings_are_refused(vectors: Any) -> None:
    with np.errstate(over="ignore"):
        refused("invalid_provider_result", results.check_vectors, vectors)


def test_counts_and_widths_of_embeddings() -> None:
    assert results.check_vectors([[1, 2]], 1, 2).dtype == np.float32
    refused("invalid_provider_result", results.check_vectors, [[1, 2]], 2)
    refused("invalid_provider_result", results.check_vectors, [[1, 2]], 1, 3)


def test_scores_are_ordered_ties_keep_document_order() -> None:
    scores = [0.5, 2.0, 0.5, -1.0, 2.0]
    found = result_of(results.encode_scores("example:1", scores, 11))
    assert [entry["index"] for entry in found["results"]] == [1, 4, 0, 2, 3]
    assert [entry["relevance_score"] for entry in found["results"]] == [2.0, 2.0, 0.5, 0.5, -1.0]
    assert (found["kind"], found["input_tokens"]) == ("relevance_scores", 11)
    cut = result_of(results.encode_scores("example:1", scores, 11, top_n=2))
    assert [entry["index"] for entry in cut["results"]] == [1, 4]
    assert len(result_of(results.encode_scores("example:1", scores, 11, top_n=99))["results"]) == 5


def test_each_document_is_scored_once() -> None:
    assert results.check_scores([(1, 2.0), (0, 1)], 2) == (1.0, 2.0)
    for items in (
        [(0, 1.0)],
        [(0, 1.0), (0, 1.0)],
        [(0, 1.0), (2, 1.0)],
        [(0, 1.0), (True, 1.0)],
        [(0, 1.0), (-1, 1.0)],
    ):
        refused("invalid_provider_result", results.check_scores, items, 2)
    for score in (float("nan"), float("inf"), "1", None, True, 10**400):
        refused("invalid_provider_result", results.check_scores, [(0, score)], 1)


def test_text_answers() -> None:
    usage = results.UsageRecord(prompt_tokens=3, completion_tokens=2)
    found = result_of(results.encode_text("example:1", "caf\u00e9", "length", usage=usage, seed=4))
    assert (found["kind"], found["text"], found["finish_reason"], found["seed"]) == ("text", "caf\u00e9", "length", 4)
    assert found["usage"]["prompt_tokens"] == 3
    assert result_of(results.encode_text("example:1", "", "stop")) == {
        "kind": "text",
        "text": "",
        "finish_reason": "stop",
    }
    for reason in ("tool_calls", "", None, 1, "STOP"):
        refused("invalid_provider_result", results.check_finish_reason, reason)


def test_single_choice() -> None:
    choice = {"index": 0, "text": "x"}
    assert results.check_choice([choice]) is choice
    for choices in ([], [choice, choice], None, {}, ["x"], [{"index": 1}]):
        refused("invalid_provider_result", results.check_choice, choices)


ANSWERS: dict[str, Any] = {
    "which": {"type": "choice", "choice": "a", "probabilities": {"a": 0.9, "b": 0.1}, "confidence": 0.9},
    "how": {"type": "score", "score": 1.5, "legend": ["little", "some", "much"], "probabilities": [0, 0.5, 0.5],
            "confidence": 0.5},
    "is": {"type": "noul", "noul": 0.25},
    "bare": {"type": "noul", "noul": 1},
}  # fmt: skip


def test_decisions() -> None:
    answers = results.check_decisions(ANSWERS, QUESTIONS)
    found = result_of(results.encode_decisions("example:1", answers, 12))
    assert found == {"kind": "decisions", "answers": ANSWERS, "input_tokens": 12}


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("which", {"choice": "c"}),
        ("which", {"choice": {"a": 1}}),
        ("which", {"confidence": 10**400}),
        ("which", {"probabilities": {"a": 1.0}}),
        ("which", {"probabilities": {"a": 1.0, "c": 0.0}}),
        ("which", {"probabilities": {"a": 0.9, "b": 0.2}}),
        ("which", {"probabilities": {"a": 0.0, "b": 0.0}}),
        ("which", {"confidence": float("nan")}),
        ("which", {"type": "score"}),
        ("how", {"score": 2.5}),
        ("how", {"score": -1}),
        ("how", {"probabilities": [0.5, 0.5]}),
        ("how", {"probabilities": [0.5, 0.5, 0.5]}),
        ("is", {"noul": 1.5}),
        ("is", {"noul": "yes"}),
    ],
)
def test_incoherent_decisions_are_refused(name: str, change: dict[str, Any]) -> None:
    answers = ANSWERS | {name: ANSWERS[name] | change}
    refused("invalid_provider_result", results.check_decisions, answers, QUESTIONS)


def test_rounded_probabilities_sum_to_one_well_enough() -> None:
    answers = ANSWERS | {"which": ANSWERS["which"] | {"probabilities": {"a": 0.9001, "b": 0.0998}}}
    assert results.check_decisions(answers, QUESTIONS)["which"]["choice"] == "a"


def test_every_question_is_answered_and_no_other() -> None:
    refused("invalid_provider_result", results.check_decisions, {}, QUESTIONS)
    refused("invalid_provider_result", results.check_decisions, ANSWERS | {"more": {}}, QUESTIONS)
    refused("invalid_provider_result", results.check_decisions, None, QUESTIONS)


@pytest.mark.parametrize("dimensions", [1, 384, 1024, 4096, 1_000_000])
def test_an_advertised_batch_always_fits_the_response(dimensions: int) -> None:
    longest = np.full((1, min(dimensions, 1000)), -1.1754944e-38, np.float32)
    one = len(results.floats_json(longest)) / longest.size * dimensions + 2
    assert max_inputs(dimensions) * one < MAX_RESPONSE_BYTES
