"""One sequence: its tokens, how far the engine has taken them, and what has come out of it in this quantum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from synapse.artifacts.grammar import GrammarRefused
from synapse.wire.messages import DecodeStart, FinishReason, SequenceError, SequenceProgress, TokenLogprob
from worker_bin.llama.constraint import Constraint
from worker_bin.llama.model import Model
from worker_bin.llama.sampling import NotFinite, Sampler, log_probabilities
from worker_bin.llama.text import TextOut

MAX_LOGPROBS = 100


class Sequence:
    """A prompt and what is generated behind it, in one place of the KV cache.

    States: prefilling (`n_past` < `n_prompt`), generating, ended (`finish_reason` or `error` is set). An ended sequence
    without an error is parked: its evaluated tokens, `tokens[:n_past]`, are in the KV cache for reuse.
    """

    def __init__(self, model: Model, start: DecodeStart, prompt: NDArray[np.int32], window: int) -> None:
        """`start` and `prompt` are checked already, `window` is the most tokens that it may hold.

        Raises: sampling.BadSampling.
        """
        self.place = start.seq
        self.n_prompt = len(prompt)
        self.n_past = 0
        self.n_reused = 0
        self.finish_reason: FinishReason | None = None
        self.error: SequenceError | None = None
        self.constraint: Constraint | None = None
        self._model = model
        self._limit = min(self.n_prompt + start.max_tokens, window)
        self.tokens: NDArray[np.int32] = np.empty(self._limit, np.int32)
        self.tokens[: self.n_prompt] = prompt
        self.n_known = self.n_prompt
        self._sampler = Sampler(start.sampling, model.n_vocab)
        self._text = TextOut(start.stop, drop_space=model.space_prefixed and model.is_special(int(prompt[-1])))
        self._logprobs = start.logprobs
        self._n_gen = 0
        self._new_text: list[str] = []
        self._new_ids: list[int] = []
        self._new_logprobs: list[TokenLogprob] = []

    @property
    def ended(self) -> bool:
        return self.finish_reason is not None or self.error is not None

    @property
    def prefilling(self) -> bool:
        return self.n_past < self.n_prompt

    @property
    def evaluated(self) -> NDArray[np.int32]:
        """The tokens whose KV is there."""
        return self.tokens[: self.n_past]

    def take(self, logits: NDArray[np.float32]) -> None:
        """Choose the next token from its logits (which are changed) and see whether that was the end.

        What goes wrong becomes the sequence's `error`: nobody else's business.
        """
        try:
            self._take(logits)
        except NotFinite as error:
            self.fail("engine_failed", str(error))
        except GrammarRefused as error:
            self.fail("invalid_request", str(error))

    def _take(self, logits: NDArray[np.float32]) -> None:
        raw = logits.copy() if self._logprobs is not None else logits
        self._sampler.bias(logits)
        if self.constraint is not None:
            self.constraint.mask(logits)
        token = self._sampler.choose(logits, self.tokens[: self.n_known])
        if self._logprobs is not None:
            self._new_logprobs.append(self._logprob(raw, token, self._logprobs))
        self._n_gen += 1
        self._new_ids.append(token)
        if self._model.is_eog(token):
            self.finish("stop")
            return
        self.tokens[self.n_known] = token
        self.n_known += 1
        self._new_text.append(self._text.feed(self._model.piece(token)))
        if self.constraint is not None:
            self.constraint.accept(token)
        if self._text.stopped or (self.constraint is not None and self.constraint.finished):
            self.finish("stop")
        elif self.n_known >= self._limit:
            self.finish("length")

    def _logprob(self, raw: NDArray[np.float32], token: int, n: int) -> TokenLogprob:
        logprob, top = log_probabilities(raw, token, n)

        def spelled(token: int) -> tuple[str, list[int]]:
            piece = self._model.special_piece(token)
            return piece.decode(errors="replace"), list(piece)

        text, data = spelled(token)
        return TokenLogprob(
            id=token, token=text, bytes=data, logprob=logprob, top=[(i, *spelled(i), value) for i, value in top]
        )

    def finish(self, reason: FinishReason) -> None:
        self.finish_reason = reason
        self._new_text.append(self._text.flush())

    def fail(self, code: str, message: str) -> None:
        self.error = SequenceError(code, message)

    def progress(self) -> SequenceProgress:
        """What happened since the last call."""
        progress = SequenceProgress(
            seq=self.place,
            text="".join(self._new_text),
            ids=self._new_ids,
            n_prompt_done=min(self.n_past, self.n_prompt),
            n_reused=self.n_reused,
            n_gen=self._n_gen,
            finish_reason=self.finish_reason,
            logprobs=None if self._logprobs is None else self._new_logprobs,
            error=self.error,
        )
        self._new_text, self._new_ids, self._new_logprobs = [], [], []
        return progress
