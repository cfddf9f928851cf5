"""Which token comes next, on numpy over one row of logits. Pure; llama.cpp's order (decision G3).

Logit bias, then the grammar's mask (the caller's), penalties, top_k, top_p, min_p, temperature, the draw. The draw
depends on the seed and the number of draws before it, never on what else is in the batch.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from synapse.wire.messages import Sampling

_ROWS: Final = 64
_FIRST_SHORTLIST: Final = 256
MAX_BIASES: Final = 4096
MAX_BIAS: Final = 10_000.0

Logits = NDArray[np.float32]
Ids = NDArray[np.int32]


class BadSampling(ValueError):
    """A sampling value is out of its range; the message names it."""


class NotFinite(ArithmeticError):
    """The engine's logits are not numbers, or every token is excluded."""


def check(options: Sampling, n_vocab: int) -> None:
    """Check every value. Raises: BadSampling."""
    _between("temperature", options.temperature, 0, 100)
    _between("top_k", options.top_k, 0, 2**31 - 1)
    _between("top_p", options.top_p, 0, 1)
    _between("min_p", options.min_p, 0, 1)
    _between("repeat_penalty", options.repeat_penalty, 0.01, 100)
    _between("frequency_penalty", options.frequency_penalty, -100, 100)
    _between("presence_penalty", options.presence_penalty, -100, 100)
    _between("repeat_last_n", options.repeat_last_n, 0, 2**31 - 1)
    _between("seed", options.seed, 0, 2**63 - 1)
    _between("the number of logit biases", len(options.logit_bias), 0, MAX_BIASES)
    for token, bias in options.logit_bias:
        _between("a logit bias's token", token, 0, n_vocab - 1)
        _between("a logit bias", bias, -MAX_BIAS, MAX_BIAS)


