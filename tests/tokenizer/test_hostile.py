"""Hostile vocabularies and texts: bounded time and memory (in a child with hard limits), a clear error or an answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tokenizer import bounded, vocabularies
from tests.tokenizer.gguf_bytes import Text, Value, vocabulary_metadata, write
from tests.tokenizer.oracle import ROOT
from tests.tokenizer.vocabularies import BYTE_TOKENS

T5 = {"unknown_token_id": 0, "eos_token_id": 1}
MILLION = 1_000_000


def outcome(path: Path, *kinds: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.tokenizer.bounded", str(path), *kinds],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=600,
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-600:]}"
    return done.stdout.strip()


def _bpe(tokens: list[Text], merges: list[Text], **rest: Value) -> dict[Text, Value]:
    return vocabulary_metadata("gpt2", tokens, pre="gpt-2", merges=merges, **rest)


def _million_tokens() -> dict[Text, Value]:
    return _bpe([f"t{i:x}" for i in range(MILLION)], [])


def _million_merges() -> dict[Text, Value]:
    return _bpe(["a", "b"], [f"{i:x} {i + 1:x}" for i in range(MILLION // 2)])


def _cyclic_merges() -> dict[Text, Value]:
    return _bpe(["a", "b", "ab", "ba"], ["a b", "b a", "ab a", "a ba", "ab ab", "ba b", "b ab", "a a", "aa a"])


def _nested_specials() -> dict[Text, Value]:
    tokens: list[Text] = ["<" * length for length in range(1, 2000)]
    return _bpe(tokens, [], types=[3] * len(tokens))


def _many_specials() -> dict[Text, Value]:
    tokens: list[Text] = [f"<{i}>" for i in range(70_000)]
    return _bpe(tokens, [], types=[3] * len(tokens))


def _long_specials() -> dict[Text, Value]:
    return _bpe(["ab" * 100_000, "ba" * 100_000, "c"], [], types=[3, 3, 1])


def _long_token(model: str) -> dict[Text, Value]:
    tokens: list[Text] = ["<unk>", "</s>", *BYTE_TOKENS, "▁", "a", "b" * 400_000]
    scores = [-float(i) for i in range(len(tokens))]
    return vocabulary_metadata(model, tokens, scores=scores, **T5)


def _long_word() -> dict[Text, Value]:
    return vocabulary_metadata(
        "bert", ["[UNK]", "[CLS]", "[SEP]", "b" * 400_000], unknown_token_id=0, bos_token_id=1, seperator_token_id=2
    )


def _run_token() -> dict[Text, Value]:
    """Runs of one character, all with one score: their merging would have to be tried out."""
    tokens: list[Text] = ["<unk>", "<s>", "</s>", *BYTE_TOKENS, *("a" * length for length in range(1, 3000))]
    return vocabulary_metadata("llama", tokens, scores=[-1.0] * len(tokens))


HOSTILE = {
    "a million tokens": (_million_tokens, "ok 1000000"),
    "half a million merges of what is no token": (_million_merges, "ok 2"),
    "cyclic merges": (_cyclic_merges, "ok 4"),
    "special tokens that begin one another": (_nested_specials, "NotBuildable"),
    "too many special tokens": (_many_specials, "NotBuildable"),
    "special tokens of 200,000 characters": (_long_specials, "NotBuildable"),
    "a token of 400,000 characters, SPM": (lambda: _long_token("llama"), "NotBuildable"),
    "a token of 400,000 characters, UGM": (lambda: _long_token("t5"), "NotBuildable"),
    "a token of 400,000 characters, WPM": (_long_word, "NotBuildable"),
    "long runs with one score": (_run_token, "NotBuildable"),
    "one token twice among many": (lambda: _bpe([f"t{i}" for i in range(100_000)] + ["t7"], []), "ArtifactInvalid"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_vocabularies(name: str, tmp_path: Path) -> None:
    make, says = HOSTILE[name]
    assert outcome(write(tmp_path / "v.gguf", make())).startswith(says)


@pytest.mark.parametrize("kind", ["bpe", "spm", "wpm", "ugm"])
def test_long_texts(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "v.gguf"
    match kind:
        case "bpe":
            vocabularies.bpe(path, "llama3")
        case "spm":
            vocabularies.spm(path)
        case "wpm":
            vocabularies.wpm(path)
        case "ugm":
            vocabularies.ugm(path, remove_extra_whitespaces=True)
    assert outcome(path, *bounded.TEXTS).startswith("ok")
