"""Tiny ONNX encoders, written field by field (onnx.proto): a table of vectors, one for each token."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tests.models import wpm_vocabulary

FLOAT, INT32, INT64 = 1, 6, 7
WIDTH = 8
Dim = int | str


def _varint(value: int) -> bytes:
    data = b""
    while value > 0x7F:
        data += bytes([value & 0x7F | 0x80])
        value >>= 7
    return data + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _value(name: str, kind: int, shape: Sequence[Dim]) -> bytes:
    """ValueInfoProto."""
    dims = b"".join(_bytes(1, _number(1, d) if isinstance(d, int) else _bytes(2, d)) for d in shape)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, dims)))


def _node(op: str, inputs: Sequence[str], output: str, **attributes: int | list[int]) -> bytes:
    made = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, op)
    for name, value in attributes.items():
        many = isinstance(value, list)
        numbers = b"".join(_number(8, n) for n in value) if isinstance(value, list) else _number(3, value)
        made += _bytes(5, _bytes(1, name) + numbers + _number(20, 7 if many else 2))
    return made


def _tensor(name: str, values: NDArray[np.float32]) -> bytes:
    dims = b"".join(_number(1, d) for d in values.shape)
    return dims + _number(2, FLOAT) + _bytes(8, name) + _bytes(9, values.astype("<f4").tobytes())


def table(seed: int = 0) -> NDArray[np.float32]:
    """float32[vocabulary, WIDTH]."""
    tokens, _ = wpm_vocabulary()
    return np.random.default_rng(seed).standard_normal((len(tokens), WIDTH), dtype=np.float32)


def encoder(
    vectors: NDArray[np.float32],
    *,
    inputs: Sequence[str] = ("input_ids",),
    shape: Sequence[Dim] = ("n", "length"),
    kind: int = INT64,
    op: tuple[str, dict[str, int | list[int]]] | None = None,
    output: Sequence[Dim] = ("n", "length", WIDTH),
) -> bytes:
    """A model that looks up each token's vector; `op`: one more node behind that."""
    nodes = [_node("Gather", ["table", inputs[0]], "hidden" if op else "last_hidden_state")]
    if op is not None:
        nodes.append(_node(op[0], ["hidden"], "last_hidden_state", **op[1]))
    graph = b"".join(_bytes(1, node) for node in nodes) + _bytes(2, "tiny") + _bytes(5, _tensor("table", vectors))
    graph += b"".join(_bytes(11, _value(name, kind, shape)) for name in inputs)
    graph += _bytes(12, _value("last_hidden_state", FLOAT, output))
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))


def surroundings(folder: Path, *, context: int = 32, pooling: str | None = None) -> None:
    """Vocabulary and configuration as they lie beside a model."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens, _ = wpm_vocabulary()
    # GGUF marks what begins a word, BERT what continues one.
    pieces = [t if t.startswith("[") else t[1:] if t.startswith("▁") else f"##{t}" for t in tokens]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    config = {"hidden_size": WIDTH, "max_position_embeddings": context}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling" / "config.json").write_bytes(msgspec.json.encode({f"pooling_mode_{pooling}": True}))


def tiny_encoder(folder: Path, graph: bytes | None = None, **beside: object) -> Path:
    """A folder with a model as people serve it; its path."""
    surroundings(folder, **beside)  # type: ignore[arg-type]
    path = folder / "model.onnx"
    path.write_bytes(encoder(table()) if graph is None else graph)
    return path


def nan_table() -> NDArray[np.float32]:
    """The vector of the token `▁paris` is not finite."""
    vectors = table()
    tokens, _ = wpm_vocabulary()
    vectors[tokens.index("▁paris")] = struct.unpack("<f", b"\0\0\xc0\x7f")[0]
    return vectors
