"""DECODE of the faulty engine: resident sequences, one token each a step, in quanta (W12, G5)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from synapse.wire import messages as m
from worker_bin.faulty.arithmetic import token

_PROMPT_CHUNK = 64
"""Prompt tokens of one sequence that one step evaluates."""


@dataclass
class Resident:
    """One sequence: running, or parked with its ids kept for reuse."""

    start: m.DecodeStart
    prompt: list[int]
    done: int = 0
    reused: int = 0
    made: list[int] = field(default_factory=list)
    sent: int = 0
    """Characters reported."""
    reported: int = 0
    """Tokens reported."""
    finished: str | None = None

    @property
    def ids(self) -> list[int]:
        return self.prompt[: self.done] + self.made


class Sequences:
    """The resident sequences of one loaded model."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.parallel = int(settings.get("parallel", "8"))
        self._context = int(settings.get("context", "512"))
        self._step_s = float(settings.get("step_ms", "0")) / 1000
        self._eos_after = int(settings.get("eos_after", "0"))
        self._at: dict[int, Resident] = {}

    def quantum(self, request: m.Decode, ids: Sequence[int]) -> m.Decoded:
        """One bounded quantum over the sequences that the request starts or continues."""
        began = time.perf_counter()
        progress: dict[int, m.SequenceProgress] = {}
        for place in request.drop:
            self._at.pop(place, None)
        for place in request.park:
            if place in self._at and self._at[place].finished is None:
                self._at[place].finished = "parked"
        at = 0
        for start in request.start:
            progress[start.seq] = self._start(start, list(ids[at : at + start.n_tokens]))
            at += start.n_tokens
        for place in request.continue_:
            sequence = self._at.get(place)
            progress[place] = m.SequenceProgress(seq=place)
            if sequence is None or sequence.finished is not None:
                progress[place].error = m.SequenceError("invalid_request", f"no sequence runs at {place}")
        running = {place: self._at[place] for place, state in progress.items() if state.error is None}
        steps = 0
        while steps < request.max_steps and any(sequence.finished is None for sequence in running.values()):
            for sequence in running.values():
                if sequence.finished is None:
                    self._step(sequence)
            steps += 1
            if self._step_s:
                time.sleep(self._step_s)
            if (time.perf_counter() - began) * 1000 >= request.target_ms:
                break
        for place, sequence in running.items():
            _report(sequence, progress[place])
        elapsed_ms = (time.perf_counter() - began) * 1000
        return m.Decoded(req_id="", sequences=list(progress.values()), steps=steps, elapsed_ms=elapsed_ms)

    def _start(self, start: m.DecodeStart, prompt: list[int]) -> m.SequenceProgress:
        progress = m.SequenceProgress(seq=start.seq)

        def refuse(code: str, message: str) -> m.SequenceProgress:
            progress.error = m.SequenceError(code, message)
            return progress

        donor = self._at.get(start.reuse.seq) if start.reuse else None
        before = self._at.get(start.seq)
        if start.seq >= self.parallel:
            return refuse("invalid_request", f"place {start.seq} of {self.parallel}")
        if before is not None and before.finished is None:
            return refuse("invalid_request", f"place {start.seq} is taken")
        if not 0 < len(prompt) < self._context:
            return refuse("invalid_request", f"a prompt of {len(prompt)} tokens; the context is {self._context}")
        if start.grammar is not None or start.json_schema is not None:
            return refuse("unsupported", "no grammars here")
        if start.reuse is not None:
            count = start.reuse.n
            if donor is None or count >= len(prompt) or donor.ids[:count] != prompt[:count]:
                return refuse("invalid_request", f"place {start.reuse.seq} does not hold these {count} tokens")
        reused = start.reuse.n if start.reuse is not None else 0
        self._at[start.seq] = Resident(start, prompt, done=reused, reused=reused)
        return progress

    def _step(self, sequence: Resident) -> None:
        if sequence.done < len(sequence.prompt):
            sequence.done = min(sequence.done + _PROMPT_CHUNK, len(sequence.prompt))
            if sequence.done < len(sequence.prompt):
                return
        count = len(sequence.made)
        if count >= sequence.start.max_tokens or len(sequence.prompt) + count >= self._context:
            sequence.finished = "length"
            return
        if self._eos_after and count >= self._eos_after:
            sequence.finished = "stop"
            return
        sequence.made.append(token(sequence.prompt, sequence.start.sampling.seed, count))
        text = _text(sequence.made)
        if any(stop in text for stop in sequence.start.stop):
            sequence.finished = "stop"
        elif count + 1 >= sequence.start.max_tokens:
            sequence.finished = "length"


def _report(sequence: Resident, progress: m.SequenceProgress) -> None:
    """What is new since the last quantum. Text that may be the beginning of a stop string is held back."""
    text = _text(sequence.made)
    stops = sequence.start.stop
    end = len(text)
    if sequence.finished == "stop":
        end = min((at for at in (text.find(stop) for stop in stops) if at >= 0), default=end)
    elif sequence.finished is None:
        end -= max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    progress.text = text[sequence.sent : end]
    sequence.sent = max(sequence.sent, end)
    progress.ids = sequence.made[sequence.reported :]
    sequence.reported = len(sequence.made)
    progress.n_prompt_done, progress.n_reused = sequence.done, sequence.reused
    progress.n_gen = len(sequence.made)
    progress.finish_reason = sequence.finished
    if sequence.start.logprobs is not None:
        progress.logprobs = [m.TokenLogprob(i, chr(i), [i], -1.0) for i in progress.ids]


def _text(ids: Sequence[int]) -> str:
    return bytes(ids).decode("ascii")
