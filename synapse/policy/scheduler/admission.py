"""What may wait in a lane: requests, bytes and tokens. A refusal is immediate and names the budget."""

from __future__ import annotations

from dataclasses import dataclass

from synapse.errors import Overloaded
from synapse.policy.scheduler.work import Work


@dataclass(frozen=True)
class Budgets:
    """Upper bounds of what one lane queues (D15). Bytes are those of the ids and of the texts beside them."""

    requests: int = 4096
    bytes: int = 64 * 1024 * 1024
    tokens: int = 16 * 1024 * 1024


class Admission:
    """Counts what waits. A place is held from submission until the hand-over, the refusal or the withdrawal.

    An empty queue takes any one request: nothing is refused for its size alone. Otherwise no budget is ever exceeded.
    """

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self.requests = self.bytes = self.tokens = 0

    def refusal(self, work: Work, tokens: int) -> Overloaded | None:
        """The first budget that this work would exceed, or None."""
        if self.requests == 0:
            return None
        n_bytes = 4 * tokens + work.extra_bytes
        for name, used, more, limit in (
            ("requests", self.requests, 1, self.budgets.requests),
            ("bytes", self.bytes, n_bytes, self.budgets.bytes),
            ("tokens", self.tokens, tokens, self.budgets.tokens),
        ):
            if used + more > limit:
                return Overloaded(name, used + more, limit)
        return None

    def take(self, work: Work) -> None:
        self.requests += 1
        self._count(work.tokens, work.extra_bytes, +1)

    def give_tokens(self, tokens: int) -> None:
        """A part of a work left the queue."""
        self._count(tokens, 0, -1)

    def give(self, work: Work) -> None:
        """The work left the queue with what still waited of it."""
        self.requests -= 1
        self._count(work.tokens, work.extra_bytes, -1)

    def _count(self, tokens: int, extra: int, sign: int) -> None:
        self.tokens += sign * tokens
        self.bytes += sign * (4 * tokens + extra)
