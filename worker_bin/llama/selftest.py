"""What a freshly loaded model shows: that it works on this CPU, how fast, and whether results depend on company.

Everything here runs before the first request, on an empty KV cache, and leaves it empty.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from worker_bin.engine import Refused
from worker_bin.llama.context import Context
from worker_bin.llama.encoder import Encoder
from worker_bin.llama.model import Model

Ids = NDArray[np.int32]
Row = tuple[int, Ids, int, bool]
"""A run of tokens in one engine call: sequence, ids, first position, whether the last one's logits are wanted."""

_LONG, _SHORT = 72, 16
"""Prompt tokens of the self-test: 8 rows reach the engine's tiled products, 64 its tiled attention; slow models get the
short one."""
_SLOW_STEP_MS: Final = 60.0
_STEPS: Final = 3
_FEW: Final = 3
_BUDGET_TEXT: Final = 128
_BUDGET_S: Final = 0.3
_BUDGET_GAIN: Final = 0.95
DEFAULT_BUDGET: Final = 256
_OTHER_BUDGETS: Final = (512, 128)


@dataclass(frozen=True)
class Generation:
    """What the tests of a generating model found; the fields are those of messages.Measured."""

    step_ms: float
    ms_per_token: float
    deterministic: bool
    reuse_equal: bool
    threads_equal: bool
    detail: str


def sample_ids(model: Model, n: int, seed: int) -> Ids:
    """`n` ordinary tokens, always the same ones."""
    random = np.random.Generator(np.random.PCG64(seed))
    found: list[int] = []
    for token in random.integers(0, model.n_vocab, 64 * n + 1024).tolist():
        if len(found) == n:
            break
        if not model.is_special(token) and not model.is_eog(token):
            found.append(token)
    return np.resize(np.array(found or [0], np.int32), n)


def smoke_generation(context: Context, model: Model) -> float:
    """Decode a few tokens and look at their logits. Returns the time of a step in ms. On a CPU that lacks an
    instruction the process ends here, of SIGILL (see `cpu`): that is no bad model.

    Raises: Refused(artifact_invalid) where the logits are no numbers.
    """
    token = sample_ids(model, 1, seed=1)
    times = []
    for position in range(_STEPS):
        began = time.perf_counter()
        logits = _run(context, [(0, token, position, True)])[0]
        times.append((time.perf_counter() - began) * 1e3)
        if not np.isfinite(logits).all():
            raise Refused("artifact_invalid", "the model's logits are not finite")
    context.forget(0)
    return statistics.median(times)


def smoke_encoder(encoder: Encoder, model: Model) -> None:
    """Encode two short texts. Raises: Refused(artifact_invalid) where the output is no number."""
    vectors = encoder.run([sample_ids(model, 3, seed=1), sample_ids(model, 5, seed=2)])
    if not np.isfinite(vectors).all():
        raise Refused("artifact_invalid", "the model's output is not finite")


def test_generation(context: Context, model: Model, threads: int, step_ms: float) -> Generation:
    """Are logits bit-equal alone, in company, chunked, at one thread and with a reused prefix? (G2)

    Three runs over the same tokens: alone with all threads; in chunks beside another sequence, at one thread; and on a
    reused prefix, beside the sequence that it was copied from. With one place only there is no company, and the prefix
    is the place's own.
    """
    probe = _Probe(context, model, step_ms)
    began = time.perf_counter()
    alone = probe.alone()
    ms_per_token = (time.perf_counter() - began) * 1e3 / (len(probe.prompt) + _STEPS)
    context.use_threads(1)
    one_thread = _equal(alone, probe.in_company())
    context.use_threads(0)
    company = one_thread or (threads > 1 and _equal(alone, probe.in_company()))
    reuse = company and not model.recurrent and _equal(alone, probe.reused())
    probe.clear()
    details = [
        "" if company else "logits differ in company or in chunks",
        "" if reuse or not company else "logits differ on a reused prefix",
        "" if one_thread or not company else "logits differ between one thread and all",
    ]
    return Generation(step_ms, ms_per_token, company, reuse, one_thread and company, "; ".join(filter(None, details)))


