"""What leaves over HTTP is what the models say: vectors as a forward pass in NumPy, text as the engine itself."""

from __future__ import annotations

import numpy as np
import pytest

from synapse.artifacts.gguf import read_header
from tests import models
from tests.gateway import Gateway
from tests.llama import reference
from tests.llama.bert import Bert
from tests.llama.driver import tokens
from tests.llama.test_embed import TEXTS

PROMPTS = ("The capital of France is", "def add(a, b):\n", "Once upon a time there was a small dragon who")


def test_vectors_equal_a_forward_pass_in_numpy(gateway: Gateway) -> None:
    reply = gateway.operation(model="minilm", input={"kind": "text_batch", "texts": TEXTS}, output="embeddings_float32")
    vectors = np.array(reply.json()["result"]["vectors"], dtype=np.float32)
    assert vectors.shape == (len(TEXTS), 384)
    bert = Bert(models.minilm_dir())
    for text, vector in zip(TEXTS, vectors, strict=True):
        expected = bert.embed(tuple(tokens(models.minilm_f16_gguf(), text)), "mean")
        assert float(expected @ vector) >= 0.9999, text


@pytest.mark.parametrize("as_ids", [False, True])
def test_greedy_text_equals_the_engines_own(gateway: Gateway, as_ids: bool) -> None:
    path = models.smollm2()
    prompts = [tokens(path, text) for text in PROMPTS]
    expected = reference.ask("greedy", path, prompts, n=16, context=4096)
    vocabulary = read_header(path).metadata["tokenizer.ggml.tokens"]
    for text, ids, continuation in zip(PROMPTS, prompts, expected, strict=True):
        body = {"model": "smol", "prompt": ids if as_ids else text, "temperature": 0, "max_tokens": 16}
        answer = gateway.post("/v1/completions", body).json()
        assert answer["choices"][0]["text"].encode() == detokenized(vocabulary, [int(i) for i in continuation])
        assert answer["usage"]["prompt_tokens"] == len(ids)


def detokenized(vocabulary: list[bytes], ids: list[int]) -> bytes:
    """Byte-level BPE read back; the end-of-text token has no text."""
    byte_of = {char: byte for byte, char in enumerate(models._byte_alphabet())}
    texts = [vocabulary[i].decode() for i in ids]
    pieces = [text for text in texts if not text.startswith("<|")]
    return bytes(byte_of[char] for piece in pieces for char in piece)


def test_scores_are_the_engines_own(gateway: Gateway) -> None:
    """The ranker is a BERT: `[CLS] query [SEP] document [SEP]`."""
    path = gateway.log_path.parent / "ranker.gguf"
    documents = ["the cat sat", "paris france", "a dog on a mat"]
    query = tokens(path, "paris", special=False)
    pairs = [[2, *query, 3, *tokens(path, document, special=False), 3] for document in documents]
    expected = [values[0] for values in reference.ask("rank", path, pairs)]
    body = {"model": "ranker", "query": "paris", "documents": documents}
    found = {e["index"]: e["relevance_score"] for e in gateway.post("/v1/rerank", body).json()["results"]}
    np.testing.assert_allclose([found[index] for index in range(3)], expected, atol=1e-4)
