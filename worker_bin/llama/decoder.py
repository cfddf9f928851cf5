"""DECODE: one bounded quantum of generation over the sequences that are resident in this worker (W12, G5)."""

from __future__ import annotations

import time
from collections.abc import Sequence as Seq
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from synapse.artifacts.grammar import GrammarRefused
from synapse.wire.messages import Decode, Decoded, DecodeStart, Reuse, Sampling, SequenceError, SequenceProgress
from worker_bin.engine import Refused
from worker_bin.llama.config import MAX_THREADS
from worker_bin.llama.constraint import Constraint
from worker_bin.llama.context import Context
from worker_bin.llama.model import Model
from worker_bin.llama.sampling import BadSampling
from worker_bin.llama.sequence import MAX_LOGPROBS, Sequence
from worker_bin.llama.streams import Streams
from worker_bin.llama.text import check_stops

Ids = NDArray[np.int32]

_MIN_CHUNK: Final = 8
"""Prompt tokens of one step at least, however slow the engine is."""
_TELLING: Final = 4
"""A step tells the price of a prompt's token if it has so many tokens for each sequence; generated ones cost more."""
_SMOOTHING: Final = 0.3


class BadStart(Exception):
    """One start of a DECODE cannot be served; the message is its sequence's error."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Decoder:
    """The resident sequences of a worker, one for each place, and the quanta over them.

    A place is empty, generating (its sequence has not ended) or parked (it has, and its KV is kept).
    """

    def __init__(self, context: Context, model: Model, parallel: int, vocabulary: Any, ms_per_token: float) -> None:
        """`vocabulary`: llguidance's, None where grammars cannot be had. `ms_per_token`: of a prompt, as measured."""
        self._context, self._model, self._parallel = context, model, parallel
        self._vocabulary = vocabulary
        self._ms_per_token = ms_per_token
        self._places: list[Sequence | None] = [None] * parallel
        self._streams = Streams(context, parallel)

    def decode(self, request: Decode, ids: Ids) -> Decoded:
        """Run one quantum. Raises: Refused(invalid_request), nothing changed, for a request that contradicts itself or
        the residents' state (a bug of the module); what is wrong with one sequence is that sequence's error."""
        began = time.perf_counter()
        self._check(request, ids)
        self._context.use_threads(request.threads)
        for place in request.drop:
            self._drop(place)
        for place in request.park:
            self._park(place)
        failed: list[SequenceProgress] = []
        active = [self._running(place) for place in request.continue_]
        offset = 0
        for start in request.start:
            prompt = ids[offset : offset + start.n_tokens]
            offset += start.n_tokens
            try:
                active.append(self._start(start, prompt))
            except BadStart as error:
                failed.append(SequenceProgress(seq=start.seq, error=SequenceError(error.code, str(error))))
        self._streams.gather([place for place in range(self._parallel) if self._is_running(place)])
        steps = self._quantum(active, request.max_steps, request.target_ms / 1e3, began)
        return Decoded(
            req_id=request.req_id,
            sequences=[sequence.progress() for sequence in active] + failed,
            steps=steps,
            elapsed_ms=(time.perf_counter() - began) * 1e3,
        )

    def generate(self, prompt: Ids, max_tokens: int, grammar: str | None) -> tuple[str, int, str]:
        """A greedy answer in one go: text, tokens generated, finish reason. Raises: Refused."""
        place = self._spare_place()
        start = DecodeStart(
            seq=place, n_tokens=len(prompt), max_tokens=max_tokens, sampling=Sampling(), grammar=grammar or None
        )
        try:
            sequence = self._start(start, prompt)
        except BadStart as error:
            raise Refused(error.code, str(error)) from error
        self._context.use_threads(0)
        while not sequence.ended:
            self._step([sequence], self._context.batch.capacity)
        self._drop(place)
        progress = sequence.progress()
        if progress.error is not None:
            raise Refused(progress.error.code, progress.error.msg)
        return progress.text, progress.n_gen, str(progress.finish_reason)

    def _spare_place(self) -> int:
        """An empty place, else a parked one. Raises: Refused where all of them generate."""
        for place, sequence in enumerate(self._places):
            if sequence is None:
                return place
        for place in range(self._parallel):
            if not self._is_running(place):
                return place
        raise Refused("invalid_request", f"all {self._parallel} sequences are running")

    # --- places ------------------------------------------------------------------------------------------------------

    def _check(self, request: Decode, ids: Ids) -> None:
        def refuse(message: str) -> None:
            raise Refused("invalid_request", message)

        starts = [start.seq for start in request.start]
        ended = set(request.drop) | set(request.park)
        for place in (*starts, *request.continue_, *ended):
            if place >= self._parallel:
                refuse(f"sequence {place} is not below parallel, {self._parallel}")
        if len(set(starts)) != len(starts) or len(set(request.continue_)) != len(request.continue_):
            refuse("a sequence is started or continued twice")
        for place in request.continue_:
            if not self._is_running(place) or place in ended or place in starts:
                refuse(f"sequence {place} is to be continued, but it does not run")
        for place in starts:
            if self._is_running(place) and place not in ended:
                refuse(f"sequence {place} is to be started, but it runs already")
        if set(request.drop) & set(request.park):
            refuse("a sequence is both dropped and parked")
        if sum(start.n_tokens for start in request.start) != len(ids):
            refuse(f"the starts announce {sum(s.n_tokens for s in request.start)} ids, the frame has {len(ids)}")
        if request.threads > MAX_THREADS:
            refuse(f"threads is {request.threads}, over the limit of {MAX_THREADS}")
        if not 0 <= request.target_ms <= 1e7:
            refuse(f"target_ms is {request.target_ms}")

    def _is_running(self, place: int) -> bool:
        sequence = self._places[place]
        return sequence is not None and not sequence.ended

    def _running(self, place: int) -> Sequence:
        sequence = self._places[place]
        assert sequence is not None
        return sequence

    def _drop(self, place: int) -> None:
        self._places[place] = None
        self._streams.forget(place)

    def _park(self, place: int) -> None:
        sequence = self._places[place]
        if sequence is not None and not sequence.ended:
            sequence.finish("stop")  # never reported: whoever parks it does not wait for it

    def _start(self, start: DecodeStart, prompt: Ids) -> Sequence:
        sequence = self._admit(start, prompt)
        sequence.n_past = sequence.n_reused = self._reuse(start.seq, prompt, start.reuse)
        self._places[start.seq] = sequence
        return sequence

    def _admit(self, start: DecodeStart, prompt: Ids) -> Sequence:
        """Check everything that the engine would abort on or pass over in silence. Raises: BadStart."""
        window = self._context.shape.context
        if not len(prompt):
            raise BadStart("invalid_request", "the prompt has no tokens")
        if len(prompt) >= window:
            raise BadStart(
                "invalid_request",
                f"the prompt has {len(prompt)} tokens, the window {window}, and one of it is for the answer",
            )
        if int(prompt.min()) < 0 or int(prompt.max()) >= self._model.n_vocab:
            raise BadStart("invalid_request", "the prompt holds a token id outside the vocabulary")
        if start.max_tokens < 1:
            raise BadStart("invalid_request", "max_tokens is 0")
        if start.logprobs is not None and start.logprobs > MAX_LOGPROBS:
            raise BadStart("invalid_request", f"logprobs is {start.logprobs}, over the limit of {MAX_LOGPROBS}")
        try:
            check_stops(start.stop)
            sequence = Sequence(self._model, start, prompt, window)
            sequence.constraint = self._constraint(start)
        except (BadSampling, GrammarRefused, ValueError) as error:
            raise BadStart("invalid_request", str(error)) from error
        return sequence

    def _constraint(self, start: DecodeStart) -> Constraint | None:
        if start.grammar is not None and start.json_schema is not None:
            raise ValueError("a grammar and a JSON schema exclude each other")
        if start.grammar is None and start.json_schema is None:
            return None
        if self._vocabulary is None:
            raise BadStart("unsupported", "this worker has no llguidance: it cannot honour a grammar")
        if start.grammar is not None:
            return Constraint(self._vocabulary, self._model.n_vocab, "grammar", start.grammar)
        return Constraint(self._vocabulary, self._model.n_vocab, "json_schema", start.json_schema or "")

    def _reuse(self, place: int, prompt: Ids, reuse: Reuse | None) -> int:
        """Make `place` hold as much of the prompt's beginning as `reuse` offers and truly is there; return how much.

        The last prompt token is always evaluated: its logits are what the first token is drawn from.
        """
        n = 0
        source = self._places[reuse.seq] if reuse is not None and reuse.seq < self._parallel else None
        if reuse is not None and source is not None and not self._model.recurrent:
            n = min(reuse.n, source.n_past, len(prompt) - 1)
            differs = np.flatnonzero(source.tokens[:n] != prompt[:n])
            n = int(differs[0]) if differs.size else n
        if n and reuse is not None and reuse.seq == place:
            if self._streams.forget(place, n):
                return n
            n = 0
        self._streams.forget(place)
        return n if n and reuse is not None and self._streams.share(reuse.seq, place, n) else 0

    # --- the quantum -------------------------------------------------------------------------------------------------

    def _quantum(self, active: Seq[Sequence], max_steps: int, target_s: float, began: float) -> int:
        """Step until `max_steps` or `target_s` after `began`, at least once; return the number of steps."""
        steps = 0
        running = [sequence for sequence in active if not sequence.ended]
        while running:
            left_ms = (target_s - (time.perf_counter() - began)) * 1e3
            self._step(running, max(_MIN_CHUNK, int(left_ms / self._ms_per_token)))
            steps += 1
            running = [sequence for sequence in running if not sequence.ended]
            if steps >= max_steps or time.perf_counter() - began >= target_s:
                break
        return steps

    def _step(self, running: Seq[Sequence], budget: int) -> None:
        """One engine call: the next token of each sequence that generates, and prompt tokens up to `budget`.

        Prompts share what the generating sequences leave: those never wait for a prompt. Each gets an equal part, and
        what short ones do not need goes to the longer ones, so that a short prompt never waits for a long one to end.
        """
        began = time.perf_counter()
        work: list[tuple[Sequence, int]] = [(sequence, 1) for sequence in running if not sequence.prefilling]
        left = min(self._context.batch.capacity, max(budget, len(work) + _MIN_CHUNK)) - len(work)
        prompts = sorted((s for s in running if s.prefilling), key=lambda s: s.n_prompt - s.n_past)
        if not work and left < (whole := sum(s.n_prompt - s.n_past for s in prompts)) <= left + left // 4:
            left = min(whole, self._context.batch.capacity)  # a small rest costs more in a step of its own
        for position, sequence in enumerate(prompts):
            n = min(sequence.n_prompt - sequence.n_past, -(-left // (len(prompts) - position)))
            if n > 0:
                work.append((sequence, n))
                left -= n
        work.sort(key=lambda item: self._streams.of(item[0].place))  # the engine joins neighbours, in order
        if self._evaluate(work):
            tokens = sum(n for _, n in work)
            if tokens >= _TELLING * len(work):
                spent = (time.perf_counter() - began) * 1e3 / tokens
                self._ms_per_token += _SMOOTHING * (spent - self._ms_per_token)
            return
        for item in work:  # somebody's KV is full: who finds no room alone fails alone
            if not self._evaluate([item]):
                self._drop(item[0].place)
                item[0].fail("oom", "no KV cell is free")

    def _evaluate(self, work: Seq[tuple[Sequence, int]]) -> bool:
        """Run so many tokens of each sequence and let those that are due choose. False: no KV cells, nothing done."""
        batch, at = self._context.batch, 0
        due: list[tuple[Sequence, int]] = []
        for sequence, n in work:
            first, end, stream = sequence.n_past, at + n, self._streams.of(sequence.place)
            if n == 1:
                batch.token[at], batch.pos[at] = sequence.tokens[first], first
                batch.seq[at], batch.output[at] = stream, 0
            else:
                batch.token[at:end] = sequence.tokens[first : first + n]
                batch.pos[at:end] = np.arange(first, first + n)
                batch.seq[at:end] = stream
                batch.output[at:end] = 0
            if first + n == sequence.n_known:
                batch.output[end - 1] = 1
                due.append((sequence, end - 1))
            at = end
        status = self._context.decode(at)
        if status == 1:
            return False
        if status != 0:
            for sequence, _ in work:  # what of it is in the KV cache is unknown
                self._drop(sequence.place)
                sequence.fail("engine_failed", f"llama_decode returned {status}")
            return True
        for sequence, n in work:
            sequence.n_past += n
        for sequence, row in due:
            sequence.take(self._context.logits(row))
            if sequence.error is not None:
                self._drop(sequence.place)
        return True