class _Probe:
    """One sequence of known tokens (place 0, or 1 on a copied prefix), evaluated in several ways.

    Each way returns the logits behind the prompt and behind each token of the tail. A second sequence is the company,
    where there is a place for it.
    """

    def __init__(self, context: Context, model: Model, step_ms: float) -> None:
        n = _LONG if step_ms < _SLOW_STEP_MS else _SHORT
        n = max(2 * _FEW + 2, min(n, context.shape.context // 2, context.shape.micro_batch - 2))
        self.prompt, self._other, self._tail = (sample_ids(model, k, seed) for k, seed in ((n, 3), (n, 4), (_STEPS, 5)))
        self._context = context
        self._pair = context.shape.sequences > 1

    def alone(self) -> list[NDArray[np.float32]]:
        self.clear()
        return _run(self._context, [(0, self.prompt, 0, True)]) + self._steps(0, len(self.prompt), None)

    def in_company(self) -> list[NDArray[np.float32]]:
        self.clear()
        n, cut = len(self.prompt), len(self.prompt) // 2
        _run(self._context, [(0, self.prompt[:cut], 0, False)])
        # Few rows: fewer than the engine's tiled products take, where the other chunks have more.
        _run(self._context, [(0, self.prompt[cut : cut + _FEW], cut, False)])
        beside: list[Row] = [(1, self._other[: n - cut], 0, False)] if self._pair else []
        rows = _run(self._context, [(0, self.prompt[cut + _FEW :], cut + _FEW, True), *beside])
        return rows + self._steps(0, n, (1, n - cut) if self._pair else None)

    def reused(self) -> list[NDArray[np.float32]]:
        """Follows in_company: place 0 holds the prompt and the tail."""
        n, keep = len(self.prompt), len(self.prompt) - _FEW
        if not self._pair:
            if not self._context.forget(0, keep):
                return []
            return _run(self._context, [(0, self.prompt[keep:], keep, True)]) + self._steps(0, n, None)
        if not (self._context.restore(1, self._context.save(0)) and self._context.forget(1, keep)):
            return []
        end = n + _STEPS
        rows = _run(self._context, [(0, self._other[:1], end, False), (1, self.prompt[keep:], keep, True)])
        return rows + self._steps(1, n, (0, end + 1))

    def clear(self) -> None:
        self._context.forget(0)
        if self._pair:
            self._context.forget(1)

    def _steps(self, place: int, position: int, company: tuple[int, int] | None) -> list[NDArray[np.float32]]:
        rows: list[NDArray[np.float32]] = []
        for i in range(_STEPS):
            runs: list[Row] = [(place, self._tail[i : i + 1], position + i, True)]
            if company is not None:
                runs.append((company[0], self._other[i : i + 1], company[1] + i, False))
            rows += _run(self._context, sorted(runs, key=lambda run: run[0]))
        return rows


def _run(context: Context, rows: list[Row]) -> list[NDArray[np.float32]]:
    """One engine call; copies of the logits that are wanted, in order. Raises: Refused(engine_failed)."""
    batch, at = context.batch, 0
    wanted = []
    for sequence, ids, position, output in rows:
        here = slice(at, at + len(ids))
        batch.token[here], batch.seq[here], batch.output[here] = ids, sequence, 0
        batch.pos[here] = np.arange(position, position + len(ids))
        at = here.stop
        if output:
            batch.output[at - 1] = 1
            wanted.append(at - 1)
    status = context.decode(at)
    if status != 0:
        raise Refused("engine_failed", f"llama_decode returned {status} in the self-test")
    return [context.logits(index).copy() for index in wanted]


def _equal(left: list[NDArray[np.float32]], right: list[NDArray[np.float32]]) -> bool:
    return len(left) == len(right) and all(map(np.array_equal, left, right))


def measure_budget(encoder: Encoder, model: Model) -> int:
    """Tokens of an embedding unit that are fastest a token: attention is computed over a whole call, so more is not
    better. A few tenths of a second; what that does not reach, or is not clearly faster, leaves the default."""
    text = sample_ids(model, min(_BUDGET_TEXT, encoder.shape.context), seed=6)
    began = time.perf_counter()
    best = min(DEFAULT_BUDGET, encoder.shape.micro_batch)
    best_time = _time_a_token(encoder, text, best)
    for budget in _OTHER_BUDGETS:
        if budget > encoder.shape.micro_batch or time.perf_counter() - began > _BUDGET_S:
            continue
        taken = _time_a_token(encoder, text, budget)
        if taken < best_time * _BUDGET_GAIN:
            best, best_time = budget, taken
    return best


def _time_a_token(encoder: Encoder, text: Ids, budget: int) -> float:
    texts = [text] * max(1, budget // len(text))
    times = []
    for _ in range(2):
        began = time.perf_counter()
        encoder.run(texts)
        times.append(time.perf_counter() - began)
    return min(times) / (len(texts) * len(text))
