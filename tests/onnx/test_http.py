"""An ONNX model under `pumas serve`: its limits in the descriptor, and typed refusals beyond them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.gateway import PATIENT, Gateway, running
from tests.models import minilm_onnx_served
from tests.onnx.graphs import tiny_encoder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """`minilm` (int8), `tiny` (a window of 32), and `broken`, which fails."""
    directory: Path = tmp_path_factory.mktemp("onnx")
    tiny_encoder(directory / "tiny")
    tiny_encoder(directory / "broken", b"no model")
    config = directory / "pumas.toml"
    config.write_text(
        f"""
        [server]
        port = 0
        [limits]
        {PATIENT}
        [[model]]
        path = "{minilm_onnx_served()}"
        name = "minilm"
        [[model]]
        path = "tiny/model.onnx"
        name = "tiny"
        engine = "onnx"
        [[model]]
        path = "broken/model.onnx"
        name = "broken"
        """
    )
    with running(directory, "--config", str(config)) as gateway:
        yield gateway


def embed(gateway: Gateway, model: str, *texts: str, **options: Any) -> Any:
    batch = {"kind": "text_batch", "texts": list(texts)}
    return gateway.operation(
        model=model, input=batch, output="embeddings_float32", options={"kind": "embeddings", **options}
    )


def test_descriptors_show_the_limits(own: Gateway) -> None:
    models = {m["model"]: m for m in own.get("/v1/served-models").json()["models"]}
    for name, dimensions, tokens in (("minilm", 384, 512), ("tiny", 8, 32)):
        found = {c["capability"]: c for c in models[name]["capabilities"]}["text_embedding"]
        assert found["availability"] == {"state": "available"}
        bounds = {b["option"]: (b["minimum"], b["maximum"]) for b in found["option_bounds"]}
        assert bounds == {"dimensions": (1, dimensions), "input_count": (1, 2048), "input_tokens": (1, tokens)}
    assert models["minilm"]["provider"] == "onnxruntime"
    assert models["broken"]["load_state"] == "failed"
    assert "onnxruntime cannot load" in models["broken"]["detail"]["error"]


def test_beyond_them_a_request_is_refused_with_the_limit_named(own: Gateway) -> None:
    """`input_tokens` counts the special tokens: 30 words fit a window of 32."""
    assert embed(own, "tiny", "a " * 30).status == 200
    for reply, limit in (
        (embed(own, "tiny", "a " * 31), "32"),
        (embed(own, "tiny", "a", dimensions=9), "8"),
        (embed(own, "tiny", *["a"] * 2049), "2048"),
        (embed(own, "minilm", "word " * 600), "512"),
    ):
        error = reply.json()["error"]
        assert (reply.status, error["code"], error["outcome"]) == (413, "request_limit", "not_admitted")
        assert limit in error["message"]
    reply = own.post("/v1/embeddings", {"model": "tiny", "input": "a " * 31})
    assert (reply.status, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_vectors_of_both_routes_are_the_same(own: Gateway) -> None:
    typed = embed(own, "minilm", "a puma", "tax").json()["result"]["vectors"]
    public = own.post("/v1/embeddings", {"model": "minilm", "input": ["a puma", "tax"]}).json()["data"]
    np.testing.assert_allclose([row["embedding"] for row in public], typed, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(typed, axis=1), 1, atol=1e-5)
    cut = embed(own, "minilm", "a puma", dimensions=16).json()["result"]["vectors"]
    assert len(cut[0]) == 16
