"""The crash budget (W9): who may be restarted, when, and who is quarantined. Pure; time and entropy are arguments.

A *key* is (artifact digest, canonical runtime_config). N crashes of one key within the window quarantine it until it is
probed on purpose; M crashes over all keys within the window degrade the engine kind, which refuses nothing. Crashes of
every stage of W7 count, a worker's ERR never does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

Key = tuple[str, str]


def key_of(digest: str, runtime_config: Mapping[str, str]) -> Key:
    """The budget's key. Equal configurations give equal keys, whatever their order."""
    return digest, msgspec.json.encode(dict(runtime_config), order="sorted").decode()


@dataclass(frozen=True)
class BudgetConfig:
    """D15's numbers. Seconds; `jitter` is a share of the delay."""

    per_key: int = 3
    overall: int = 10
    window_s: float = 300.0
    backoff_first_s: float = 0.5
    backoff_max_s: float = 30.0
    jitter: float = 0.2


@dataclass(frozen=True)
class Restart:
    """Below the budget: start again, but not before `delay_s` have passed."""

    delay_s: float


@dataclass(frozen=True)
class Quarantine:
    """The budget is spent. `crashes` is how many there were in the window."""

    crashes: int

    def message(self, last: object) -> str:
        """What a caller is told; `last` is the crash that spent it."""
        count = "1 crash" if self.crashes == 1 else f"{self.crashes} crashes"
        return f"quarantined after {count}, the last one: {last}"


Verdict = Restart | Quarantine


@dataclass
class _History:
    crashes: deque[float] = field(default_factory=deque)
    """Those in the window."""
    streak: int = 0
    """Crashes with less than a window between each and the next: the back-off grows with it."""


class CrashBudget:
    """Counts crashes. One for all lanes of an engine kind; its clock is whatever the caller passes, monotonic."""

    def __init__(self, config: BudgetConfig | None = None) -> None:
        self.config = config or BudgetConfig()
        self._histories: dict[Key, _History] = {}
        self._all: deque[float] = deque()
        self._quarantined: dict[Key, int] = {}

    def crashed(self, key: Key, now: float, entropy: float) -> Verdict:
        """A worker of this key crashed. `entropy` in [0, 1) spreads the delay.

        A crash of a key that is quarantined already (its last worker's, its sibling's) leaves it quarantined.
        """
        history = self._histories.setdefault(key, _History())
        if history.crashes and now - history.crashes[-1] >= self.config.window_s:
            history.streak = 0
        history.streak += 1
        for times in (history.crashes, self._all):
            times.append(now)
            self._trim(times, now)
        if key in self._quarantined or len(history.crashes) >= self.config.per_key:
            self._quarantined[key] = max(self._quarantined.get(key, 0), len(history.crashes))
            return Quarantine(self._quarantined[key])
        config = self.config
        delay = min(config.backoff_max_s, config.backoff_first_s * 2.0 ** min(history.streak - 1, 60))
        return Restart(delay * (1.0 + config.jitter * (2.0 * entropy - 1.0)))

    def quarantined(self, key: Key) -> int | None:
        """How many crashes put it there, or None. It does not end by itself."""
        return self._quarantined.get(key)

    def crashes(self, key: Key, now: float) -> int:
        """Crashes of this key in the window."""
        history = self._histories.get(key)
        return 0 if history is None else sum(now - time < self.config.window_s for time in history.crashes)

    def degraded(self, now: float) -> bool:
        """M crashes or more over all keys in the window."""
        return sum(now - time < self.config.window_s for time in self._all) >= self.config.overall

    def probe(self, key: Key) -> None:
        """Somebody wants to know on purpose: the key starts anew."""
        self._quarantined.pop(key, None)
        self._histories.pop(key, None)

    def restore(self, key: Key, crashes: int) -> None:
        """A persisted quarantine of an earlier life of the module."""
        self._quarantined[key] = crashes

    def _trim(self, times: deque[float], now: float) -> None:
        """Forget what left the window. Of what is in it no more than matters is kept."""
        while times and now - times[0] >= self.config.window_s:
            times.popleft()
        while len(times) > 4 * max(self.config.per_key, self.config.overall):
            times.popleft()
