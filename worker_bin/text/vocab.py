"""The engine's own tokenizer: llama.cpp with the vocabulary of a model file and nothing else of it.

It says what is right (the probe at ingest), and serves the models whose tokenizer has no recipe. It can crash on a
hostile vocabulary or text: it runs in text processes only, which may.
"""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

from synapse.artifacts.gguf import ArtifactInvalid
from worker_bin.llama.library import import_lean, last_errors, library


class EngineVocabulary:
    """One model's vocabulary, open until it is closed. Leaving its context closes it.

    Args:
        descriptor: the model file, open; needed only while this is made.
        path: its path, for systems where a descriptor has no path of its own.
    Raises: ArtifactInvalid where llama.cpp does not take it.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        self._model: Any = None
        import_lean()
        self._lib: Any = library()
        parameters = self._lib.llama_model_default_params()
        parameters.vocab_only = True
        name = f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else path
        last_errors()
        self._model = self._lib.llama_model_load_from_file(name.encode(), parameters)
        if not self._model:
            raise ArtifactInvalid(f"llama.cpp does not take the model's vocabulary: {last_errors()}")
        self._vocab: Any = self._lib.llama_model_get_vocab(self._model)
        if self._lib.llama_vocab_type(self._vocab) == self._lib.LLAMA_VOCAB_TYPE_NONE:
            self.close()
            raise ArtifactInvalid("the model has no vocabulary")

    def __enter__(self) -> EngineVocabulary:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free it. Idempotent."""
        if self._model:
            self._lib.llama_model_free(self._model)
            self._model = None

    __del__ = close

    @property
    def size(self) -> int:
        """How many tokens it has."""
        return int(self._lib.llama_vocab_n_tokens(self._vocab))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """What the engine makes of a text. Blocks, and may end the process on very long runs of letters.

        Raises: UnicodeEncodeError for a lone surrogate.
        """
        data = text.encode()
        room = len(data) + 8
        while True:
            ids = (self._lib.llama_token * room)()
            n = self._lib.llama_tokenize(self._vocab, data, len(data), ids, room, add_special, parse_special)
            if n >= 0:
                return list(ids[:n])
            room = -n
