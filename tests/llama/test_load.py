"""LOAD: what is verified, measured and refused; the worker lives through every refusal."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from synapse.wire import messages as m
from tests import models
from tests.llama.driver import Driver, Refusal, Run, Stream, worker


@pytest.fixture(scope="module")
def decoder(tiny_dir: Path) -> Path:
    return models.tiny_llama(tiny_dir / "decoder.gguf")


def test_hello_names_the_engine_and_its_build(bare: Driver) -> None:
    engine = bare.hello.engine
    assert engine.name == "llama.cpp"
    assert engine.version.startswith("llama-cpp-python 0.")
    assert engine.build_flags


def test_measured_is_what_the_model_shows(bare: Driver, decoder: Path) -> None:
    with bare.loaded(decoder, context=300, parallel=3, threads=2) as loaded:
        measured = loaded.measured
        assert loaded.dims == 64
        assert (measured.role, measured.architecture, measured.vocabulary) == ("generate", "llama", 273)
        assert (measured.context, measured.parallel, measured.threads) == (300, 3, 2)
        assert measured.decode
        assert measured.decode_step_ms > 0
        # Q8_0 weights and a Q8_0 cache: this CPU back end is known to hold the promise for them.
        assert (measured.deterministic, measured.reuse_equal, measured.threads_equal) == (True, True, True)
        assert measured.sandbox["parent_death_signal"]


def test_the_window_is_the_trained_one_unless_told(bare: Driver, decoder: Path) -> None:
    with bare.loaded(decoder, threads=1) as loaded:
        assert loaded.measured.context == 512


def test_one_place_only(bare: Driver, decoder: Path) -> None:
    with bare.loaded(decoder, parallel=1, threads=1) as loaded:
        assert loaded.measured.deterministic
        assert loaded.measured.reuse_equal
        assert bare.generate([5, 6, 7], 8).n_gen > 0


def test_off_promises_nothing(bare: Driver, decoder: Path) -> None:
    with bare.loaded(decoder, deterministic="off", threads=1) as loaded:
        assert not loaded.measured.deterministic
        assert "off" in loaded.measured.deterministic_detail


def test_narrow_heads_have_no_q8_cache_and_promise_nothing(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_llama(tiny_dir / "narrow.gguf", width=64, heads=4)
    with bare.loaded(path, threads=1) as loaded:
        assert "Q8_0" in loaded.measured.deterministic_detail
        assert not loaded.measured.deterministic
    with pytest.raises(Refusal):
        bare.load(path, deterministic="strict")
    assert bare.alive()


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"contxt": "512"}, "unknown key 'contxt'"),
        ({"context": "many"}, "context must be an integer"),
        ({"context": "0"}, "context must be an integer from 8"),
        ({"context": "9" * 30}, "context must be"),
        ({"context": "-5"}, "context must be"),
        ({"context": "1024"}, "context is 1024, but the model was trained on 512"),
        ({"parallel": "0"}, "parallel"),
        ({"parallel": "257"}, "parallel"),
        ({"threads": "-1"}, "threads"),
        ({"threads": "100000"}, "threads"),
        ({"deterministic": "maybe"}, "deterministic must be one of auto, strict, off"),
        ({"pooling": "rank"}, "pooling must be one of"),
        ({"micro_batch": "1"}, "micro_batch"),
        ({"role": "chat"}, "role must be one of"),
        ({"role": "rerank"}, "ranking head"),
        ({"role": "embed"}, "pooling"),
    ],
)
def test_a_bad_configuration_is_named(bare: Driver, decoder: Path, config: dict[str, str], named: str) -> None:
    with pytest.raises(Refusal, match=named) as refused:
        bare.load(decoder, **config)
    assert refused.value.code == ("artifact_invalid" if config == {"role": "rerank"} else "config_invalid")
    assert bare.alive()


def test_a_micro_batch_below_an_encoders_longest_input_is_refused(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_bert(tiny_dir / "encoder.gguf")
    with pytest.raises(Refusal, match="longest input of 128") as refused:
        bare.load(path, micro_batch=64)
    assert refused.value.code == "config_invalid"
    with bare.loaded(path, micro_batch=64, context=64) as loaded:
        assert loaded.measured.micro_batch == 64
        with pytest.raises(Refusal, match="over the limit of 64"):
            bare.embed([[2] + [10] * 64])
        assert bare.embed([[2] + [10] * 62 + [3]] * 3).shape == (3, 64)


def test_a_model_for_generation_embeds_as_well_where_a_pooling_is_given(bare: Driver, decoder: Path) -> None:
    """The vectors are those of the same model loaded to embed, and a stream is the same as without them between."""
    texts = [[5, 6, 7], [8] * 40, [9, 10]]
    with bare.loaded(decoder, role="embed", pooling="mean", threads=1):
        alone = bare.embed(texts)
    with bare.loaded(decoder, threads=1) as loaded:
        assert (loaded.measured.embeds, loaded.measured.pooling) == (False, None)
        expected = bare.run(Stream([5, 6, 7], 12))[0].ids
        with pytest.raises(Refusal, match="only where pooling is set") as refused:
            bare.embed(texts)
        assert refused.value.code == "unsupported"
    with bare.loaded(decoder, threads=1, pooling="mean", micro_batch=64) as loaded:
        measured = loaded.measured
        assert (measured.role, measured.embeds, measured.pooling) == ("generate", True, "mean")
        assert (measured.micro_batch, measured.decode, loaded.dims) == (64, True, 64)
        run, stream = Run(bare), Stream([5, 6, 7], 12)
        run.add(0, stream)
        while run.busy:
            run.quantum(max_steps=1)
            np.testing.assert_allclose(bare.embed(texts), alone, atol=1e-3)
        assert stream.result.ids == expected
        with pytest.raises(Refusal, match="over the limit of 64"):
            bare.embed([[5] * 65])


def test_the_digest_is_verified_before_anything_else(bare: Driver, decoder: Path) -> None:
    for digest in ("sha256:" + "0" * 64, "md5:abc", "", "sha256:" + "A" * 64):
        with pytest.raises(Refusal, match=r"digest|SHA-256") as refused:
            bare.load(decoder, digest=digest)
        assert refused.value.code == "artifact_invalid"
    assert bare.alive()


def test_files_that_are_no_model_are_refused(bare: Driver, decoder: Path, tiny_dir: Path) -> None:
    whole = decoder.read_bytes()
    bad = {
        "empty.gguf": b"",
        "text.gguf": b"not a model",
        "cut.gguf": whole[: len(whole) // 2],
        "end.gguf": whole[:-64],
        "magic-only.gguf": b"GGUF",
        "header-only.gguf": whole[:4000],
    }
    for name, data in bad.items():
        path = tiny_dir / name
        path.write_bytes(data)
        with pytest.raises(Refusal) as refused:
            bare.load(path)
        assert refused.value.code == "artifact_invalid", name
    assert bare.alive()


def test_weights_that_are_not_numbers_are_refused(bare: Driver, tiny_dir: Path) -> None:
    with pytest.raises(Refusal, match="invalid data") as refused:
        bare.load(models.tiny_llama(tiny_dir / "nan.gguf", nan=True))
    assert refused.value.code == "artifact_invalid"
    assert bare.alive()


@pytest.mark.parametrize(
    "extra",
    [
        {"llama.block_count": 0},
        {"llama.block_count": 4_000_000_000},
        {"llama.block_count": 3},
        {"llama.attention.layer_norm_rms_epsilon": float("nan")},
        {"llama.attention.layer_norm_rms_epsilon": float("inf")},
        {"llama.rope.freq_base": float("nan")},
        {"llama.attention.head_count": 0},
        {"llama.embedding_length": 63},
        {"llama.context_length": 0},
        {"llama.rope.dimension_count": 7},
        {"tokenizer.ggml.pre": "unheard-of"},
        {"general.architecture": "unheard-of"},
    ],
    ids=str,
)
def test_metadata_that_would_abort_the_engine_is_refused(
    bare: Driver, tiny_dir: Path, extra: dict[str, object]
) -> None:
    with pytest.raises(Refusal) as refused:
        bare.load(models.tiny_llama(tiny_dir / "metadata.gguf", extra=extra), digest=None)
    assert refused.value.code == "artifact_invalid"
    assert bare.alive()


def test_what_is_no_regular_file_is_never_waited_for(bare: Driver, tiny_dir: Path) -> None:
    fifo = tiny_dir / "fifo.gguf"
    os.mkfifo(fifo)
    for path in (fifo, tiny_dir, tiny_dir / "missing.gguf", Path("/dev/zero")):
        with pytest.raises(Refusal) as refused:
            bare.load(path, digest="sha256:" + "0" * 64)
        assert refused.value.code == "artifact_invalid"
    assert bare.alive()


def test_a_link_is_followed(bare: Driver, decoder: Path, tiny_dir: Path) -> None:
    link = tiny_dir / "link.gguf"
    link.symlink_to(decoder)
    with bare.loaded(link, threads=1):
        assert bare.alive()


def test_one_model_at_a_time_and_only_by_its_name(bare: Driver, decoder: Path) -> None:
    with pytest.raises(Refusal) as refused:
        bare.generate([5], 1)
    assert refused.value.code == "model_not_loaded"
    with bare.loaded(decoder, threads=1):
        with pytest.raises(Refusal, match="loaded already"):
            bare.load(decoder)
        with pytest.raises(Refusal) as refused:
            bare.call(m.Unload(req_id="u", model_ref="another"))
        assert refused.value.code == "model_not_loaded"
        assert bare.call(m.Ping(req_id="p"))[0].models_loaded == 1
    pong = bare.call(m.Ping(req_id="p"))[0]
    assert pong.models_loaded == 0
    assert 20 < pong.rss_mb < 4000


def test_the_other_format_is_refused(bare: Driver, decoder: Path) -> None:
    request = m.Load(req_id="l", artifact_path=str(decoder), artifact_digest="sha256:" + "0" * 64, format="onnx")
    with pytest.raises(Refusal, match="gguf") as refused:
        bare.call(request)
    assert refused.value.code == "artifact_invalid"


def test_a_file_replaced_after_loading_changes_nothing(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_llama(tiny_dir / "moving.gguf")
    with bare.loaded(path, threads=1):
        before = bare.generate([5, 6, 7], 12).text
        models.tiny_llama(tiny_dir / "other.gguf", seed=9).replace(path)
        assert bare.generate([5, 6, 7], 12).text == before
        path.unlink()
        assert bare.generate([5, 6, 7], 12).text == before


def test_sentencepiece_text_keeps_the_space_that_is_the_texts_own(bare: Driver, tiny_dir: Path) -> None:
    tokens, _, _ = models.spm_vocabulary()
    the, letter, bos = tokens.index("▁the"), tokens.index("x"), 1
    path = models.tiny_llama(tiny_dir / "spm.gguf", tokenizer="spm")
    sampling = m.Sampling(logit_bias=[(the, 1000.0)])
    with bare.loaded(path, threads=1) as loaded:
        assert loaded.measured.add_bos
        answer, continuation = bare.run(Stream([bos], 2, sampling), Stream([bos, letter], 2, sampling))
    assert (answer.text, continuation.text) == ("the the", " the the")


def test_a_decoder_that_was_made_to_embed(bare: Driver, tiny_dir: Path) -> None:
    path = models.tiny_llama(tiny_dir / "embedder.gguf", extra={"llama.pooling_type": 3})
    with bare.loaded(path, threads=1) as loaded:
        assert (loaded.measured.role, loaded.measured.pooling, loaded.dims) == ("embed", "last", 64)
        texts = [[5, 6, 7], [8] * 40, [9, 10]]
        together = bare.embed(texts, "last")
        for ids, vector in zip(texts, together, strict=True):
            assert float(bare.embed([ids], "last")[0] @ vector) > 0.9999
        with pytest.raises(Refusal) as refused:
            bare.generate([5], 1)
        assert refused.value.code == "unsupported"
    with pytest.raises(Refusal, match="made to embed") as refused:
        bare.load(path, role="generate")
    assert refused.value.code == "config_invalid"


def test_strict_holds_or_the_load_fails(tiny_dir: Path) -> None:
    """F16 weights may go through a product whose sums depend on the batch: then strict says so."""
    path = models.tiny_llama(tiny_dir / "half.gguf", weights="f16", width=256, heads=4)
    with worker() as driver:
        answer = attempt(driver, path, deterministic="strict", threads=2)
        if isinstance(answer, Refusal):
            assert answer.code == "config_invalid"
            assert "strict" in answer.message
        else:
            assert answer.measured.deterministic
        assert driver.alive()


def attempt(driver: Driver, path: Path, **config: object) -> m.Loaded | Refusal:
    try:
        return driver.load(path, **config)
    except Refusal as refusal:
        return refusal
