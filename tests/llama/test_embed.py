"""Embeddings are the model's own, in any batch, and what the engine would abort on is refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.llama import reference
from tests.llama.bert import Bert
from tests.llama.driver import Driver, Refusal, tokens

TEXTS = [
    "A cat sat on the mat.",
    "Paris is the capital of France.",
    "hello",
    "The quick brown fox jumps over the lazy dog while the moon rises over the quiet hills of the north.",
    "Ünïcödé façade naïve",
    "数据 科学 is data science",
    "1234567890 + 42 = ?",
    "def f(x): return x ** 2",
    "An embedding is a vector of numbers that stands for a text.",
    "emoji 😀 and symbols ©",
    "THE SHOUTING TEXT IS LOWERED BY THE TOKENIZER",
    "a",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
    "Numbers like 3.14159 and dates like 2024-02-29 occur.",
    "To be, or not to be, that is the question: whether 'tis nobler in the mind to suffer",
    "Quotes \"double\" and 'single' and `ticks`",
    "Mixed CASE and mixed   white\tspace\nand lines",
    "word " * 120,
    "The end of the story was the beginning of another one. " * 8,
    "Cross-encoders read two texts together; bi-encoders read them alone.",
]


@cache
def ids_of(text: str) -> tuple[int, ...]:
    return tuple(tokens(models.minilm_f16_gguf(), text))


@pytest.fixture(scope="module")
def bert() -> Bert:
    return Bert(models.minilm_dir())


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_equal_a_forward_pass_in_numpy(minilm: Driver, bert: Bert, pooling: str) -> None:
    texts = [ids_of(text) for text in (TEXTS if pooling == "mean" else TEXTS[:6])]
    vectors = minilm.embed(texts, pooling)  # type: ignore[arg-type]
    assert vectors.shape == (len(texts), 384)
    for ids, vector in zip(texts, vectors, strict=True):
        assert float(bert.embed(ids, pooling) @ vector) >= 0.9999
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-5


def test_a_batch_gives_what_each_text_gives_alone_in_the_same_order(minilm: Driver) -> None:
    texts = [ids_of(text) for text in TEXTS]
    together = minilm.embed(texts)
    for ids, vector in zip(texts, together, strict=True):
        assert float(minilm.embed([ids])[0] @ vector) >= 0.99999


def test_more_texts_than_the_engine_takes_at_once(minilm: Driver) -> None:
    texts = [ids_of(TEXTS[i % 5])[: 3 + i % 4] for i in range(300)]
    vectors = minilm.embed(texts)
    assert vectors.shape == (300, 384)
    for i in (0, 7, 255, 256, 299):
        assert float(minilm.embed([texts[i]])[0] @ vectors[i]) >= 0.99999


def test_the_longest_input_works_and_one_more_token_is_named(minilm: Driver) -> None:
    longest = [101, *[7592] * 510, 102]
    assert minilm.embed([longest]).shape == (1, 384)
    with pytest.raises(Refusal, match="text 1 has 513 tokens, over the limit of 512") as refused:
        minilm.embed([longest, [*longest, 102]])
    assert refused.value.code == "invalid_request"
    assert minilm.alive()


def test_without_normalizing_the_vectors_are_the_engines(minilm: Driver) -> None:
    ids = ids_of(TEXTS[0])
    (engines,) = reference.ask("embed", models.minilm_f16_gguf(), [ids])
    np.testing.assert_allclose(minilm.embed([ids], normalize=False)[0], engines, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("ids", [[101, -1, 102], [101, 30522, 102], [2**31 - 1], []])
def test_ids_that_would_abort_the_engine_are_refused(minilm: Driver, ids: list[int]) -> None:
    with pytest.raises(Refusal, match="text 1") as refused:
        minilm.embed([[101, 7592, 102], ids])
    assert refused.value.code == "invalid_request"
    assert minilm.alive()


def test_an_embedder_neither_reranks_nor_generates(minilm: Driver) -> None:
    for ask in (
        lambda: minilm.rerank([7592], [[2088]]),
        lambda: minilm.generate([7592], 4),
        lambda: minilm.decode(),
    ):
        with pytest.raises(Refusal) as refused:
            ask()
        assert refused.value.code == "unsupported"


def test_measured_is_what_the_model_shows(bare: Driver) -> None:
    with bare.loaded(models.minilm_f16_gguf(), threads=1) as loaded:
        measured = loaded.measured
        assert loaded.dims == 384
        assert (measured.role, measured.context, measured.pooling) == ("embed", 512, "mean")
        assert measured.micro_batch >= 512
        assert 64 <= measured.embed_budget <= 512


def test_a_model_of_unknown_pooling_needs_to_be_told(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_bert(tiny_dir / "unpooled.gguf", pooling=None)
    with pytest.raises(Refusal, match="pooling") as refused:
        bare.load(path)
    assert refused.value.code == "config_invalid"
    with bare.loaded(path, pooling="cls") as loaded:
        assert loaded.measured.pooling == "cls"
        assert bare.embed([[2, 10, 3]], "cls").shape == (1, 64)
