"""A sequence's grammar at work: which tokens may come next, by llguidance over the model's vocabulary."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from synapse.artifacts.grammar import GrammarKind, GrammarRefused, compile_grammar
from worker_bin.llama.model import CONTROL, USER_DEFINED, Model


def build_vocabulary(lib: Any, model: Model) -> Any:
    """llguidance's view of the model's vocabulary. Expensive (0.6 s for 49,000 tokens): once for each model.

    Special tokens are marked, so that no grammar's text can match them.
    """
    tokens: list[bytes] = []
    ends: list[int] = []
    for token in range(model.n_vocab):
        piece = model.special_piece(token)
        attributes = model.attributes(token)
        looks_special = attributes & USER_DEFINED and piece.startswith(b"<") and piece.endswith(b">")
        tokens.append(b"\xff" + piece if attributes & CONTROL or looks_special else piece)
        if model.is_eog(token):
            ends.append(token)
    return LLTokenizer.from_llamacpp(
        tokens=tokens,
        vocab_ptr=model.vocab,
        tokenize_fptr=ctypes.cast(lib._lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=ends or model.eos,
        slices=None,
    )


class Constraint:
    """One sequence's grammar. Build, then for each token: `mask` its logits, choose, `accept`."""

    def __init__(self, vocabulary: Any, n_vocab: int, kind: GrammarKind, text: str) -> None:
        """Compile and compute the first mask, so that what can produce nothing is refused before the sequence starts.

        Raises: GrammarRefused.
        """
        self._name = "grammar" if kind == "grammar" else "JSON schema"
        self._matcher = LLMatcher(vocabulary, compile_grammar(kind, text), log_level=0)
        self._check()
        if warnings := self._matcher.get_grammar_warnings():  # a warning is something that would be dropped
            raise self._refused(warnings[0])
        self._bits: NDArray[np.int32] = np.zeros((n_vocab + 31) // 32, np.int32)
        self._n_vocab = n_vocab
        self._ready = False
        self._compute()

    @property
    def finished(self) -> bool:
        """Nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, logits: NDArray[np.float32]) -> None:
        """Set the logits of tokens that may not come next to -inf. Raises: GrammarRefused where none may."""
        self._compute()
        allowed = np.unpackbits(self._bits.view(np.uint8), count=self._n_vocab, bitorder="little").view(np.bool_)
        np.putmask(logits, ~allowed, -np.inf)

    def accept(self, token: int) -> None:
        """`token` was chosen. Raises: GrammarRefused where it was not allowed."""
        self._ready = False
        if not self._matcher.consume_token(token):
            self._check()
            raise self._refused("it does not allow the token that was chosen")

    def _compute(self) -> None:
        if self._ready:
            return
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        if not self._bits.any():
            raise self._refused("nothing can follow here")
        self._ready = True

    def _check(self) -> None:
        if self._matcher.is_error():
            raise self._refused(self._matcher.get_error())

    def _refused(self, remark: str) -> GrammarRefused:
        if remark.startswith("NoExtension"):  # what follows is the library's inner state
            remark = "nothing can follow here"
        return GrammarRefused(f"the {self._name} cannot be honoured: {' '.join(remark.split())[:300]}")
