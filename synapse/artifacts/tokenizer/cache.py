"""A prepared tokenizer as bytes: MessagePack with a checksum, checked before it is believed."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import msgspec
import numpy as np

from synapse.artifacts.tokenizer import data
from synapse.artifacts.tokenizer.bpe import BpeRecipe
from synapse.artifacts.tokenizer.errors import CacheInvalid
from synapse.artifacts.tokenizer.spm import SpmRecipe
from synapse.artifacts.tokenizer.ugm import UgmRecipe
from synapse.artifacts.tokenizer.wpm import WpmRecipe

RECIPE_VERSION: Final = 1
"""Goes up with every change of what a recipe holds or means."""

Recipe = BpeRecipe | SpmRecipe | WpmRecipe | UgmRecipe
"""What a tokenizer is built from: all that takes time to derive is derived, all of it is plain data."""

_MAGIC: Final = b"tokenizer recipe %d\n" % RECIPE_VERSION
_DIGEST_BYTES: Final = 32
_decoder: Final = msgspec.msgpack.Decoder(Recipe)


def pack(recipe: Recipe) -> bytes:
    """The bytes of a recipe."""
    payload = msgspec.msgpack.encode(recipe)
    return _MAGIC + _digest(payload) + payload


def unpack(entry: bytes) -> Recipe:
    """The recipe of some bytes. Raises: CacheInvalid."""
    head = len(_MAGIC) + _DIGEST_BYTES
    payload = entry[head:]
    if entry[: len(_MAGIC)] != _MAGIC or entry[len(_MAGIC) : head] != _digest(payload):
        raise CacheInvalid("not written by this version, or damaged")
    try:
        recipe = _decoder.decode(payload)
    except msgspec.MsgspecError as error:
        raise CacheInvalid(str(error)) from error
    _check(recipe)
    return recipe


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_DIGEST_BYTES).digest()


def _check(recipe: Recipe) -> None:
    """Refuse what could only be built into nonsense: a checksum does not say who wrote the bytes."""
    vocabulary = recipe.vocabulary
    count = len(vocabulary)
    _require(count > 0 and len(vocabulary.lengths) == 4 * count, "the tokens' lengths")
    _require(
        int(np.frombuffer(vocabulary.lengths, np.uint32).sum(dtype=np.uint64)) == len(vocabulary.blob), "the texts"
    )
    _require(len(vocabulary.packed_attributes) == 2 * count, "the attributes")
    _require(
        all(
            -1 <= i < count
            for i in (vocabulary.bos_id, vocabulary.eos_id, vocabulary.unk_id, vocabulary.sep_id, vocabulary.pad_id)
        ),
        "the special ids",
    )
    _require(vocabulary.pre in data.pretokenizers().names, "the pre-tokenizer")
    match recipe:
        case BpeRecipe() | SpmRecipe():
            total = count + len(recipe.virtual_texts)
            _require(len(recipe.virtual_ids) == len(recipe.virtual_texts), "the virtual tokens")
            _require(all(0 <= i < count for ids in recipe.virtual_ids for i in ids), "the virtual tokens")
            _require(len(recipe.merges) % 8 == 0, "the merges")
            merges = np.frombuffer(recipe.merges, np.int32)
            _require(not len(merges) or (int(merges.min()) >= 0 and int(merges.max()) < total), "the merges")
        case UgmRecipe():
            _require(len(recipe.scores) == 4 * count and len(recipe.reached) == count, "the scores")
            _require(vocabulary.unk_id >= 0 and None not in vocabulary.texts, "the texts")
            _require(bool(np.isfinite(np.frombuffer(recipe.scores, np.float32)).all()), "the scores")
        case WpmRecipe():
            _require(min(vocabulary.unk_id, vocabulary.bos_id, vocabulary.sep_id) >= 0, "the special ids")
            _require(None not in vocabulary.texts, "the texts")


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise CacheInvalid(f"{what} do not fit together")
