"""Small vocabularies of every type that tests build on the spot."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from synapse.artifacts.gguf import read_header
from synapse.artifacts.tokenizer import data
from synapse.artifacts.tokenizer.bpe import BYTE_ALPHABET
from tests import models
from tests.tokenizer.gguf_bytes import Text, Value, vocabulary_metadata, write

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
WORDS = tuple(
    word
    for line in (
        "the of and to in is that it for was on are as with his they at be this from have or by one had not",
        "but what all were when we there can an your which their said if do will each about how up out them",
        "then she many some so these would other into has more her two like him see time could no make than",
        "first been its who now people my made over did down only way find use may water long little very",
        "after words called just where most know naïve café straße",
    )
    for word in line.split()
)


@cache
def small_bpe() -> tuple[list[bytes], list[bytes]]:
    """Tokens and merges of a real byte-level vocabulary, its first 4,000 merges."""
    header = read_header(models.smollm2())
    tokens = [text.encode() for text in BYTE_ALPHABET]
    known, merges = set(tokens), []
    for merge in (header.strings("tokenizer.ggml.merges") or [])[:4000]:
        merges.append(merge)
        token = merge.replace(b" ", b"")
        if token not in known:
            known.add(token)
            tokens.append(token)
    return tokens, merges


def bpe(path: Path, pre: str, *, model: str = "gpt2", **rest: Value) -> Path:
    """The small byte-level vocabulary under another pre-tokenizer; byte tokens too where it works on raw UTF-8."""
    tokens, merges = small_bpe()
    entry = data.pretokenizers().names[pre]
    raw = not data.pretokenizers().groups[entry.group].byte_encode
    listed: list[Text] = [b"<|endoftext|>", *tokens]
    if raw:
        listed += [
            token for token in (*BYTE_TOKENS, "▁", "▁▁", "\n\n", "\n\n\n", "é", "中") if token.encode() not in tokens
        ]
    types = [CONTROL] + [NORMAL] * (len(listed) - 1)
    return write(path, vocabulary_metadata(model, listed, pre=pre, merges=merges, types=types, bos_token_id=0, **rest))


def spm_tokens() -> tuple[list[str], list[float], list[int]]:
    """Tokens, distinct scores and types of a SentencePiece vocabulary; some characters occur inside tokens only."""
    tokens = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, "<|x|>", "<user>"]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, CONTROL, USER_DEFINED]
    pieces: dict[str, None] = {"▁": None}
    for word in WORDS:
        marked = f"▁{word}"
        for length in range(2, len(marked) + 1):
            for at in range(len(marked) - length + 1):
                pieces[marked[at : at + length]] = None
    pieces |= dict.fromkeys(c for word in WORDS for c in word if c not in "xßé")
    pieces |= dict.fromkeys(
        ("▁▁", "▁▁▁", "▁▁▁▁", "--", "---", "----", "中文", "😀", "e\u0301", "0", "1", "2", "10", "100")
    )
    tokens += pieces
    types += [NORMAL] * len(pieces)
    order = np.random.default_rng(5).permutation(len(tokens))
    return tokens, [-1.0 - 0.25 * rank for rank in order.tolist()], types


def spm(path: Path, **rest: Value) -> Path:
    tokens, scores, types = spm_tokens()
    return write(path, vocabulary_metadata("llama", tokens, scores=scores, types=types, **rest))


def charsmap(entries: dict[bytes, bytes]) -> np.ndarray:
    """A precompiled character map: a double array whose every node lies by itself, 256 units for each."""
    values = b"".join(value + b"\0" for value in entries.values())
    offsets, at = {}, 0
    for key, value in entries.items():
        offsets[key] = at
        at += len(value) + 1
    prefixes = sorted({key[:length] for key in entries for length in range(len(key) + 1)}, key=len)
    block = {prefix: 256 * (index + 1) for index, prefix in enumerate(prefixes)}
    units = np.zeros(256 * (len(prefixes) + 1), np.uint32)
    units[0] = block[b""] << 10
    for prefix in prefixes[1:]:
        node = block[prefix[:-1]] ^ prefix[-1]
        units[node] = prefix[-1] | ((node ^ block[prefix]) << 10)
        if prefix in entries:
            units[node] |= 0x100
            units[block[prefix]] = 0x8000_0000 | offsets[prefix]
    array = units.tobytes()
    return np.frombuffer(len(array).to_bytes(4, "little") + array + values, np.uint8)


CHARACTERS = {
    b"\t": b" ", b"\n": b" ", "\u3000".encode(): b" ", "\u200b".encode(): b"", "ﬁ".encode(): b"fi",
    "Å".encode(): "Å".encode(), "A\u030a".encode(): "Å".encode(), "e\u0301".encode(): "é".encode(),
    "e\u0301\u0323".encode(): "ẹ́".encode(), "①".encode(): b"1", "…".encode(): b"...", b"K": b"K",
}  # fmt: skip


def ugm(path: Path, *, mapped: bool = True, **rest: Value) -> Path:
    tokens, scores, types = spm_tokens()
    keep = [i for i, kind in enumerate(types) if kind not in (BYTE, USER_DEFINED)]
    tokens, scores, types = [tokens[i] for i in keep], [scores[i] for i in keep], [types[i] for i in keep]
    tokens += ["[PAD1]", "[PAD2]"]
    scores += [-100000.0, -100000.0]
    types += [UNUSED, UNUSED]
    if mapped:
        rest["precompiled_charsmap"] = charsmap(CHARACTERS)
    return write(
        path,
        vocabulary_metadata(
            "t5", tokens, scores=scores, types=types, bos_token_id=1, eos_token_id=2, unknown_token_id=0, **rest
        ),
    )


def wpm(path: Path, **rest: Value) -> Path:
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<x1", "x1>>"]
    types = [CONTROL] * 5 + [USER_DEFINED] * 2
    characters = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'-éßñ中文日ακдשע▁"
    pieces = dict.fromkeys([f"▁{c}" for c in characters] + list(characters) + [f"▁{word}" for word in WORDS])
    pieces |= dict.fromkeys(["ing", "ed", "er", "tion", "ss", "ppi"])
    tokens += pieces
    types += [NORMAL] * len(pieces)
    return write(
        path,
        vocabulary_metadata(
            "bert",
            tokens,
            types=types,
            bos_token_id=2,
            eos_token_id=3,
            seperator_token_id=3,
            unknown_token_id=1,
            **rest,
        ),
    )
