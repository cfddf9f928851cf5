"""The engine's own tokenizer: llama.cpp with the vocabulary of a model file and nothing else of it.

It says what is right (the probe at ingest), and serves the models whose tokenizer has no recipe. It can crash on a
hostile vocabulary or text: it runs in text processes only, which may.
"""

from __future__ import annotations

import ctypes
import sys
from types import TracebackType
from typing import Any

import llama_cpp

from synapse.artifacts.gguf import ArtifactInvalid

_ATTR_LSTRIP, _ATTR_RSTRIP = 1 << 7, 1 << 8
_SPECIAL = (1 << 0) | (1 << 3) | (1 << 4)  # UNKNOWN, CONTROL, USER_DEFINED


class EngineVocabulary:
    """One model's vocabulary, open until it is closed. Leaving its context closes it.

    Args:
        descriptor: the model file, open.
        path: its path, for systems where a descriptor has no path of its own.
    Raises: ArtifactInvalid where llama.cpp does not take it.
    """

    def __init__(self, descriptor: int, path: str) -> None:
        _quiet()
        parameters = llama_cpp.llama_model_default_params()
        parameters.vocab_only = True
        name = f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else path
        self._model = llama_cpp.llama_model_load_from_file(name.encode(), parameters)
        if not self._model:
            raise ArtifactInvalid("llama.cpp does not take the model's vocabulary")
        self._vocab = llama_cpp.llama_model_get_vocab(self._model)
        if llama_cpp.llama_vocab_type(self._vocab) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
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
            llama_cpp.llama_model_free(self._model)
            self._model = None

    @property
    def size(self) -> int:
        return int(llama_cpp.llama_vocab_n_tokens(self._vocab))

    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """What the engine makes of a text. Blocks, and may end the process on very long runs of letters."""
        data = text.encode()
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, add_special, parse_special)
        if n < 0:
            room = -n
            ids = (llama_cpp.llama_token * room)()
            n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, add_special, parse_special)
        return list(ids[:n])

    def attributes(self, token: int) -> int:
        """The token's attribute bits, as the engine overrides them."""
        return int(llama_cpp.llama_vocab_get_attr(self._vocab, token))

    def text(self, token: int) -> bytes:
        """The token's text as the vocabulary lists it."""
        return bytes(llama_cpp.llama_vocab_get_text(self._vocab, token))


_LOG: Any = None


def _quiet() -> None:
    """Warnings and errors only, to stderr."""
    global _LOG
    if _LOG is None:

        @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
        def log(level: int, text: bytes, user_data: Any) -> None:
            if level in (3, 4):
                sys.stderr.buffer.write(text)
                sys.stderr.buffer.flush()

        _LOG = log  # the engine keeps the pointer only
        llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
