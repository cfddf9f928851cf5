"""Texts to ids, exactly as the engine does it, from a model file's own metadata."""

from __future__ import annotations

from collections.abc import Sequence

from synapse.artifacts.gguf import Header
from synapse.artifacts.tokenizer import bpe, cache, spm, ugm, wpm
from synapse.artifacts.tokenizer.cache import Recipe
from synapse.artifacts.tokenizer.errors import NotBuildable, TextInvalid
from synapse.artifacts.tokenizer.models import Model, collector_paused
from synapse.artifacts.tokenizer.partition import Partition, Span, check
from synapse.artifacts.tokenizer.pieces import piece_table
from synapse.artifacts.tokenizer.vocabulary import Vocabulary, read_vocabulary


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads; building one takes 0.3 to 3 s for large vocabularies.

    Attributes:
        recipe: what it was built from (see `cache`).
        vocabulary: texts, attributes, special ids and flags.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.vocabulary: Vocabulary = recipe.vocabulary
        with collector_paused():
            self._partition = Partition(self.vocabulary, checked=True)
            self._model = _model(recipe)

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special: bool,
        parse_special: bool,
        literal: Sequence[Sequence[Span]] | None = None,
    ) -> list[list[int]]:
        """The ids of each text: what llama_tokenize gives for it.

        Args:
            add_special: add the model's first and last tokens, as its flags say.
            parse_special: special-token text becomes special tokens (user-defined ones always do).
            literal: for each text the spans (start, end), ascending, in characters, in which control tokens' text
                stays text although it is parsed elsewhere.

        Blocks: yes, about 1 s for 200,000 tokens on one core; the GIL is released for most of it.
        Raises: TextInvalid for a lone surrogate; TokenizerFailed.
        """
        pieces: list[str] = []
        heads: list[bool] = []
        rows: list[list[int | str]] = []
        for index, text in enumerate(texts):
            _check(text, index)
            row = self._partition.cut(
                text, parse_special=parse_special, literal=literal[index] if literal is not None else ()
            )
            rows.append(row)
            head = True
            for part in row:
                if isinstance(part, str):
                    pieces.append(part)
                    heads.append(head)
                head = not isinstance(part, str)
        encoded = iter(self._model.encode(pieces, heads))
        first, last = self._ends() if add_special else ([], [])
        out: list[list[int]] = []
        for row in rows:
            ids = first.copy()
            for part in row:
                if isinstance(part, str):
                    ids += next(encoded)
                else:
                    ids.append(part)
            out.append(ids + last if last else ids)
        return out

    def encode(
        self, text: str, *, add_special: bool = True, parse_special: bool = False, literal: Sequence[Span] = ()
    ) -> list[int]:
        """The ids of one text; see `encode_batch`."""
        return self.encode_batch([text], add_special=add_special, parse_special=parse_special, literal=[literal])[0]

    def pieces(self) -> list[bytes]:
        """The bytes of each token in generated text: what llama_token_to_piece gives with special=True."""
        return piece_table(self.vocabulary)

    def to_cache(self) -> bytes:
        """The prepared form, for `from_cache`: plain data with a checksum, no code in it."""
        return cache.pack(self.recipe)

    @classmethod
    def from_cache(cls, entry: bytes) -> Tokenizer:
        """Build from what `to_cache` gave: under a second for 150,000 tokens.

        Raises: CacheInvalid for anything that this version did not write, whole; NotBuildable never, unless it is new.
        """
        with collector_paused():
            recipe = cache.unpack(entry)
        return cls(recipe)

    def _ends(self) -> tuple[list[int], list[int]]:
        vocabulary = self.vocabulary
        if vocabulary.kind == "wpm":
            return [vocabulary.bos_id], [vocabulary.sep_id]
        return (
            [vocabulary.bos_id] if vocabulary.add_bos else [],
            [vocabulary.eos_id] if vocabulary.add_eos else [],
        )


def build_tokenizer(header: Header) -> Tokenizer:
    """Build the tokenizer of a model file.

    Raises: NotBuildable where only the engine itself can tokenize for this model; ArtifactInvalid where not even that.
    Blocks: for seconds with large vocabularies; memory about 1 KiB for each token.
    """
    with collector_paused():
        recipe = prepare(read_vocabulary(header), header)
    return Tokenizer(recipe)


def prepare(vocabulary: Vocabulary, header: Header) -> Recipe:
    """Derive what a tokenizer is built from. Raises: NotBuildable, ArtifactInvalid."""
    check(vocabulary)
    match vocabulary.kind:
        case "bpe":
            return bpe.prepare(vocabulary, header)
        case "spm":
            return spm.prepare(vocabulary, header)
        case "wpm":
            return wpm.prepare(vocabulary)
        case "ugm":
            return ugm.prepare(vocabulary, header)
        case _:
            raise NotBuildable(f"vocabularies of the type {vocabulary.model} have no recipe")


def _model(recipe: Recipe) -> Model:
    match recipe:
        case bpe.BpeRecipe():
            return bpe.Bpe(recipe)
        case spm.SpmRecipe():
            return spm.Spm(recipe)
        case wpm.WpmRecipe():
            return wpm.Wpm(recipe)
        case ugm.UgmRecipe():
            return ugm.Ugm(recipe)


def _check(text: str, index: int) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TextInvalid(f"a lone surrogate at character {error.start}", index) from None