def _between(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # a NaN is not between
        raise BadSampling(f"{name} is {value!r}, not from {low} to {high}")


class Sampler:
    """The choices of one sequence. Not shared: it holds the sequence's random state."""

    def __init__(self, options: Sampling, n_vocab: int) -> None:
        """Raises: BadSampling."""
        check(options, n_vocab)
        self._o = options
        self._bias_ids = np.array([token for token, _ in options.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in options.logit_bias], np.float32)
        self._penalizes = options.repeat_last_n > 0 and (
            options.repeat_penalty != 1 or options.frequency_penalty != 0 or options.presence_penalty != 0
        )
        # The bit generator's raw output is stable over numpy's versions; the distributions built on it need not be.
        self._random = None if options.temperature == 0 else np.random.PCG64(options.seed)

    def bias(self, logits: Logits) -> None:
        """Add the logit bias, in place."""
        if self._bias_ids.size:
            np.add.at(logits, self._bias_ids, self._bias)

    def choose(self, logits: Logits, history: Ids) -> int:
        """Choose a token. `logits` (biased and masked already) is changed; `history`: prompt and generated tokens.

        Raises: NotFinite.
        """
        if self._random is None:
            if self._penalizes:
                self._penalize(logits, history)
            best = int(logits.argmax())
            if not math.isfinite(logits[best]):
                raise NotFinite("the logits are not finite")
            return best
        ids, weights = self.distribution(logits, history)
        total = weights.cumsum()
        uniform = (int(self._random.random_raw()) >> 11) * 2.0**-53
        return int(ids[min(int(np.searchsorted(total, uniform * total[-1], side="right")), ids.size - 1)])

    def distribution(self, logits: Logits, history: Ids) -> tuple[Ids, NDArray[np.float64]]:
        """What a token is drawn from: the ids that are left, most likely first, and their weights (not normalized).

        `logits` is changed. Not for temperature 0. Raises: NotFinite.
        """
        o = self._o
        if self._penalizes:
            self._penalize(logits, history)
        ids = shortlist(logits, o.top_k) if o.top_k else self._nucleus(logits)
        if not ids.size or not math.isfinite(logits[ids[0]]):
            raise NotFinite("the logits are not finite")
        values = logits[ids].astype(np.float64)
        keep = ids.size
        if o.top_p < 1 and o.top_k:
            total = np.exp(values - values[0]).cumsum()
            keep = min(keep, int(np.searchsorted(total, o.top_p * total[-1])) + 1)
        if o.min_p > 0:  # sorted: what is kept is a prefix
            keep = min(keep, int(np.count_nonzero(values >= values[0] + math.log(o.min_p))))
        return ids[:keep], np.exp((values[:keep] - values[0]) / o.temperature)

    def _penalize(self, logits: Logits, history: Ids) -> None:
        o = self._o
        ids, counts = np.unique(history[-o.repeat_last_n :], return_counts=True)
        values = logits[ids]
        if o.repeat_penalty != 1:
            values = np.where(values <= 0, values * np.float32(o.repeat_penalty), values / np.float32(o.repeat_penalty))
        values -= counts.astype(np.float32) * np.float32(o.frequency_penalty) + np.float32(o.presence_penalty)
        logits[ids] = values

    def _nucleus(self, logits: Logits) -> Ids:
        """Without top_k: the most likely tokens that hold top_p of the probability of all, sorted; all for top_p 1."""
        top_p = self._o.top_p
        if top_p >= 1:
            return shortlist(logits, logits.size)
        best = float(logits.max())
        if not math.isfinite(best):
            raise NotFinite("the logits are not finite")
        enough = top_p * _mass(logits, best)
        n = _FIRST_SHORTLIST
        while True:
            ids = shortlist(logits, n)
            total = np.exp(logits[ids].astype(np.float64) - best).cumsum()
            inside = int(np.searchsorted(total, enough)) + 1
            if inside <= ids.size or ids.size < n:
                return ids[:inside]
            n *= 16


def shortlist(logits: Logits, n: int) -> Ids:
    """The ids of the `n` highest logits, highest first, equal ones by id; fewer where others are -inf or NaN.

    The n-th highest of the columns' maxima is a lower bound of the n-th highest logit, so only columns that reach it
    can hold one: a pass over all logits finds some thousand candidates, a pass over those some dozens to sort.
    """
    size = logits.size
    columns = size // _ROWS
    if n < columns:
        table = logits[: columns * _ROWS].reshape(_ROWS, columns)
        maxima = table.max(axis=0)
        bound = np.partition(maxima, columns - n)[columns - n]
        if bound > -np.inf:
            hot = np.flatnonzero(maxima >= bound)
            row, column = np.nonzero(table[:, hot] >= bound)
            rest = np.flatnonzero(logits[columns * _ROWS :] >= bound) + columns * _ROWS
            return _best(logits, np.sort(np.concatenate([row * columns + hot[column], rest])), n)
    return _best(logits, np.flatnonzero(logits > -np.inf), n)


def _best(logits: Logits, ids: NDArray[np.intp], n: int) -> Ids:
    """The first `n` of `ids` by logit, highest first, equal ones by id: one sort of 64-bit keys, logit over id."""
    bits = (logits[ids] + np.float32(0)).view(np.uint32)  # + 0: no -0.0
    falling = np.where(bits >> 31, bits, ~(bits | np.uint32(1 << 31)))
    keys = (falling.astype(np.uint64) << np.uint64(32)) | ids.astype(np.uint64)
    keys.sort()
    return (keys[:n] & np.uint64(0xFFFFFFFF)).astype(np.int32)


def _mass(logits: Logits, best: float) -> float:
    """The sum of exp(logit - best) over all: exp in f32, which is ten times faster, the sum in f64."""
    return float(np.exp(logits - np.float32(best)).sum(dtype=np.float64))


def log_probabilities(logits: Logits, token: int, n: int) -> tuple[float, list[tuple[int, float]]]:
    """The log-probability of `token` and the `n` most likely tokens with theirs, of the model's own distribution
    (before bias, mask and penalties). Raises: NotFinite."""
    best = float(logits.max())
    if not math.isfinite(best):
        raise NotFinite("the logits are not finite")
    norm = best + math.log(_mass(logits, best))
    top = shortlist(logits, n) if n else np.empty(0, np.int32)
    return float(logits[token]) - norm, [(int(i), float(logits[i]) - norm) for i in top]
