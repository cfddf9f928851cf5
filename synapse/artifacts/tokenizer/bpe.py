"""BPE: the file's merges, over GPT-2's byte alphabet or raw UTF-8, after one of the engine's 31 pre-tokenizers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from synapse.artifacts.gguf import ArtifactInvalid, Header
from synapse.artifacts.tokenizer import data, regexes
from synapse.artifacts.tokenizer.errors import NotBuildable
from synapse.artifacts.tokenizer.models import CUT_CHARS, Runner, joined
from synapse.artifacts.tokenizer.vocabulary import Vocabulary
from synapse.artifacts.tokenizer.words import AsciiWords

SPACE_MARK: Final = "▁"
_UNCUT_GROUPS: Final = frozenset({"exaone-moe", "superbpe"})
"""Groups whose expressions may match across a space between two letters."""
_PART_CHARS: Final = 160
"""Texts are looked at in parts of about so many characters: most of them are ASCII in many texts that are not."""
_BETWEEN_WORDS: Final = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z])")


def _byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    characters = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [characters[byte] for byte in range(256)]


BYTE_ALPHABET: Final = _byte_alphabet()


class BpeRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="bpe"):
    """What the model is built from; serializable. Ids from len(vocabulary) on are virtual."""

    vocabulary: Vocabulary
    virtual_texts: list[str]
    virtual_ids: list[list[int]]
    merges: bytes
    """i32 pairs of ids, best first."""


def prepare(vocabulary: Vocabulary, header: Header) -> BpeRecipe:
    """Raises: NotBuildable, ArtifactInvalid."""
    if vocabulary.model == "hybriddna":
        raise NotBuildable("hybriddna tokenizes sequences by rules of its own")
    group = data.pretokenizers().groups[data.pretokenizers().names[vocabulary.pre].group]
    listed = header.strings("tokenizer.ggml.merges")
    if listed is None and vocabulary.pre != "kimi-k2":
        raise ArtifactInvalid("tokenizer.ggml.merges is missing")
    known = {text: i for i, text in enumerate(vocabulary.texts) if text is not None}
    table = VirtualTable(vocabulary, known, raw=not group.byte_encode)
    for text in BYTE_ALPHABET if group.byte_encode else [f"<0x{byte:02X}>" for byte in range(256)]:
        table.require(text)
    merges = _merges(listed or [], table)
    if vocabulary.ignore_merges and any(len(text) > 1 for text in table.texts):
        raise NotBuildable("merges name texts that are no tokens, and whole words are looked up first")
    if not group.byte_encode:
        byte_ids = [table.ids[f"<0x{byte:02X}>"] for byte in range(256)]
        if np.isin(merges, byte_ids).any():
            raise NotBuildable("merges are made of byte tokens' texts")
    return BpeRecipe(
        vocabulary=vocabulary,
        virtual_texts=table.texts,
        virtual_ids=[table.fallback(text) for text in table.texts],
        merges=merges.tobytes(),
    )


class VirtualTable:
    """Ids by text, where texts that are no tokens get ids behind the vocabulary."""

    def __init__(self, vocabulary: Vocabulary, known: dict[str, int], *, raw: bool) -> None:
        self.ids, self.texts = known, list[str]()
        self._count, self._raw = len(vocabulary), raw
        self._bytes = {token[0]: i for i, token in enumerate(vocabulary.tokens) if len(token) == 1}

    def require(self, text: str) -> int:
        token_id = self.ids.get(text)
        if token_id is None:
            token_id = self.ids[text] = self._count + len(self.texts)
            self.texts.append(text)
        return token_id

    def fallback(self, text: str) -> list[int]:
        """What the engine emits for a text that is no token: the tokens of its bytes, as far as there are any."""
        if self._raw:
            found = (self.ids.get(f"<0x{byte:02X}>", self._count) for byte in text.encode())
            return [token_id for token_id in found if token_id < self._count]
        return [self._bytes[byte] for byte in text.encode() if byte in self._bytes]


def _merges(listed: list[bytes], table: VirtualTable) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    pairs: dict[tuple[int, int], None] = {}  # the first of two equal merges wins
    require = table.require
    for raw in listed:
        try:
            merge = raw.decode()
        except UnicodeDecodeError:
            continue  # no text holds such bytes, so it never applies
        at = merge.find(" ", 1)
        if at < 0 or at + 1 == len(merge):
            continue  # an empty part never occurs
        first, second = merge[:at], merge[at + 1 :]
        require(first + second)
        pairs.setdefault((require(first), require(second)))
    return np.array(list(pairs), np.int32).reshape(-1, 2)


class Bpe:
    """The model of a recipe."""

    def __init__(self, recipe: BpeRecipe) -> None:
        vocabulary = recipe.vocabulary
        name = data.pretokenizers().names[vocabulary.pre]
        group = data.pretokenizers().groups[name.group]
        texts = [*vocabulary.texts, *recipe.virtual_texts]
        model = models.BPE(
            vocab={text: i for i, text in enumerate(texts) if text is not None},
            merges=merge_texts(texts, recipe.merges),
            ignore_merges=vocabulary.ignore_merges,
            byte_fallback=not group.byte_encode,
        )
        tokenizer = tokenizers.Tokenizer(model)
        steps: list[pre_tokenizers.PreTokenizer] = []
        self._words = vocabulary.model == "whitespace"
        if self._words:
            steps.append(pre_tokenizers.Split(" ", "removed"))
        steps += [pre_tokenizers.Split(Regex(regexes.translate(regex)), "isolated") for regex in group.regexes]
        if group.byte_encode:
            steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
        self._runner = Runner(tokenizer, len(vocabulary), recipe.virtual_ids)
        self._ascii: AsciiWords | None = None
        if group.byte_encode and not self._words:
            words = tokenizers.Tokenizer(model)
            words.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            self._ascii = AsciiWords(group.regexes, Runner(words, len(vocabulary), recipe.virtual_ids).encode)
        self._escape = vocabulary.escape_whitespaces
        self._cut = group.byte_encode and name.group not in _UNCUT_GROUPS
        self._table = _word_table(vocabulary.lowercase) if self._words else None
        self._direct = self._newlines(vocabulary) if name.engine == "GEMMA4" else {}

    def encode(self, pieces: Sequence[str], heads: Sequence[bool]) -> list[list[int]]:
        """See Model."""
        if self._table is not None:
            pieces = [piece.translate(self._table) for piece in pieces]
        if self._escape:
            pieces = [piece.replace(" ", SPACE_MARK) for piece in pieces]
        if self._direct and any("\n" in piece for piece in pieces):
            return [self._with_newlines(piece) for piece in pieces]
        if not self._cut:
            return self._parts(pieces)
        parts = [cut_at(piece, _BETWEEN_WORDS, _PART_CHARS) for piece in pieces]
        return joined(parts, self._parts)

    def _parts(self, parts: Sequence[str]) -> list[list[int]]:
        if self._ascii is None:
            return self._runner.encode(parts)
        rest = iter(self._runner.encode([part for part in parts if not part.isascii()]))
        return [self._ascii.encode(part) if part.isascii() else next(rest) for part in parts]

    def _newlines(self, vocabulary: Vocabulary) -> dict[str, int]:
        """Runs of newlines that are tokens but that the merges would not reach: the engine looks them up directly."""
        runs = {token.decode(): i for i, token in enumerate(vocabulary.tokens) if token and token.strip(b"\n") == b""}
        rows = self._runner.encode(list(runs))
        return {run: i for (run, i), row in zip(runs.items(), rows, strict=True) if row != [i]}

    def _with_newlines(self, piece: str) -> list[int]:
        parts = re.findall(r"\n+|[^\n]+", piece)
        rows = self._runner.encode(parts)
        out: list[int] = []
        for part, row in zip(parts, rows, strict=True):
            direct = self._direct.get(part)
            out += row if direct is None else [direct]
        return out


def merge_texts(texts: Sequence[str | None], merges: bytes) -> list[tuple[str, str]]:
    """Pairs of ids, packed as i32, as pairs of texts."""
    left, right = np.frombuffer(merges, np.int32).reshape(-1, 2).T.tolist()
    return [(texts[a] or "", texts[b] or "") for a, b in zip(left, right, strict=True)]


def cut_at(text: str, border: re.Pattern[str], size: int = CUT_CHARS) -> list[str]:
    """A text in parts of about `size` characters, cut at matches of `border`: before them, never elsewhere."""
    parts: list[str] = []
    start = 0
    while len(text) - start > size:
        found = border.search(text, start + size)
        if found is None:
            break
        parts.append(text[start : found.start()])
        start = found.start()
    parts.append(text[start:])
    return parts


def _word_table(lowercase: bool) -> dict[int, str]:
    table = dict.fromkeys(data.unicode().spaces, " ")
    if lowercase:
        table.update((code, chr(lower)) for code, lower in data.unicode().lower)
    return table
