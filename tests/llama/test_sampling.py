"""Sampling on numpy leaves what llama.cpp's own samplers leave, and every choice depends on seed and history only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from synapse.wire.messages import Sampling
from tests.llama import reference
from worker_bin.llama.sampling import BadSampling, NotFinite, Sampler, check, log_probabilities, shortlist

NO_HISTORY = np.empty(0, np.int32)


def random_logits(seed: int, n: int) -> Any:
    return (3 * np.random.default_rng(seed).standard_normal(n)).astype(np.float32)


def test_the_engines_own_samplers_leave_the_same() -> None:
    """The judge is llama.cpp's chain: penalties, top_k, top_p, min_p, temperature."""
    grid = [
        Sampling(temperature=0.8),
        Sampling(temperature=0.8, top_k=0),
        Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
        Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.2),
        Sampling(temperature=0.3, top_k=7, top_p=0.5, min_p=0.0),
        Sampling(temperature=2.0, top_k=500, top_p=0.99, min_p=0.01),
        Sampling(temperature=1.5, top_k=1),
        Sampling(temperature=1.0, top_k=20, repeat_penalty=1.3, repeat_last_n=16),
        Sampling(temperature=1.0, top_k=20, frequency_penalty=0.7, presence_penalty=0.4, repeat_last_n=64),
        Sampling(temperature=1.0, top_k=20, repeat_penalty=0.7, presence_penalty=-0.4, repeat_last_n=64),
    ]
    history = [3, 5, 5, 9, 9, 9, *range(100, 140), 5]
    chains = [
        reference.Chain(random_logits(seed, n).tolist(), history, sampling)
        for seed, n in ((1, 300), (2, 5000))
        for sampling in grid
    ]
    for chain, (ids, probabilities) in zip(chains, reference.chain(chains), strict=True):
        sampler = Sampler(chain.sampling, len(chain.logits))
        ours, weights = sampler.distribution(np.array(chain.logits, np.float32), np.array(chain.history, np.int32))
        assert ours.tolist() == ids, chain.sampling
        np.testing.assert_allclose(weights / weights.sum(), probabilities, rtol=1e-3, atol=1e-6)


@given(
    arrays(np.float32, st.integers(1, 700), elements=st.floats(-50, 50, width=32) | st.just(-np.inf)),
    st.integers(1, 800),
)
def test_shortlist_is_a_sort(logits: Any, n: int) -> None:
    finite = [i for i in range(logits.size) if logits[i] > -np.inf]
    wanted = sorted(finite, key=lambda i: (-logits[i], i))[:n]
    assert shortlist(logits, n).tolist() == wanted


@settings(max_examples=50)
@given(st.integers(0, 1000), st.floats(0.01, 0.999), st.integers(1, 3000))
def test_the_nucleus_is_what_a_full_sort_finds(seed: int, top_p: float, n: int) -> None:
    logits = random_logits(seed, n)
    ids, _ = Sampler(Sampling(temperature=1.0, top_k=0, top_p=top_p, min_p=0.0), n).distribution(
        logits.copy(), NO_HISTORY
    )
    order = np.argsort(-logits, kind="stable")
    total = np.exp(logits[order].astype(np.float64)).cumsum()
    wanted = int(np.searchsorted(total, top_p * total[-1])) + 1
    assert abs(ids.size - wanted) <= 1  # the sum's last bits
    assert ids.tolist() == order[: ids.size].tolist()


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    sampler = Sampler(Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11), 4)
    drawn = np.bincount([sampler.choose(logits.copy(), NO_HISTORY) for _ in range(5_000)], minlength=4) / 5_000
    np.testing.assert_allclose(drawn, [0.5, 0.3, 0.15, 0.05], atol=0.03)


def test_a_seed_fixes_every_draw() -> None:
    rows = [random_logits(i, 500) for i in range(30)]

    def draws(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), 500)
        return [sampler.choose(row.copy(), NO_HISTORY) for row in rows]

    assert draws(5) == draws(5)
    assert draws(5) != draws(6)
    # Pinned: the same on every machine and numpy version.
    assert draws(2**63 - 1)[:6] == PINNED


PINNED = [219, 273, 291, 9, 83, 169]


def test_greedy_takes_the_best_and_the_first_of_equals() -> None:
    sampler = Sampler(Sampling(), 5)
    assert sampler.choose(np.array([1, 3, 2, 3, 0], np.float32), NO_HISTORY) == 1


def test_a_bias_given_twice_counts_twice() -> None:
    sampler = Sampler(Sampling(logit_bias=[(0, 1.0), (0, 1.0)]), 2)
    logits = np.array([0, 1.5], np.float32)
    sampler.bias(logits)
    assert sampler.choose(logits, NO_HISTORY) == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("top_k", [0, 40])
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
def test_what_is_no_number_is_an_error(temperature: float, top_k: int, value: float) -> None:
    sampler = Sampler(Sampling(temperature=temperature, top_k=top_k), 300)
    with pytest.raises(NotFinite):
        sampler.choose(np.full(300, value, np.float32), NO_HISTORY)
    with pytest.raises(NotFinite):
        log_probabilities(np.full(300, value, np.float32), 0, 3)


def test_log_probabilities_are_a_log_softmax() -> None:
    logits = random_logits(4, 1000)
    wanted = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    value, top = log_probabilities(logits, 17, 5)
    assert value == pytest.approx(wanted[17], abs=1e-5)
    assert [token for token, _ in top] == np.argsort(-logits)[:5].tolist()
    assert [v for _, v in top] == pytest.approx(np.sort(wanted)[::-1][:5].tolist(), abs=1e-5)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "repeat_penalty", "frequency_penalty"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e9])
def test_values_out_of_range_are_named(name: str, value: float) -> None:
    with pytest.raises(BadSampling, match=name):
        check(Sampling(**{name: value}), 100)
