"""GGUF files made by hand, so that every byte of them can be wrong on purpose."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", I64: "q", F64: "d"}

Text = str | bytes
Value = bool | int | float | Text | Sequence[Text] | np.ndarray | tuple[int, object]
"""A tuple is (type, value); other values have their natural type (int: u32)."""


def string(text: Text) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def value_bytes(value: Value) -> bytes:
    """Type and value as they stand in a file."""
    match value:
        case tuple():
            kind, plain = value
            return struct.pack("<I", kind) + struct.pack(f"<{_FORMATS[kind]}", plain)
        case bool():
            return struct.pack("<IB", BOOL, value)
        case int():
            return struct.pack("<II", U32, value)
        case float():
            return struct.pack("<If", F32, value)
        case str() | bytes():
            return struct.pack("<I", STRING) + string(value)
        case np.ndarray():
            kinds = {"f4": F32, "i4": I32, "u1": U8, "i1": I8, "u4": U32}
            head = struct.pack("<IIQ", ARRAY, kinds[value.dtype.str[1:]], len(value))
            return head + value.tobytes()
        case _:
            return struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(string, value))


def tensor_bytes(name: Text, dims: Sequence[int], kind: int, offset: int) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(dims))
        + b"".join(struct.pack("<Q", dim & 0xFFFF_FFFF_FFFF_FFFF) for dim in dims)
        + struct.pack("<IQ", kind, offset)
    )


def gguf_bytes(
    metadata: Mapping[Text, Value],
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    alignment: int = 32,
) -> bytes:
    """A whole file: header, padding, data."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    head += b"".join(string(key) + value_bytes(value) for key, value in metadata.items()) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if tensors else head


def vocabulary_metadata(
    model: str,
    tokens: Sequence[Text],
    *,
    pre: str | None = None,
    merges: Sequence[Text] | None = None,
    scores: Sequence[float] | None = None,
    types: Sequence[int] | None = None,
    **rest: Value,
) -> dict[Text, Value]:
    """Metadata of a vocabulary-only llama; `rest` are tokenizer.ggml keys."""
    metadata: dict[Text, Value] = {
        "general.architecture": "llama",
        "general.name": "made for a test",
        "llama.context_length": 512,
        "llama.embedding_length": 32,
        "llama.block_count": 1,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": list(tokens),
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    if merges is not None:
        metadata["tokenizer.ggml.merges"] = list(merges)
    if scores is not None:
        metadata["tokenizer.ggml.scores"] = np.array(scores, np.float32)
    if types is not None:
        metadata["tokenizer.ggml.token_type"] = np.array(types, np.int32)
    for key, value in rest.items():
        metadata[f"tokenizer.ggml.{key}"] = value
    return metadata


def write(path: Path, metadata: Mapping[Text, Value]) -> Path:
    path.write_bytes(gguf_bytes(metadata))
    return path
