"""The engine's tokenizer behind the same interface as the built ones, literal spans included."""

from __future__ import annotations

from collections.abc import Sequence

from synapse.artifacts.tokenizer.errors import NotBuildable, TextInvalid
from synapse.artifacts.tokenizer.partition import Partition, Span
from synapse.artifacts.tokenizer.vocabulary import Vocabulary
from worker_bin.text.vocab import EngineVocabulary


class EngineTokenizer:
    """Tokenizes with the engine itself: exact by construction, slower, and it may end the process.

    Attributes:
        honours_literal: special-token text can be kept as text. Not where the file does not say which of two special
            tokens comes first.
    """

    def __init__(self, engine: EngineVocabulary, vocabulary: Vocabulary) -> None:
        self._engine, self._vocabulary = engine, vocabulary
        self._partition: Partition | None
        try:
            self._partition = Partition(vocabulary)
        except NotBuildable:
            self._partition = None
        self.honours_literal = self._partition is not None

    def encode_batch(
        self,
        texts: Sequence[str],
        *,
        add_special: bool,
        parse_special: bool,
        literal: Sequence[Sequence[Span]] | None = None,
    ) -> list[list[int]]:
        """The ids of each text; as `Tokenizer.encode_batch`. Raises: TextInvalid."""
        out = []
        for index, text in enumerate(texts):
            spans = literal[index] if literal else ()
            try:
                if spans and parse_special and self._partition is not None:
                    out.append(self._in_pieces(self._partition, text, spans, add_special))
                else:
                    out.append(self._engine.encode(text, add_special=add_special, parse_special=parse_special))
            except UnicodeEncodeError as error:
                raise TextInvalid(f"text {index} holds a lone surrogate", index) from error
        return out

    def _in_pieces(self, partition: Partition, text: str, spans: Sequence[Span], add_special: bool) -> list[int]:
        """Cut by us, so that the special tokens in `spans` are left alone; each raw piece goes to the engine, which
        treats it as it does behind a special token."""
        ids: list[int] = []
        for piece in partition.cut(text, parse_special=True, literal=spans):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids += self._engine.encode(piece, add_special=False, parse_special=False)
        if not add_special:
            return ids
        around = self._engine.encode("", add_special=True, parse_special=False)
        first = self._vocabulary.kind == "wpm" or (self._vocabulary.add_bos and self._vocabulary.bos_id >= 0)
        return [*around[:first], *ids, *around[first:]]
