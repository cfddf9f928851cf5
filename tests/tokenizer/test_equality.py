"""Ids, pieces and attributes equal the engine's, for every type and every pre-tokenizer group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from synapse.artifacts.gguf import read_header
from synapse.artifacts.tokenizer import Tokenizer, build_tokenizer, data, probe_corpus, read_vocabulary
from synapse.artifacts.tokenizer.vocabulary import Vocabulary
from tests import models
from tests.tokenizer import vocabularies
from tests.tokenizer.gguf_bytes import vocabulary_metadata, write
from tests.tokenizer.oracle import MODES, Answer, Question, ask, ask_all

SEEDS = (1, 2)
PLAIN = ((False, False),)
"""The mode in which nothing but the pre-tokenizer and the model is at work."""


def differences(
    tokenizer: Tokenizer, texts: list[str], answer: Answer, modes: tuple[tuple[bool, bool], ...] = MODES
) -> Iterator[str]:
    """The differences, in words."""
    assert answer.error == ""
    for (add, parse), wanted in zip(modes, answer.ids, strict=True):
        got = tokenizer.encode_batch(texts, add_special=add, parse_special=parse)
        for text, ours, theirs in zip(texts, got, wanted, strict=True):
            if ours != theirs:
                yield f"add_special={add} parse_special={parse} {text!a:.90}: ours {ours[:12]}, engine {theirs[:12]}"


def assert_equal(path: Path, texts: Callable[[Vocabulary], list[str]] = probe_corpus) -> Tokenizer:
    """Ids in all modes, pieces, attributes. Returns the tokenizer, which went through its cached form."""
    header = read_header(path)
    tokenizer = Tokenizer.from_cache(build_tokenizer(header).to_cache())
    asked = texts(tokenizer.vocabulary)
    answer = ask(path, asked, tables=True)
    assert list(differences(tokenizer, asked, answer))[:5] == []
    assert tokenizer.vocabulary.attributes == answer.attributes
    assert tokenizer.pieces() == answer.pieces
    return tokenizer


def several_seeds(vocabulary: Vocabulary) -> list[str]:
    return [text for seed in SEEDS for text in probe_corpus(vocabulary, seed)]


def test_every_pre_tokenizer_group(tmp_path: Path) -> None:
    """One synthetic vocabulary for each of the 31 expression lists, all in one child."""
    groups = list(data.pretokenizers().groups)
    assert (len(groups), len(data.pretokenizers().names)) == (31, 91)
    paths = {
        group: vocabularies.bpe(
            tmp_path / f"{group}.gguf", group, model="whitespace" if group == "whitespace" else "gpt2"
        )
        for group in groups
    }
    tokenizers = {group: build_tokenizer(read_header(path)) for group, path in paths.items()}
    texts = {group: probe_corpus(tokenizer.vocabulary) for group, tokenizer in tokenizers.items()}
    answers = ask_all([Question(str(paths[group]), texts[group], modes=PLAIN) for group in groups])
    bad = {
        group: found
        for group, answer in zip(groups, answers, strict=True)
        if (found := list(differences(tokenizers[group], texts[group], answer, PLAIN))[:2])
    }
    assert bad == {}


@pytest.mark.parametrize("pre", ["gemma4", "sarvam-moe", "granite-embed-multi-311m", "glm4", "tekken", "jina-v2-de"])
def test_names_with_flags_of_their_own(pre: str, tmp_path: Path) -> None:
    assert_equal(vocabularies.bpe(tmp_path / "v.gguf", pre))


def test_whitespace_model_lowers_case(tmp_path: Path) -> None:
    assert_equal(vocabularies.bpe(tmp_path / "v.gguf", "gpt-2", model="whitespace"))


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"add_space_prefix": False},
        {"add_bos_token": False, "add_eos_token": True},
    ],
)
def test_sentencepiece(flags: dict[str, bool], tmp_path: Path) -> None:
    tokenizer = assert_equal(vocabularies.spm(tmp_path / "v.gguf", **flags), several_seeds)
    assert tokenizer.recipe.virtual_texts, "some characters are no tokens"  # type: ignore[union-attr]


@pytest.mark.parametrize("prefix", [False, True])
@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_unigram(prefix: bool, merge: bool, mapped: bool, tmp_path: Path) -> None:
    path = vocabularies.ugm(
        tmp_path / "v.gguf", mapped=mapped, add_space_prefix=prefix, remove_extra_whitespaces=merge, add_bos_token=True
    )
    extra = ["e\u0301\u0323 e\u0301 e\u0323 A\u030a A\u0301", "ﬁ…①K\u200b\t\u3000 x", "[PAD1]", " [PAD2] ", "￭ 中 ￭￭ a"]
    assert_equal(path, lambda vocabulary: extra + probe_corpus(vocabulary))


@pytest.mark.parametrize("flags", [{}, {"normalizer.lowercase": False}, {"normalizer.strip_accents": False}])
def test_wordpiece(flags: dict[str, bool], tmp_path: Path) -> None:
    path = vocabularies.wpm(tmp_path / "v.gguf", **flags)
    long = [
        "a" * 199,
        "a" * 200,
        "a" * 201,
        "the" * 3000,
        "x " + "ab▁" * 200 + " the",
        "▁ ▁a a▁",
        "中" * 300,
        "é" * 400,
    ]
    assert_equal(path, lambda vocabulary: long + several_seeds(vocabulary))


def test_smollm2() -> None:
    assert_equal(models.smollm2(), several_seeds)


def test_minilm() -> None:
    assert_equal(models.minilm_f16_gguf())


def test_gemma3() -> None:
    assert_equal(models.gemma3())


def test_special_tokens_of_many_kinds(tmp_path: Path) -> None:
    """Tokens that begin, end and contain one another; ends of generation that the file calls ordinary."""
    tokens, merges = vocabularies.small_bpe()
    special = {
        "<x1": vocabularies.USER_DEFINED, "x1>>": vocabularies.USER_DEFINED, "<|a|>": vocabularies.CONTROL,
        "<|a|><|b|>": vocabularies.CONTROL, "|a|": vocabularies.CONTROL, "</s>": vocabularies.NORMAL,
        "<|im_end|>": vocabularies.NORMAL, "<|channel|>": vocabularies.CONTROL, "  ": vocabularies.USER_DEFINED,
        "   ": vocabularies.USER_DEFINED, "<fim_prefix>": vocabularies.NORMAL, "[MASK]": vocabularies.CONTROL,
        "<unk>": vocabularies.UNKNOWN, "<|end|>": vocabularies.NORMAL, "<|return|>": vocabularies.NORMAL,
        "<|call|>": vocabularies.NORMAL, "<unused7>": vocabularies.CONTROL,
    }  # fmt: skip
    listed = [*tokens, *special]
    types = [vocabularies.NORMAL] * len(tokens) + list(special.values())
    metadata = vocabulary_metadata("gpt2", listed, pre="gpt-2", merges=merges, types=types)
    metadata["general.name"] = "a modern-bert of ours"
    texts = [
        "<x1>>",
        "x1>><x1",
        "<|a|><|b|><|a|>",
        "a  <|a|> b",
        " [MASK]  x[MASK] \n[MASK]",
        "<|a<|a|>|>",
        "     <|end|>  ",
    ]
    assert_equal(write(tmp_path / "v.gguf", metadata), lambda vocabulary: texts + probe_corpus(vocabulary, 3))


def test_white_space_beside_special_tokens(tmp_path: Path) -> None:
    tokens, scores, types = vocabularies.spm_tokens()
    tokens += ["<|endoftext|>", "<|user|>"]
    scores += [0.0, 0.0]
    types += [vocabularies.CONTROL, vocabularies.CONTROL]
    metadata = vocabulary_metadata("llama", tokens, scores=scores, types=types)
    metadata["general.name"] = "Phi-3 of ours"
    texts = [
        "<|user|> \n\t a",
        "a <|user|>",
        "<|user|>   ",
        "<|user|> <|user|>  x",
        "</s>  b",
        "<s>  b",
        "<|endoftext|> \n c",
    ]
    assert_equal(write(tmp_path / "v.gguf", metadata), lambda vocabulary: texts + probe_corpus(vocabulary))


def _published() -> list[Path]:
    directory = models.test_data()
    return sorted((directory / "tokenizers").glob("*.gguf")) if directory else []


@pytest.mark.skipif(not _published(), reason="PUMAS_TEST_DATA names no directory with vocabularies")
@pytest.mark.parametrize("path", _published(), ids=lambda path: path.stem)
def test_published_vocabularies(path: Path) -> None:
    tokenizer = assert_equal(path)
    inputs = path.with_name(f"{path.name}.inp")
    if not inputs.exists():
        return
    texts = inputs.read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    wanted = [list(map(int, line.split())) for line in path.with_name(f"{path.name}.out").read_text().splitlines()]
    got = tokenizer.encode_batch(texts[: len(wanted)], add_special=False, parse_special=False)
    assert got == wanted


def test_every_code_point_of_the_basic_planes(tmp_path: Path) -> None:
    """Classes, case and marks come from the engine's tables: 3 contexts, sampled evenly over all code points."""
    texts = [
        "".join(f"a{chr(c)}b {chr(c)}1{chr(c)}\n" for c in range(start, start + 64) if not 0xD800 <= c < 0xE000)
        for start in range(0, 0x32000, 64 * 5)
    ]
    for path in (vocabularies.bpe(tmp_path / "b.gguf", "deepseek-v3"), vocabularies.wpm(tmp_path / "w.gguf")):
        header = read_header(path)
        tokenizer = build_tokenizer(header)
        [answer] = ask_all([Question(str(path), texts, modes=PLAIN)])
        assert list(differences(tokenizer, texts, answer, PLAIN))[:3] == []
        assert read_vocabulary(header) == tokenizer.vocabulary
