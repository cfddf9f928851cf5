"""WordPiece: the engine's normalization by one table, then the longest tokens from the left, word by word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import msgspec
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from synapse.artifacts.gguf import ArtifactInvalid
from synapse.artifacts.tokenizer.bpe import SPACE_MARK, cut_at
from synapse.artifacts.tokenizer.characters import base_of, class_of, lower_of
from synapse.artifacts.tokenizer.errors import NotBuildable
from synapse.artifacts.tokenizer.models import CUT_CHARS, Runner, joined
from synapse.artifacts.tokenizer.vocabulary import Vocabulary

_LONG_WORD_CHARS: Final = 200
"""WordPiece tries every end of what is left: a word of 100,000 characters did not end in 9 minutes."""
_MAX_LENGTHS: Final = 4096
"""Sum of the tokens' different lengths, which a long word's every position may cost. BERT's is 300."""
_LONG_WORD: Final = re.compile(f"[^ ]{{{_LONG_WORD_CHARS}}}")
_SPACE: Final = re.compile(" ")

_ISOLATED_HAN: Final = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class WpmRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="wpm"):
    """What the model is built from; serializable."""

    vocabulary: Vocabulary


def prepare(vocabulary: Vocabulary) -> WpmRecipe:
    """Raises: NotBuildable, ArtifactInvalid."""
    if vocabulary.bos_id < 0 or vocabulary.sep_id < 0:
        raise ArtifactInvalid("a BERT vocabulary without its first or its separator token")
    if vocabulary.unk_id < 0:
        raise NotBuildable("no token for unknown words")
    if None in vocabulary.texts:
        raise NotBuildable("a token is no UTF-8: the engine may match parts of characters with it")
    if sum(_lengths(vocabulary)) > _MAX_LENGTHS:
        raise NotBuildable("the tokens are too long")
    return WpmRecipe(vocabulary=vocabulary)


def _lengths(vocabulary: Vocabulary) -> list[int]:
    """The tokens' different lengths in characters, longest first."""
    return sorted({len(text) for text in vocabulary.texts if text is not None}, reverse=True)


class _Normalization(dict[int, str]):
    """code point → what it becomes, with spaces around what is a word of its own. Filled as code points occur."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._lowercase, self._strip = vocabulary.lowercase, vocabulary.strip_accents

    def __missing__(self, code: int) -> str:
        value = self[code] = self._normalized(code)
        return value

    def _normalized(self, code: int) -> str:
        if self._strip:
            code = base_of(code)
        kind = class_of(code)
        if kind == " ":
            return " "
        if code in (0, 0xFFFD) or kind == "C" or (self._strip and kind == "M"):
            return ""
        text = chr(lower_of(code)) if self._lowercase else chr(code)
        alone = kind == "P" or (code < 0x7F and kind == "S") or any(a <= code <= b for a, b in _ISOLATED_HAN)
        return f" {text} " if alone else text


class Wpm:
    """The model of a recipe."""

    def __init__(self, recipe: WpmRecipe) -> None:
        vocabulary = recipe.vocabulary
        self._ids = {text: i for i, text in enumerate(vocabulary.texts) if text is not None}
        self._lengths = _lengths(vocabulary)
        self._unk = vocabulary.unk_id
        self._model = models.WordPiece(
            vocab=self._ids,
            unk_token=vocabulary.texts[vocabulary.unk_id],
            continuing_subword_prefix="",
            max_input_chars_per_word=_LONG_WORD_CHARS + 1,
        )
        tokenizer = tokenizers.Tokenizer(self._model)
        # Keeps what looks like a marked word, drops the marks that begin none.
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{SPACE_MARK}[^{SPACE_MARK}]+"), "removed", invert=True)
        self._runner = Runner(tokenizer, len(vocabulary))
        self._table = _Normalization(vocabulary)

    @cached_property
    def _words(self) -> Runner:
        """For single words, which may hold the mark themselves."""
        return Runner(tokenizers.Tokenizer(self._model), len(self._ids))

    def encode(self, pieces: Sequence[str], heads: Sequence[bool]) -> list[list[int]]:
        """See Model."""
        if any(len(piece) > CUT_CHARS for piece in pieces):
            return joined([cut_at(piece, _SPACE) for piece in pieces], self._encode)
        return self._encode(pieces)

    def _encode(self, pieces: Sequence[str]) -> list[list[int]]:
        normalized = [piece.translate(self._table) for piece in pieces]
        odd = [i for i, text in enumerate(normalized) if SPACE_MARK in text or _LONG_WORD.search(text)]
        if not odd:
            return self._runner.encode([self._marked(text) for text in normalized])
        rest = [self._marked("" if i in odd else text) for i, text in enumerate(normalized)]
        rows = self._runner.encode(rest)
        for i in odd:
            rows[i] = self._by_word(normalized[i])
        return rows

    @staticmethod
    def _marked(text: str) -> str:
        return SPACE_MARK + text.replace(" ", SPACE_MARK)

    def _by_word(self, text: str) -> list[int]:
        words = [SPACE_MARK + word for word in text.split(" ") if word]
        short = [word for word in words if len(word) <= _LONG_WORD_CHARS]
        rows = iter(self._words.encode(short))
        out: list[int] = []
        for word in words:
            out += next(rows) if len(word) <= _LONG_WORD_CHARS else self._long_word(word)
        return out

    def _long_word(self, word: str) -> list[int]:
        """The longest token first, then the longest of what is left; the unknown token if that fails anywhere."""
        out: list[int] = []
        at = 0
        while at < len(word):
            for length in self._lengths:
                token_id = self._ids.get(word[at : at + length])
                if token_id is not None and at + length <= len(word):
                    out.append(token_id)
                    at += length
                    break
            else:
                return [self._unk]
        return out
