"""ONNX sentence encoders: what stands beside the graph (vocabulary, configuration) as the header of a GGUF file.

An ONNX file holds no vocabulary. The files beside it are taken as data under size caps: `vocab.txt`, or the vocabulary
of a WordPiece `tokenizer.json`; the tokenizer is built from it as for a GGUF file.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np

from synapse.artifacts.digest import open_artifact
from synapse.artifacts.gguf import ArtifactInvalid, Header

MAX_VOCABULARY_BYTES: Final = 64 << 20
MAX_CONFIG_BYTES: Final = 1 << 20
DEFAULT_CONTEXT: Final = 512
_NORMAL, _CONTROL = 1, 3
_SPECIALS: Final = {
    "unknown_token_id": "[UNK]",
    "bos_token_id": "[CLS]",
    "eos_token_id": "[SEP]",
    "seperator_token_id": "[SEP]",
    "padding_token_id": "[PAD]",
    "mask_token_id": "[MASK]",
}
"""GGUF's keys (its spelling) and BERT's tokens."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
T = TypeVar("T", bound=msgspec.Struct)


class _Config(msgspec.Struct):
    hidden_size: Size = 0
    max_position_embeddings: Size | None = None
    n_positions: Size | None = None


class _Pooling(msgspec.Struct):
    pooling_mode_cls_token: bool = False
    pooling_mode_mean_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _TokenizerConfig(msgspec.Struct):
    do_lower_case: bool | None = None
    strip_accents: bool | None = None


class _WordPiece(msgspec.Struct):
    type: str = ""
    vocab: dict[str, Size] = {}
    continuing_subword_prefix: str = "##"


class _TokenizerJson(msgspec.Struct):
    model: _WordPiece


def is_onnx(path: str) -> bool:
    """By the file's name: an ONNX file has no magic of its own."""
    return path.endswith(".onnx")


def read_surroundings(path: str, size: int) -> Header:
    """What stands beside an ONNX file, as a GGUF header of architecture `onnx`.

    Args:
        size: of the ONNX file, in bytes.
    Raises: ArtifactInvalid without a vocabulary, or if a file beside it is broken.
    """
    directory = os.path.dirname(os.path.abspath(path))
    tokens = _tokens(directory)
    ids = {token: index for index, token in enumerate(tokens)}
    missing = [token for token in ("[UNK]", "[CLS]", "[SEP]") if token not in ids]
    if missing:
        raise ArtifactInvalid(f"the vocabulary beside the model lacks {', '.join(missing)}")
    config = _json(directory, "config.json", _Config, MAX_CONFIG_BYTES) or _Config()
    cased = _json(directory, "tokenizer_config.json", _TokenizerConfig, MAX_CONFIG_BYTES) or _TokenizerConfig()
    pooling = _json(directory, "1_Pooling/config.json", _Pooling, MAX_CONFIG_BYTES) or _Pooling()
    lowercase = cased.do_lower_case is not False
    metadata: dict[str, Any] = {
        "general.architecture": "onnx",
        "general.name": os.path.basename(directory),
        "onnx.context_length": config.max_position_embeddings or config.n_positions or DEFAULT_CONTEXT,
        "onnx.embedding_length": config.hidden_size,
        "onnx.attention.causal": False,
        "onnx.pooling_type": 2 if pooling.pooling_mode_cls_token else 3 if pooling.pooling_mode_lasttoken else 1,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": [_piece(token).encode() for token in tokens],
        "tokenizer.ggml.token_type": np.array(
            [_CONTROL if token in _SPECIALS.values() else _NORMAL for token in tokens], dtype="<i4"
        ),
        "tokenizer.ggml.normalizer.lowercase": lowercase,
        "tokenizer.ggml.normalizer.strip_accents": lowercase if cased.strip_accents is None else cased.strip_accents,
    }
    metadata |= {f"tokenizer.ggml.{key}": ids[token] for key, token in _SPECIALS.items() if token in ids}
    return Header(version=3, metadata=metadata, tensors={}, data_offset=0, size=size)


def _piece(token: str) -> str:
    """BERT marks what continues a word, GGUF what begins one."""
    if token in _SPECIALS.values():
        return token
    return token[2:] if token.startswith("##") and len(token) > 2 else f"▁{token}"


def _tokens(directory: str) -> list[str]:
    data = _beside(directory, "vocab.txt", MAX_VOCABULARY_BYTES)
    if data is not None:
        try:
            return data.decode().removesuffix("\n").split("\n")
        except UnicodeDecodeError:
            raise ArtifactInvalid("the vocab.txt beside the model is no UTF-8") from None
    described = _json(directory, "tokenizer.json", _TokenizerJson, MAX_VOCABULARY_BYTES)
    if described is None:
        raise ArtifactInvalid("there is neither a vocab.txt nor a tokenizer.json beside the model")
    model = described.model
    if model.type != "WordPiece" or model.continuing_subword_prefix != "##":
        raise ArtifactInvalid("the tokenizer.json beside the model is not of the WordPiece type")
    tokens = sorted(model.vocab, key=model.vocab.__getitem__)
    if [model.vocab[token] for token in tokens] != list(range(len(tokens))):
        raise ArtifactInvalid("the ids in the tokenizer.json beside the model have gaps or doubles")
    return tokens


def _json(directory: str, name: str, kind: type[T], most_bytes: int) -> T | None:
    data = _beside(directory, name, most_bytes)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ArtifactInvalid(f"the {name} beside the model cannot be read: {error}") from error


def _beside(directory: str, name: str, most_bytes: int) -> bytes | None:
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return None
    with open_artifact(path) as descriptor, open(descriptor, "rb", closefd=False) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ArtifactInvalid(f"the {name} beside the model has more than {most_bytes} bytes")
    return data
