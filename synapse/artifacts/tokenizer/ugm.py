"""Unigram: the engine's normalization with the file's charsmap, then the best path by the tokens' scores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers import Regex, models, pre_tokenizers

from synapse.artifacts.gguf import Header
from synapse.artifacts.tokenizer.bpe import SPACE_MARK, cut_at
from synapse.artifacts.tokenizer.charsmap import CharacterMap, read_charsmap
from synapse.artifacts.tokenizer.errors import NotBuildable
from synapse.artifacts.tokenizer.models import CUT_CHARS, Runner, joined
from synapse.artifacts.tokenizer.vocabulary import NORMAL, UNUSED, USER_DEFINED, Vocabulary, scores

_BORDER: Final = re.compile(f"(?<=[^{SPACE_MARK}]){SPACE_MARK}")
_MAX_TOKEN_BYTES: Final = 2048
"""The library keeps tokens in a tree that it frees by recursion: one of 400,000 characters ended the process."""
_UNKNOWN_PENALTY: Final = 10.0
"""An unknown character costs this much more than the worst normal token."""


class UgmRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="ugm"):
    """What the model is built from; serializable."""

    vocabulary: Vocabulary
    scores: bytes
    """f32 for each token; those that are never chosen have the lowest normal one."""
    reached: bytes
    """One byte for each token: whether a text may become it."""
    charsmap: dict[str, str]
    """What is replaced, longest first at each position."""
    words_independent: bool
    """No token holds a space mark behind another character."""


def prepare(vocabulary: Vocabulary, header: Header) -> UgmRecipe:
    """Raises: NotBuildable, ArtifactInvalid."""
    if vocabulary.unk_id < 0:
        raise NotBuildable("no token for unknown characters")
    if None in vocabulary.texts:
        raise NotBuildable("a token is no UTF-8: the engine may match parts of characters with it")
    if vocabulary.longest_token_bytes > _MAX_TOKEN_BYTES:
        raise NotBuildable(f"a token has {vocabulary.longest_token_bytes} bytes")
    attributes = np.array(vocabulary.attributes)
    if (attributes & USER_DEFINED).any():
        raise NotBuildable("user-defined tokens: the engine copies what begins like one without normalizing it")
    values = scores(header, len(vocabulary))
    normal = (attributes & NORMAL) != 0
    if not normal.any() or not np.isfinite(values[normal]).all():
        raise NotBuildable("no normal tokens with finite scores")
    lowest = float(values[normal].min())
    reached = normal | _reachable_unused(vocabulary, attributes, values, lowest)
    values = np.where(reached, values, lowest).astype(np.float32)
    inner = re.compile(f"[^{SPACE_MARK}]{SPACE_MARK}")
    reachable = [text or "" for text, ok in zip(vocabulary.texts, reached, strict=True) if ok]
    return UgmRecipe(
        vocabulary=vocabulary,
        scores=values.tobytes(),
        reached=reached.astype(np.uint8).tobytes(),
        charsmap=read_charsmap(header.numbers("tokenizer.ggml.precompiled_charsmap", "u1", "i1")),
        words_independent=SPACE_MARK in reachable and not any(map(inner.search, reachable)),
    )


def _reachable_unused(
    vocabulary: Vocabulary, attributes: NDArray[Any], values: NDArray[np.float32], lowest: float
) -> NDArray[np.bool_]:
    """Unused tokens take part like normal ones, but the library would count their scores where it scores unknown
    characters. One that is worse than its characters one by one, all of them unknown, is never chosen and can go."""
    unused: NDArray[np.bool_] = (attributes & UNUSED) != 0
    for token_id in np.flatnonzero(unused & ~(values >= lowest)).tolist():
        length = len(vocabulary.texts[token_id] or "")
        if length < 2 or not values[token_id] < length * (lowest - _UNKNOWN_PENALTY):
            raise NotBuildable("an unused token has a lower score than every normal one")
        unused[token_id] = False
    return unused


class Ugm:
    """The model of a recipe."""

    def __init__(self, recipe: UgmRecipe) -> None:
        vocabulary = recipe.vocabulary
        # A text never holds a space once it is normalized, so a token with one is out of reach.
        pieces = [
            (text or "" if reached else f" {i}", score)
            for i, (text, reached, score) in enumerate(
                zip(
                    vocabulary.texts,
                    recipe.reached,
                    np.frombuffer(recipe.scores, np.float32).tolist(),
                    strict=True,
                )
            )
        ]
        tokenizer = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=vocabulary.unk_id, byte_fallback=False))
        self._cut = recipe.words_independent
        if self._cut:
            word = f"{SPACE_MARK}*[^{SPACE_MARK}]+|{SPACE_MARK}+"
            tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word), "isolated")
        self._runner = Runner(tokenizer, len(vocabulary))
        self._prefix, self._merge = vocabulary.add_space_prefix, vocabulary.remove_extra_whitespaces
        self._map = CharacterMap(recipe.charsmap)

    def encode(self, pieces: Sequence[str], heads: Sequence[bool]) -> list[list[int]]:
        """See Model."""
        normalized = [self.normalize(piece) for piece in pieces]
        if self._cut and any(len(piece) > CUT_CHARS for piece in normalized):
            return joined([cut_at(piece, _BORDER) for piece in normalized], self._runner.encode)
        return self._runner.encode(normalized)

    def normalize(self, text: str) -> str:
        """A piece as the engine's Viterbi search sees it: mapped, spaces as marks, merged and prefixed by the flags."""
        text = self._map.apply(text)
        if self._merge:
            return "".join(SPACE_MARK + word for word in text.split(" ") if word)
        if self._prefix:
            # The prefix goes before the first character that is no space, wherever it stands.
            spaces = len(text) - len(text.lstrip(" "))
            text = text if spaces == len(text) else f"{text[:spaces]} {text[spaces:]}"
        return text.replace(" ", SPACE_MARK)
