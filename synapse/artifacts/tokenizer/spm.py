"""SentencePiece BPE: merges derived from the tokens and their scores, as the engine finds them while it merges."""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from synapse.artifacts.gguf import Header
from synapse.artifacts.tokenizer.bpe import SPACE_MARK, cut_at, merge_texts
from synapse.artifacts.tokenizer.errors import NotBuildable
from synapse.artifacts.tokenizer.models import CUT_CHARS, Runner, joined
from synapse.artifacts.tokenizer.spm_reference import merge_run
from synapse.artifacts.tokenizer.vocabulary import USER_DEFINED, Vocabulary, scores

_MAX_SPLIT_WORK: Final = 1 << 30
"""Characters that finding all splits may copy: a vocabulary of 256 k tokens needs 30 million."""

_MAX_RUN: Final = 256

_INNER_MARK: Final = re.compile(f"[^{SPACE_MARK}](?={SPACE_MARK})")


class SpmRecipe(msgspec.Struct, frozen=True, kw_only=True, tag="spm"):
    """What the model is built from; serializable. Ids from len(vocabulary) on are virtual."""

    vocabulary: Vocabulary
    virtual_texts: list[str]
    virtual_ids: list[list[int]]
    merges: bytes
    """i32 pairs of ids, best first."""
    before_mark: str
    """Characters that stand before a space mark inside some token: a word border after them may lie inside a token."""


def prepare(vocabulary: Vocabulary, header: Header) -> SpmRecipe:
    """Raises: NotBuildable."""
    values = scores(header, len(vocabulary))
    if np.isnan(values).any():
        raise NotBuildable("a score is not a number")
    known = {text: i for i, text in enumerate(vocabulary.texts) if text is not None}
    if sum(len(text) ** 2 for text in known) > _MAX_SPLIT_WORK:
        raise NotBuildable("the tokens are too long")
    count = len(vocabulary)
    virtual: list[str] = []
    virtual_ids: list[list[int]] = []
    byte_ids: list[int] = []
    for byte in range(256):
        token_id = known.get(f"<0x{byte:02X}>", -1)
        if token_id < 0:
            token_id = known.get(chr(byte), -1) if byte < 0x80 else -1
            if token_id < 0:
                raise NotBuildable(f"no token for the byte 0x{byte:02X}")
            virtual.append(f"<0x{byte:02X}>")
            virtual_ids.append([token_id])
        byte_ids.append(token_id)

    candidates = [
        (token_id, text)
        for token_id, text in enumerate(vocabulary.texts)
        if text is not None and len(text) > 1 and not _out_of_reach(text, vocabulary.attributes[token_id])
    ]
    parts = dict(known)  # what a token may be merged from: tokens, and characters whether they are tokens or not
    for character in sorted(set().union(*(text for _, text in candidates)) - parts.keys()):
        parts[character] = count + len(virtual)
        virtual.append(character)
        virtual_ids.append([byte_ids[byte] for byte in character.encode()])

    found = array("i")  # left, right, token, length of the left part
    part_id = parts.get
    for token_id, text in candidates:
        for at in range(1, len(text)):
            left = part_id(text[:at])
            if left is None:
                continue
            right = part_id(text[at:])
            if right is not None:
                found.extend((left, right, token_id, at))

    table = np.array(found, np.int32).reshape(-1, 4)
    if np.isin(table[:, :2], [known[f"<0x{b:02X}>"] for b in range(256) if f"<0x{b:02X}>" in known]).any():
        raise NotBuildable("tokens are made of byte tokens' texts")
    order = np.lexsort((-table[:, 3], table[:, 2], -values[table[:, 2]]))
    recipe = SpmRecipe(
        vocabulary=vocabulary,
        virtual_texts=virtual,
        virtual_ids=virtual_ids,
        merges=table[order, :2].tobytes(),
        before_mark="".join(sorted({text[m.start()] for text in known for m in _INNER_MARK.finditer(text)})),
    )
    _check_ties(recipe, np.unique(table[:, 2]).tolist(), values)
    return recipe


def _out_of_reach(text: str, attribute: int) -> bool:
    """No raw piece becomes this token: its spaces would be marks by then, or it was cut out of the text before."""
    return " " in text or bool(attribute & USER_DEFINED and SPACE_MARK not in text)


def _check_ties(recipe: SpmRecipe, mergeable: list[int], values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
    """Equal scores: the engine merges the leftmost pair first, the library the lowest rank. Only runs of one character
    can be shown to come out the same, by doing them; anything else is not buildable."""
    groups: dict[float, list[int]] = {}
    for token_id in mergeable:
        groups.setdefault(float(values[token_id]), []).append(token_id)
    texts = recipe.vocabulary.texts
    model: Spm | None = None
    for score, group in groups.items():
        if len(group) == 1:
            continue
        runs = [texts[token_id] or "" for token_id in group]
        if len(set("".join(runs))) > 1:
            raise NotBuildable(f"{len(group)} tokens have the score {score:g}, among them {runs[0]!r} and {runs[1]!r}")
        by_length = {len(text): i for i, text in enumerate(texts) if text and not text.strip(runs[0][0])}
        if max(by_length) > _MAX_RUN:
            raise NotBuildable(f"a token is a run of {max(by_length)} characters")
        model = model or Spm(recipe)
        lengths = range(1, 4 * max(by_length) + 2)
        wanted = [merge_run(length, by_length, values) for length in lengths]
        if model.raw([runs[0][0] * length for length in lengths]) != wanted:
            raise NotBuildable(f"{len(group)} tokens have the score {score:g}: runs of {runs[0][0]!r}")


class Spm:
    """The model of a recipe."""

    def __init__(self, recipe: SpmRecipe) -> None:
        vocabulary = recipe.vocabulary
        texts = [*vocabulary.texts, *recipe.virtual_texts]
        model = models.BPE(
            vocab={text: i for i, text in enumerate(texts) if text is not None},
            merges=merge_texts(texts, recipe.merges),
            byte_fallback=True,
        )
        tokenizer = tokenizers.Tokenizer(model)
        # Words are independent where no token spans their border: short words are merged once and remembered.
        mark = SPACE_MARK
        inner = "".join(map(re.escape, recipe.before_mark))
        unit = f"(?:[{inner}]{mark}+|[^{mark}])" if inner else f"[^{mark}]"
        tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{mark}*{unit}+|{mark}+"), "isolated")
        self._border = re.compile(f"(?<=[^{inner}{mark}]){mark}")
        self._runner = Runner(tokenizer, len(vocabulary), recipe.virtual_ids)
        self._prefix = vocabulary.add_space_prefix

    def encode(self, pieces: Sequence[str], heads: Sequence[bool]) -> list[list[int]]:
        """See Model."""
        marked = [
            (SPACE_MARK if head and self._prefix else "") + piece.replace(" ", SPACE_MARK)
            for piece, head in zip(pieces, heads, strict=True)
        ]
        if any(len(piece) > CUT_CHARS for piece in marked):
            return joined([cut_at(piece, self._border) for piece in marked], self._runner.encode)
        return self._runner.encode(marked)

    def raw(self, pieces: Sequence[str]) -> list[list[int]]:
        """The ids of texts whose spaces are marks already, without a prefix."""
        return self._runner.encode(pieces)
