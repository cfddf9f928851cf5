"""Tiny random GGUFs that only llama-server serves: a decision model, and a projector for images and audio.

How they look: llama.cpp's `tools/server/server-decision.cpp` and `conversion/lev.py` (metadata and template of a
decision model), `tools/mtmd/clip.cpp` (projectors).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models import tiny_llama

WIDTH = 64
"""Of the tiny decoder: what a projector must give."""
OPTIONS = "{% for o in options %}{{ loop.index }} {{ o.key }} {{ o.description }}\n{% endfor %}"
DECISION_TEMPLATE = "{{ state }}\n{{ instructions }}\n" + OPTIONS


def tiny_decision(path: Path) -> Path:
    """A decision model of the kind that reads the letters of its options from a decoder's logits."""
    extra = {
        "llama.decision.type": "openjev",
        "llama.decision.temperature.choice": 1.5,
        "tokenizer.chat_template.systemone": DECISION_TEMPLATE,
        "tokenizer.chat_templates": ["systemone"],
    }
    return tiny_llama(path, chat_template=None, context=2048, extra=extra)


def tiny_projector(path: Path) -> Path:
    """Images by a SigLIP encoder and Gemma 3's projector (4 tokens each), audio by a Whisper encoder and Ultravox's
    projector (150 tokens for each 30 s); one layer each."""
    out = gguf.GGUFWriter(str(path), "clip")
    out.add_file_type(gguf.LlamaFileType.ALL_F32)
    out.add_bool("clip.use_gelu", True)
    w = _Tensors(out, np.random.default_rng(1))
    _vision(w, width=32, side=32, patch=8)
    _audio(w, width=32, mel=80, stack=10)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    return path


class _Tensors:
    def __init__(self, out: gguf.GGUFWriter, random: np.random.Generator) -> None:
        self.out, self._random = out, random

    def random(self, name: str, *shape: int, kind: type[np.floating[Any]] = np.float32) -> None:
        self.out.add_tensor(name, (0.1 * self._random.standard_normal(shape, dtype=np.float32)).astype(kind))

    def ones(self, name: str, width: int) -> None:
        self.out.add_tensor(name, np.ones(width, np.float32))

    def linear(self, name: str, rows: int, columns: int, *, bias: bool = True) -> None:
        self.random(f"{name}.weight", rows, columns)
        if bias:
            self.random(f"{name}.bias", rows)

    def norm(self, name: str, width: int) -> None:
        self.ones(f"{name}.weight", width)
        self.random(f"{name}.bias", width)

    def encoder(self, part: str, kind: str, width: int, *, key_bias: bool) -> None:
        """One layer of a transformer encoder, and what every encoder declares."""
        self.out.add_bool(f"clip.has_{part}_encoder", True)
        self.out.add_string(f"clip.{part}.projector_type", kind)
        numbers = {"embedding_length": width, "feed_forward_length": 2 * width, "block_count": 1}
        for key, value in (numbers | {"projection_dim": WIDTH, "attention.head_count": 2}).items():
            self.out.add_uint32(f"clip.{part}.{key}", value)
        self.out.add_float32(f"clip.{part}.attention.layer_norm_epsilon", 1e-5)
        prefix = part[0]
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            self.linear(f"{prefix}.blk.0.{name}", width, width, bias=key_bias or name != "attn_k")
        self.linear(f"{prefix}.blk.0.ffn_up", 2 * width, width)
        self.linear(f"{prefix}.blk.0.ffn_down", width, 2 * width)
        for name in ("blk.0.ln1", "blk.0.ln2", "post_ln"):
            self.norm(f"{prefix}.{name}", width)


def _vision(w: _Tensors, width: int, side: int, patch: int) -> None:
    for key, value in {"image_size": side, "patch_size": patch, "projector.scale_factor": 2}.items():
        w.out.add_uint32(f"clip.vision.{key}", value)
    w.out.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    w.out.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    w.encoder("vision", "gemma3", width, key_bias=True)
    w.random("v.patch_embd.weight", width, 3, patch, patch)
    w.random("v.patch_embd.bias", width)
    w.random("v.position_embd.weight", (side // patch) ** 2, width)
    w.random("mm.input_projection.weight", width, WIDTH)
    w.ones("mm.soft_emb_norm.weight", width)


def _audio(w: _Tensors, width: int, mel: int, stack: int) -> None:
    w.out.add_uint32("clip.audio.num_mel_bins", mel)
    w.out.add_uint32("clip.audio.projector.stack_factor", stack)
    w.encoder("audio", "ultravox", width, key_bias=False)
    for number, inputs in ((1, mel), (2, width)):
        w.random(f"a.conv1d.{number}.weight", width, inputs, 3, kind=np.float16)
        w.random(f"a.conv1d.{number}.bias", width, 1)
    w.random("a.position_embd.weight", 1500, width)
    w.linear("mm.a.mlp.1", 2 * WIDTH, stack * width, bias=False)
    w.linear("mm.a.mlp.2", WIDTH, WIDTH, bias=False)
    w.ones("mm.a.norm_pre.weight", stack * width)
    w.ones("mm.a.norm_mid.weight", WIDTH)
