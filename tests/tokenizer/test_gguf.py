"""The header reader: what it says of real and made files, and that nothing but ArtifactInvalid comes of bad ones."""

from __future__ import annotations

import collections
import os
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fuzz.gguf_header import generate, outcome
from synapse.artifacts.gguf import ArtifactInvalid, Header, parse_header, read_header
from tests import models
from tests.tokenizer.gguf_bytes import (
    ARRAY,
    BOOL,
    I32,
    STRING,
    U64,
    gguf_bytes,
    string,
    tensor_bytes,
    value_bytes,
    vocabulary_metadata,
)

F32_TENSOR, Q8_0_TENSOR = 0, 8


def key(name: str | bytes, raw_value: bytes) -> bytes:
    return string(name) + raw_value


def file_of(*keys: bytes, tensors: tuple[bytes, ...] = (), n_keys: int | None = None, version: int = 3) -> bytes:
    count = len(keys) if n_keys is None else n_keys
    return b"GGUF" + struct.pack("<IQQ", version, len(tensors), count) + b"".join(keys) + b"".join(tensors)


def with_tensors(*tensors: bytes, data: int = 4096) -> bytes:
    return gguf_bytes({"general.architecture": "llama"}, tensors, bytes(data))


def test_facts_of_a_decoder(tmp_path: Path) -> None:
    header = read_header(models.tiny_llama(tmp_path / "m.gguf", context=640, width=64, name="Tiny One"))
    assert (header.architecture, header.name, header.context_length) == ("llama", "Tiny One", 640)
    assert (header.embedding_length, header.pooling, header.causal, header.ranking_head) == (64, None, True, False)
    assert (header.weights, header.tokenizer_model, header.shards) == ("Q8_0", "gpt2", 1)
    assert header.vocabulary == len(models.bpe_vocabulary()[0])
    assert header.chat_template == models.CHATML
    assert header.size == (tmp_path / "m.gguf").stat().st_size
    embedding = header.tensors["token_embd.weight"]
    assert embedding.dims == (64, header.vocabulary)
    assert embedding.nbytes == 64 * header.vocabulary // 32 * 34


def test_facts_of_an_encoder_and_a_reranker(tmp_path: Path) -> None:
    encoder = read_header(models.tiny_bert(tmp_path / "e.gguf", pooling="cls"))
    assert (encoder.pooling, encoder.causal, encoder.ranking_head, encoder.chat_template) == ("cls", False, False, None)
    reranker = read_header(models.tiny_bert(tmp_path / "r.gguf", pooling="rank", head="full"))
    assert (reranker.pooling, reranker.ranking_head) == ("rank", True)


def test_by_descriptor_and_from_memory_alike(tmp_path: Path) -> None:
    path = models.tiny_llama(tmp_path / "m.gguf")
    content = path.read_bytes()
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.lseek(descriptor, 7, os.SEEK_SET)
        by_descriptor = read_header(descriptor)
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 7
    finally:
        os.close(descriptor)
    by_path = read_header(path)
    for header in (by_descriptor, parse_header(content), parse_header(content[: by_path.data_offset], len(content))):
        assert header.tensors == by_path.tensors
        assert header.metadata.keys() == by_path.metadata.keys()
        assert header.strings("tokenizer.ggml.merges") == by_path.strings("tokenizer.ggml.merges")


