"""What a freshly loaded model shows: that it works on this CPU at all, how fast, and whether its results depend on company.

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
"""Prompt tokens of the self-test: over 64 rows reach the engine's tiled paths; slow models get the short one."""
_SLOW_STEP_MS: Final = 60.0
_STEPS: Final = 3
_BUDGETS: Final = (512, 256, 128)
_BUDGET_TEXT: Final = 128
_BUDGET_S: Final = 0.3
_BUDGET_GAIN: Final = 0.95
DEFAULT_BUDGET: Final = 256


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
    """Decode one token and look at its logits. Returns the time of a step in ms. A CPU that lacks an instruction dies
    here, of SIGILL: the module tells that from a bad model by the signal and the stage.

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

    Three runs over the same tokens: alone with all threads; in chunks beside another sequence, at one thread; and on
    top of a shared prefix, beside the other one.
    """
    n = _LONG if step_ms < _SLOW_STEP_MS else _SHORT
    n = max(4, min(n, context.shape.context - _STEPS - 1, context.shape.micro_batch - 2))
    prompt, other, tail = (sample_ids(model, k, seed) for k, seed in ((n, 3), (n, 4), (_STEPS, 5)))
    began = time.perf_counter()
    alone = _run(context, [(0, prompt, 0, True)])
    ms_per_token = (time.perf_counter() - began) * 1e3 / n
    for i in range(_STEPS):
        alone += _run(context, [(0, tail[i : i + 1], n + i, True)])

    def in_company() -> list[NDArray[np.float32]]:
        cut = n // 2
        context.forget(0)
        context.forget(1)
        _run(context, [(0, prompt[:cut], 0, False)])
        rows = _run(context, [(1, other[: n - cut], 0, True), (0, prompt[cut:], cut, True)])[1:]
        for i in range(_STEPS):
            here = (0, tail[i : i + 1], n + i, True)
            rows += _run(context, [(1, other[i : i + 1], n - cut + i, True), here])[1:]
        return rows

    context.use_threads(1)
    one_thread = _equal(alone, in_company())
    context.use_threads(0)
    company = one_thread or (threads > 1 and _equal(alone, in_company()))
    reuse = company and not model.recurrent and _equal(alone, _reused(context, prompt, other, tail))
    context.forget(0)
    context.forget(1)
    details = [
        "" if company else "logits differ in company or in chunks",
        "" if reuse or not company else "logits differ on a reused prefix",
        "" if one_thread or not company else "logits differ between one thread and all",
    ]
    return Generation(step_ms, ms_per_token, company, reuse, one_thread and company, "; ".join(filter(None, details)))


def _reused(context: Context, prompt: Ids, other: Ids, tail: Ids) -> list[NDArray[np.float32]]:
    """The same tokens again, but sequence 1 shares sequence 0's beginning and goes on beside it."""
    n, keep = len(prompt), len(prompt) - 3
    context.forget(1)
    context.share(0, 1, keep)
    end = n + _STEPS
    rows = _run(context, [(0, other[:1], end, True), (1, prompt[keep:], keep, True)])[1:]
    for i in range(_STEPS):
        rows += _run(context, [(0, other[i : i + 1], end + 1 + i, True), (1, tail[i : i + 1], n + i, True)])[1:]
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
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def measure_budget(encoder: Encoder, model: Model) -> int:
    """Tokens of an embedding unit that are fastest a token: attention is computed over a whole call, so more is not
    better. A few tenths of a second; what that does not reach keeps the default."""
    best, best_time = DEFAULT_BUDGET, 0.0
    limit = min(encoder.shape.micro_batch, _BUDGETS[0])
    text = sample_ids(model, min(_BUDGET_TEXT, encoder.shape.context), seed=6)
    began = time.perf_counter()
    for budget in sorted(_BUDGETS):
        if budget > limit:
            break
        texts = [text] * (budget // len(text))
        if not texts:
            continue
        times = []
        for _ in range(2):
            start = time.perf_counter()
            encoder.run(texts)
            times.append((time.perf_counter() - start) / budget)
        if not best_time or min(times) < best_time * _BUDGET_GAIN or budget <= DEFAULT_BUDGET:
            best, best_time = budget, min(times)
        if time.perf_counter() - began > _BUDGET_S:
            break
    return min(best, limit)
