"""A loaded model: weights, vocabulary, pieces. What needs a context stands in `context`."""

from __future__ import annotations

import ctypes
from typing import Any, Final

from worker_bin.engine import Refused
from worker_bin.llama.library import last_errors

UNKNOWN: Final = 1 << 0
CONTROL: Final = 1 << 3
USER_DEFINED: Final = 1 << 4
"""Attributes of tokens."""
_SPM: Final = 1
_WPM: Final = 3
_PIECE_BYTES: Final = 64


class Model:
    """Weights and vocabulary. Close it after every context of it."""

    def __init__(self, lib: Any, path: str, *, extra_buffers: bool) -> None:
        """Load and check every tensor's values.

        Args:
            extra_buffers: let the engine repack weights for speed; some repacking makes results depend on the batch.

        Raises: Refused(artifact_invalid) where the engine returns no model.
        """
        parameters = lib.llama_model_default_params()
        parameters.check_tensors = True  # NaN weights would answer a fixed token
        parameters.use_extra_bufts = extra_buffers
        last_errors()
        self._lib = lib
        self.pointer = lib.llama_model_load_from_file(path.encode(), parameters)
        if not self.pointer:  # a NULL is an object
            raise Refused("artifact_invalid", f"llama.cpp refuses the model: {last_errors() or 'no reason given'}")
        self.vocab = lib.llama_model_get_vocab(self.pointer)
        self.n_vocab: int = lib.llama_vocab_n_tokens(self.vocab)
        self.n_embd: int = lib.llama_model_n_embd_out(self.pointer)
        self.trained: int = lib.llama_model_n_ctx_train(self.pointer)
        self.has_encoder: bool = lib.llama_model_has_encoder(self.pointer)
        self.has_decoder: bool = lib.llama_model_has_decoder(self.pointer)
        self.recurrent: bool = lib.llama_model_is_recurrent(self.pointer) or lib.llama_model_is_hybrid(self.pointer)
        self.diffusion: bool = lib.llama_model_is_diffusion(self.pointer)
        self.vocab_type: int = lib.llama_vocab_type(self.vocab)
        self.bos, self.eos, self.sep = (
            int(lib.llama_vocab_bos(self.vocab)),
            int(lib.llama_vocab_eos(self.vocab)),
            int(lib.llama_vocab_sep(self.vocab)),
        )
        self.add_bos: bool = lib.llama_vocab_get_add_bos(self.vocab)
        self.add_eos: bool = lib.llama_vocab_get_add_eos(self.vocab)
        self.add_sep: bool = lib.llama_vocab_get_add_sep(self.vocab)
        self._pieces: dict[int, bytes] = {}

    @property
    def word_piece(self) -> bool:
        return self.vocab_type == _WPM

    @property
    def space_prefixed(self) -> bool:
        """SentencePiece with a space before the text: where text begins, the first piece's space is not the text's."""
        if self.vocab_type != _SPM:
            return False
        return self.meta("tokenizer.ggml.add_space_prefix") in ("", "true")

    def meta(self, key: str) -> str:
        """A metadata value as text, "" where there is none."""
        buffer = ctypes.create_string_buffer(256)
        n = self._lib.llama_model_meta_val_str(self.pointer, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if n >= 0 else ""

    def is_eog(self, token: int) -> bool:
        """It ends a generation. `token` may be any integer."""
        return bool(self._lib.llama_vocab_is_eog(self.vocab, token))

    def is_special(self, token: int) -> bool:
        """Control or unknown: it has no text of its own. `token` must be in range."""
        return bool(self._lib.llama_vocab_get_attr(self.vocab, token) & (CONTROL | UNKNOWN))

    def attributes(self, token: int) -> int:
        return int(self._lib.llama_vocab_get_attr(self.vocab, token))

    def piece(self, token: int) -> bytes:
        """A token's bytes in text, empty for special ones. `token` must be in range: the engine aborts otherwise."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._to_piece(token, special=False)
        return known

    def special_piece(self, token: int) -> bytes:
        """A token's bytes with special tokens spelled out. May be called from any thread."""
        return self._to_piece(token, special=True)

    def _to_piece(self, token: int, *, special: bool) -> bytes:
        size = _PIECE_BYTES
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = self._lib.llama_token_to_piece(self.vocab, token, buffer, size, 0, special)
            if n >= 0:
                return buffer.raw[:n]
            size = -n  # what it needs

    def close(self) -> None:
        """Free it. Idempotent."""
        if self.pointer:
            self._lib.llama_model_free(self.pointer)
            self.pointer = None
