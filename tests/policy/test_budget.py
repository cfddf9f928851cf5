"""The crash budget at its edges (W9): quarantine at exactly the N-th crash, local, permanent until probed; back-off."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from synapse.policy.budget import BudgetConfig, CrashBudget, Quarantine, Restart, key_of

CONFIG = BudgetConfig()
A, B, C = (key_of(f"sha256:{name}", {"parallel": "8"}) for name in "abc")


@settings(max_examples=500, deadline=None, database=None, derandomize=True)
@given(
    st.integers(1, 5),
    st.integers(1, 12),
    st.lists(
        st.tuples(
            st.sampled_from([A, B, C]),
            st.sampled_from([0.0, 0.001, 1.0, 99.0, 100.0, 101.0, 150.0, 299.999, 300.0, 301.0, 1000.0]),
            st.booleans(),
        ),
        max_size=40,
    ),
)
def test_quarantine_comes_with_the_nth_crash_in_the_window_and_never_before(
    n: int, m: int, schedule: list[tuple[tuple[str, str], float, bool]]
) -> None:
    """Against a model that keeps every crash and counts anew each time."""
    budget = CrashBudget(BudgetConfig(per_key=n, overall=m))
    crashes: dict[tuple[str, str], list[float]] = {}
    everything: list[float] = []
    quarantined: set[tuple[str, str]] = set()
    now = 0.0
    for key, wait, probe in schedule:
        now += wait
        if probe:
            budget.probe(key)
            crashes[key] = []
            quarantined.discard(key)
        verdict = budget.crashed(key, now, 0.5)
        crashes.setdefault(key, []).append(now)
        everything.append(now)
        in_window = [time for time in crashes[key] if now - time < CONFIG.window_s]
        if len(in_window) >= n:
            quarantined.add(key)
        assert isinstance(verdict, Quarantine) == (key in quarantined)
        for other in (A, B, C):
            assert (budget.quarantined(other) is not None) == (other in quarantined)
        overall = sum(now - time < CONFIG.window_s for time in everything)
        assert budget.degraded(now) == (overall >= m)


def test_a_quarantine_does_not_end_by_itself() -> None:
    budget = CrashBudget()
    verdicts = [budget.crashed(A, float(second), 0.5) for second in range(3)]
    assert [type(verdict) for verdict in verdicts] == [Restart, Restart, Quarantine]
    assert verdicts[2] == Quarantine(3)
    assert budget.quarantined(A) == 3
    assert isinstance(budget.crashed(A, 1e9, 0.5), Quarantine)
    budget.probe(A)
    assert budget.quarantined(A) is None
    assert isinstance(budget.crashed(A, 1e9, 0.5), Restart)


def test_the_window_is_open_at_its_end() -> None:
    """A crash that is exactly one window old does not count any more."""
    budget = CrashBudget()
    for time in (0.0, 1.0):
        budget.crashed(A, time, 0.5)
    assert isinstance(budget.crashed(A, CONFIG.window_s, 0.5), Restart)
    assert isinstance(budget.crashed(A, CONFIG.window_s + 0.5, 0.5), Quarantine)


def test_what_was_persisted_is_a_quarantine() -> None:
    budget = CrashBudget()
    budget.restore(A, 3)
    assert budget.quarantined(A) == 3
    assert budget.quarantined(B) is None
    assert budget.crashed(A, 0.0, 0.5) == Quarantine(3)


@settings(max_examples=200, deadline=None, database=None, derandomize=True)
@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 200))
def test_back_off_doubles_to_its_bound_with_jitter(entropy: float, count: int) -> None:
    """Crashes that are rare enough never to be quarantined, each within a window of the one before."""
    budget = CrashBudget()
    delay = 0.0
    for number in range(count):
        verdict = budget.crashed(A, 200.0 * number, entropy)
        assert isinstance(verdict, Restart)
        delay = verdict.delay_s
    plain = min(CONFIG.backoff_max_s, CONFIG.backoff_first_s * 2 ** (count - 1))
    assert 0.8 * plain <= delay <= 1.2 * plain
    assert delay > 0


def test_a_quiet_window_resets_the_back_off() -> None:
    budget = CrashBudget()
    for number in range(5):
        budget.crashed(A, 200.0 * number, 0.5)
    assert budget.crashed(A, 2000.0, 0.5) == Restart(CONFIG.backoff_first_s)


def test_crashes_of_many_keys_degrade_and_quarantine_nobody() -> None:
    budget = CrashBudget()
    for number in range(CONFIG.overall):
        assert not budget.degraded(float(number))
        verdict = budget.crashed(key_of(f"sha256:{number}", {}), float(number), 0.5)
        assert isinstance(verdict, Restart)
    assert budget.degraded(float(CONFIG.overall))
    assert not budget.degraded(CONFIG.window_s + CONFIG.overall)


def test_the_key_does_not_depend_on_the_order_of_the_configuration() -> None:
    assert key_of("d", {"a": "1", "b": "2"}) == key_of("d", {"b": "2", "a": "1"})
    assert key_of("d", {"a": "1"}) != key_of("d", {"a": "2"})
    assert key_of("d", {"a": "1"}) != key_of("e", {"a": "1"})


def test_a_quarantine_counts_in_words() -> None:
    assert Quarantine(1).message("it ended") == "quarantined after 1 crash, the last one: it ended"
    assert Quarantine(3).message("it ended") == "quarantined after 3 crashes, the last one: it ended"
