"""Rerank scores are llama.cpp's own for the same pairs; what cannot rerank is refused at load, with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.llama import reference
from tests.llama.driver import Driver, Refusal, worker

CLS, SEP = 2, 3
QUERY = [10, 11, 12]
DOCUMENTS = [[20, 21], [10, 11, 12], [30] * 60, [40, 41, 42, 43, 44]]


@pytest.fixture(scope="module")
def model(tiny_dir: Path) -> Path:
    return models.tiny_reranker(tiny_dir / "reranker.gguf", weights="f32")


@pytest.fixture(scope="module")
def reranker(model: Path) -> Iterator[Driver]:
    with worker() as driver:
        measured = driver.load(model, threads=1).measured
        assert measured.role == "rerank"
        assert measured.ranking_head
        yield driver


def test_scores_equal_the_engines_for_the_same_ids(reranker: Driver, model: Path) -> None:
    pairs = [[CLS, *QUERY, SEP, *document, SEP] for document in DOCUMENTS]
    engines = [scores[0] for scores in reference.ask("rank", model, pairs)]
    np.testing.assert_allclose(reranker.rerank(QUERY, DOCUMENTS), engines, rtol=0, atol=1e-3)


def test_order_and_company_change_nothing(reranker: Driver) -> None:
    scores = reranker.rerank(QUERY, DOCUMENTS)
    many = reranker.rerank(QUERY, [*reversed(DOCUMENTS)] * 80)  # more than one engine call takes
    assert many.shape == (320,)
    np.testing.assert_allclose(many.reshape(80, 4)[:, ::-1], np.tile(scores, (80, 1)), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    ("query", "documents", "reason"),
    [
        ([], [[20]], "empty"),
        (QUERY, [[20], []], "empty"),
        ([-1], [[20]], "vocabulary"),
        (QUERY, [[20], [10**6]], "text 1 .* vocabulary"),
        (QUERY, [[20], [20] * 123], "text 1 has 129 tokens, over the limit of 128"),
    ],
)
def test_hostile_pairs_are_refused(reranker: Driver, query: list[int], documents: list[list[int]], reason: str) -> None:
    with pytest.raises(Refusal, match=reason) as refused:
        reranker.rerank(query, documents)
    assert refused.value.code == "invalid_request"
    assert reranker.alive()


def test_a_reranker_does_not_embed(reranker: Driver) -> None:
    with pytest.raises(Refusal, match="reranker") as refused:
        reranker.embed([[2, 10, 3]])
    assert refused.value.code == "unsupported"


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        ({"head": "none"}, "no ranking head"),
        ({"head": "cls"}, "no ranking head"),
        ({"head": "full", "labels": ["a", "b", "c"]}, "3 outputs"),
        ({"head": "full", "extra": {"tokenizer.chat_template.rerank": "{{ query }}"}}, "prompt template"),
    ],
)
def test_what_cannot_rerank_is_refused_at_load(
    bare: Driver, tiny_dir: Path, build: dict[str, object], reason: str
) -> None:
    path = models.tiny_reranker(tiny_dir / f"{'-'.join(map(str, build))}-{build['head']}.gguf", **build)
    with pytest.raises(Refusal, match=reason) as refused:
        bare.load(path)
    assert refused.value.code == "artifact_invalid"
    assert bare.alive()


def test_a_head_without_the_pooling_key_reranks(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_bert(tiny_dir / "headed.gguf", pooling=None, head="full")
    with bare.loaded(path) as loaded:
        assert loaded.measured.role == "rerank"
        assert bare.rerank(QUERY, DOCUMENTS).shape == (4,)