def test_every_type_of_value() -> None:
    values = {
        "u8": (0, 200), "i8": (1, -100), "u16": (2, 60000), "i16": (3, -30000), "u32": (4, 4_000_000_000),
        "i32": (5, -5), "f32": (6, 0.5), "u64": (10, 2**63), "i64": (11, -(2**62)), "f64": (12, 0.25),
    }  # fmt: skip
    header = parse_header(
        gguf_bytes(
            {
                **values,
                "yes": True,
                "text": "grün",
                "texts": ["a", "", "ü"],
                "floats": np.array([1.5, 2.5], np.float32),
                "latin": b"gr\xfcn",
            }
        )
    )
    assert {name: header.metadata[name] for name in values} == {name: value for name, (_, value) in values.items()}
    assert header.flag("yes") is True
    assert header.text("text") == "grün"
    assert header.text("latin") == "gr�n"
    assert header.strings("texts") == [b"a", b"", "ü".encode()]
    floats = header.numbers("floats", "f4")
    assert floats is not None
    assert floats.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("ask", "names"),
    [
        (lambda h: h.text("number"), "number"),
        (lambda h: h.integer("yes"), "yes"),
        (lambda h: h.flag("number"), "number"),
        (lambda h: h.strings("number"), "number"),
        (lambda h: h.numbers("floats", "i4"), "floats"),
        (lambda h: h.numbers("yes", "i4"), "yes"),
    ],
)
def test_a_value_of_another_type_is_the_files_fault(ask: Callable[[Header], object], names: str) -> None:
    header = parse_header(gguf_bytes({"number": 7, "yes": True, "floats": np.array([1], np.float32)}))
    with pytest.raises(ArtifactInvalid, match=names):
        ask(header)


def _text_array(count: int, *texts: bytes) -> bytes:
    return struct.pack("<IIQ", ARRAY, STRING, count) + b"".join(string(text) for text in texts)


