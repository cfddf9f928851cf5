"""Threads for units: never more than the machine has cores, over all lanes (G6).

One `Threads` belongs to the supervisor, each lane's scheduler has a `ThreadShare` of it. Lanes that have to wait are
served in the order in which they asked; nobody overtakes. A lane that has waited for `patience` seconds gets its
smallest number all the same: a unit that hangs elsewhere must not stop it (such a unit does no work, or it is killed at
its deadline).
"""

from __future__ import annotations

from collections.abc import Callable

PATIENCE_S = 1.0


class Threads:
    """All cores. `waiting`: lanes in the order of their first refusal, with when their patience ends and the least that
    they take."""

    def __init__(self, cores: int, patience_s: float = PATIENCE_S) -> None:
        self.cores = max(1, cores)
        self.patience_s = patience_s
        self.granted = 0
        self.waiting: dict[ThreadShare, tuple[float, int]] = {}

    def share(self, wake: Callable[[], None] | None = None) -> ThreadShare:
        """A lane's access. `wake` is called when threads it waits for may be there; it must not call back."""
        return ThreadShare(self, wake or (lambda: None))

    @property
    def free(self) -> int:
        return max(0, self.cores - self.granted)


class ThreadShare:
    """One lane's access to the threads."""

    def __init__(self, threads: Threads, wake: Callable[[], None]) -> None:
        self._threads, self._wake = threads, wake

    def take(self, least: int, most: int, now: float) -> int | None:
        """Between `least` and `most` threads, both cut to the number of cores; None: wait for `wake`, or until
        `retry_at`."""
        all_ = self._threads
        least, most = min(least, all_.cores), min(most, all_.cores)
        until, _ = all_.waiting.get(self, (now + all_.patience_s, least))
        ahead = next(iter(all_.waiting), self)
        if (ahead is self and all_.free >= least) or now >= until:
            all_.waiting.pop(self, None)
            number = max(least, min(most, all_.free))
            all_.granted += number
            self._wake_next()
            return number
        all_.waiting[self] = (until, least)
        return None

    def give(self, number: int) -> None:
        """Threads come back."""
        self._threads.granted -= number
        self._wake_next()

    def renounce(self) -> None:
        """There is nothing to do after all: leave the line."""
        if self._threads.waiting.pop(self, None) is not None:
            self._wake_next()

    @property
    def retry_at(self) -> float | None:
        """When waiting ends in any case; None while not waiting."""
        waiting = self._threads.waiting.get(self)
        return None if waiting is None else waiting[0]

    def _wake_next(self) -> None:
        for share, (_, least) in self._threads.waiting.items():
            if self._threads.free >= least:
                share._wake()
            break
