"""GGUF headers, with the vocabulary and what a tokenizer is built from."""

from __future__ import annotations

import random
import struct
from functools import cache

import numpy as np

from synapse.artifacts.gguf import ArtifactInvalid, parse_header
from synapse.artifacts.tokenizer import NotBuildable, read_vocabulary
from synapse.artifacts.tokenizer.tokenizer import prepare
from tests.tokenizer.gguf_bytes import gguf_bytes, tensor_bytes, vocabulary_metadata
from tests.tokenizer.vocabularies import BYTE_TOKENS, charsmap

INVARIANT = (
    "Any bytes are a header, a vocabulary and what a tokenizer is built from, or ArtifactInvalid or NotBuildable; "
    "memory follows the size of the file."
)
_LENGTHS = (0, 1, 2, 8, 9, 12, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**61, 2**63, 2**64 - 8, 2**64 - 1)


@cache
def seeds() -> tuple[bytes, ...]:
    """Whole files, one for each type of vocabulary."""
    tensors = [tensor_bytes("token_embd.weight", (32, 2), 8, 0), tensor_bytes("cls.output.weight", (4,), 0, 96)]
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, "▁", "a", "b", "ab", "▁a", "▁ab", "<|im_end|>"]
    types = [2, 3, 3, *[6] * 256, 1, 1, 1, 1, 1, 1, 3]
    scores = [-float(i) for i in range(len(tokens))]
    plain = [token for token in tokens if token not in BYTE_TOKENS]
    plain_types = [kind for kind in types if kind != 6]
    letters = [chr(c) for c in range(33, 127)]
    vocabularies = (
        vocabulary_metadata("gpt2", [*letters, "ab", "abc"], pre="llama-bpe", merges=["a b", "ab c"], types=[1] * 96),
        vocabulary_metadata("gpt2", [*tokens, *"cd"], pre="gemma4", merges=["a b", "▁ a"]),
        vocabulary_metadata("llama", tokens, scores=scores, types=types, bos_token_id=1, add_space_prefix=True),
        vocabulary_metadata(
            "bert", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁a", "b"],
            unknown_token_id=1, bos_token_id=2, seperator_token_id=3,
        ),
        vocabulary_metadata(
            "t5", plain, scores=scores[: len(plain)], types=plain_types, unknown_token_id=0,
            precompiled_charsmap=charsmap({b"\t": b" ", "é".encode(): b"e", b"e\xcc\x81": b"e"}),
        ),
    )  # fmt: skip
    return tuple(
        gguf_bytes(
            {"general.architecture": "llama", "flag": True, "u": np.arange(4, dtype=np.uint8), **metadata},
            tensors,
            bytes(128),
        )
        for metadata in vocabularies
    )


def generate(rng: random.Random) -> bytes:
    """One of the seeds with a few bits, bytes, lengths or stretches changed, or cut."""
    content = bytearray(rng.choice(seeds()))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(content) - 8)
        match rng.randrange(6):
            case 0:
                content[at] ^= 1 << rng.randrange(8)
            case 1:
                content[at] = rng.randrange(256)
            case 2:
                content[at : at + 8] = struct.pack("<Q", rng.choice(_LENGTHS))
            case 3:
                content[at : at + 4] = struct.pack("<I", rng.choice(_LENGTHS) & 0xFFFF_FFFF)
            case 4:
                other = rng.randrange(len(content) - 8)
                size = rng.choice((1, 4, 8, 12, 32))
                content[at : at + size] = content[other : other + size]
            case 5:
                # A length that still is one: the neighbourhood of the true value.
                value = int.from_bytes(content[at : at + 8], "little") + rng.choice((-1, 1, 8))
                content[at : at + 8] = struct.pack("<Q", value & 0xFFFF_FFFF_FFFF_FFFF)
    if rng.random() < 0.05:
        del content[rng.randrange(len(content)) :]
    return bytes(content)


def outcome(content: bytes) -> str:
    """How far it came: "refused", "header", "vocabulary" or "recipe". Raises only what is a bug."""
    reached = "refused"
    try:
        header = parse_header(content)
        reached = "header"
        for fact in ("architecture", "context_length", "pooling", "causal", "ranking_head", "weights", "shards"):
            try:
                getattr(header, fact)
            except ArtifactInvalid:
                continue
        vocabulary = read_vocabulary(header)
        reached = "vocabulary"
        prepare(vocabulary, header)
        reached = "recipe"
    except (ArtifactInvalid, NotBuildable):
        pass
    return reached


def check(data: bytes) -> None:
    """The whole file."""
    outcome(data)