FAR = 2**64 - 8
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF"),
    "another magic": (b"GGML" + bytes(40), "not a GGUF"),
    "version 1": (file_of(version=1), "version 1"),
    "version 4": (file_of(version=4), "version 4"),
    "big-endian": (file_of(version=0x0300_0000), "big-endian"),
    "more keys than bytes": (file_of(n_keys=2**40), "keys"),
    "too many keys": (file_of(n_keys=2**63) + bytes(100), "keys"),
    "more tensors than bytes": (b"GGUF" + struct.pack("<IQQ", 3, 2**50, 0), "tensors"),
    "keys missing": (file_of(n_keys=2) + bytes(30), "empty"),
    "empty key": (file_of(key("", value_bytes(1))), "empty"),
    "key twice": (file_of(key("a", value_bytes(1)), key("a", value_bytes(2))), "twice"),
    "key no UTF-8": (file_of(key(b"\xff\xfe", value_bytes(1))), "UTF-8"),
    "key past the end": (file_of(struct.pack("<Q", 60) + b"a" * 20), "cut short"),
    "key far past the end": (file_of(struct.pack("<Q", FAR) + b"a" * 20), "over the limit"),
    "unknown type": (file_of(key("a", struct.pack("<II", 13, 0)) + bytes(8)), "unknown type 13"),
    "bool 2": (file_of(key("a", struct.pack("<IB", BOOL, 2))), "bool"),
    "bool 2 in an array": (file_of(key("a", struct.pack("<IIQ", ARRAY, BOOL, 3) + b"\0\1\2")), "bool"),
    "value cut": (file_of(key("a", struct.pack("<IH", U64, 1)) + b""), "cut short"),
    "string past the end": (file_of(key("a", struct.pack("<IQ", STRING, 4000) + b"x" * 30)), "over the limit"),
    "string near 2^64": (file_of(key("a", struct.pack("<IQ", STRING, FAR) + b"x" * 30)), "over the limit"),
    "nested array": (file_of(key("a", struct.pack("<IIQ", ARRAY, ARRAY, 1) + bytes(40))), "nested"),
    "array of unknown": (file_of(key("a", struct.pack("<IIQ", ARRAY, 77, 1) + bytes(40))), "unknown"),
    "numbers past the end": (file_of(key("a", struct.pack("<IIQ", ARRAY, I32, 1000) + bytes(40))), "numbers"),
    "numbers near 2^62": (file_of(key("a", struct.pack("<IIQ", ARRAY, I32, 2**62) + bytes(40))), "numbers"),
    "texts past the end": (file_of(key("a", _text_array(1000, b"x"))), "strings"),
    "texts near 2^61": (file_of(key("a", _text_array(2**61, b"x"))), "strings"),
    "text in an array past the end": (
        file_of(key("a", struct.pack("<IIQQ", ARRAY, STRING, 2, 500) + bytes(30))),
        "cut short",
    ),
    "text in an array near 2^64": (
        file_of(key("a", struct.pack("<IIQQ", ARRAY, STRING, 2, FAR) + bytes(30))),
        "cut short",
    ),
    "alignment 0": (gguf_bytes({"general.alignment": 0}), "alignment"),
    "alignment 24": (gguf_bytes({"general.alignment": 24}), "alignment"),
    "alignment huge": (gguf_bytes({"general.alignment": 2**31}), "alignment"),
    "alignment text": (gguf_bytes({"general.alignment": "32"}), "alignment"),
    "tensor twice": (
        with_tensors(tensor_bytes("a", (8,), F32_TENSOR, 0), tensor_bytes("a", (8,), F32_TENSOR, 32)),
        "twice",
    ),
    "tensor name too long": (with_tensors(tensor_bytes("a" * 64, (8,), F32_TENSOR, 0)), "64"),
    "nine dimensions": (with_tensors(tensor_bytes("a", (1,) * 9, F32_TENSOR, 0)), "9 dimensions"),
    "dimension 0": (with_tensors(tensor_bytes("a", (8, 0), F32_TENSOR, 0)), "dimension of 0"),
    "dimension negative": (with_tensors(tensor_bytes("a", (-1,), F32_TENSOR, 0)), "dimension"),
    "too many elements": (with_tensors(tensor_bytes("a", (2**39, 2**39), F32_TENSOR, 0)), "elements"),
    "unknown tensor type": (with_tensors(tensor_bytes("a", (8,), 4, 0)), "unknown type 4"),
    "rows that are no blocks": (with_tensors(tensor_bytes("a", (31,), Q8_0_TENSOR, 0)), "blocks"),
    "offset near 2^64": (with_tensors(tensor_bytes("a", (8,), F32_TENSOR, 2**64 - 32)), "begins at"),
    "first offset": (with_tensors(tensor_bytes("a", (8,), F32_TENSOR, 32)), "begins at 32"),
    "overlap": (
        with_tensors(tensor_bytes("a", (64,), F32_TENSOR, 0), tensor_bytes("b", (8,), F32_TENSOR, 32)),
        "begins at 32, expected is 256",
    ),
    "unaligned": (
        with_tensors(tensor_bytes("a", (3,), F32_TENSOR, 0), tensor_bytes("b", (8,), F32_TENSOR, 12)),
        "begins at 12",
    ),
    "data cut short": (with_tensors(tensor_bytes("a", (2000,), F32_TENSOR, 0)), "cut short"),
    "tensor table cut": (b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + tensor_bytes("a", (8,), F32_TENSOR, 0), "cut short"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_bad_files_are_refused_by_name(name: str, tmp_path: Path) -> None:
    content, says = BAD_FILES[name]
    with pytest.raises(ArtifactInvalid, match=says):
        parse_header(content)
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ArtifactInvalid):
        read_header(path)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/zero")):
        with pytest.raises(ArtifactInvalid, match="regular file"):
            read_header(path)
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none")


def test_a_file_that_shrinks_while_it_is_read() -> None:
    content = gguf_bytes({"a": "x" * 100, "b": 1})
    with pytest.raises(ArtifactInvalid, match="became shorter"):
        parse_header(content[:60], len(content))


def test_every_prefix_of_a_file() -> None:
    content = gguf_bytes(
        vocabulary_metadata("gpt2", ["a", "b"], pre="gpt-2", merges=["a b"], scores=[0.0, 1.0], types=[1, 3]),
        [tensor_bytes("t", (32, 2), Q8_0_TENSOR, 0)],
        bytes(96),
    )
    parse_header(content)
    for length in range(len(content) - (96 - 68)):
        with pytest.raises(ArtifactInvalid):
            parse_header(content[:length])


def test_twenty_thousand_mutated_headers() -> None:
    """Bits, bytes, lengths, cuts: only the errors that are named come of them, of the header and of the vocabulary."""
    rng, seen = random.Random(11), collections.Counter[str]()
    for _ in range(20_000):
        seen[outcome(generate(rng))] += 1
    assert all(seen[reached] > 100 for reached in ("refused", "header", "vocabulary", "recipe")), seen
