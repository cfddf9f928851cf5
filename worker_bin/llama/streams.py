"""Which stream of the KV cache each place uses.

The engine evaluates sequences in one pass only if their streams are neighbours; each gap is one more pass over all
weights.
Places are the scheduler's business and have gaps: sequences end in the middle, parked ones keep their place. So places
are mapped to streams here, and running ones are moved together when gaps last. A moved sequence's cells are copied bit
for bit, in order: results do not change.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from worker_bin.llama.context import Context

_PATIENCE: Final = 3
"""Quanta that a gap may last: moving costs a copy of what is moved."""


class Streams:
    """The mapping of `n` places to as many streams, and the calls that take a place."""

    def __init__(self, context: Context, n: int) -> None:
        self._context = context
        self._stream = list(range(n))
        self._gaps_for = 0

    def of(self, place: int) -> int:
        """The stream, which is the engine's sequence id."""
        return self._stream[place]

    def forget(self, place: int, start: int = -1) -> bool:
        """Free a place's cells from position `start` on (-1: all). False: a part cannot be freed (recurrent)."""
        return self._context.forget(self._stream[place], start)

    def share(self, source: int, target: int, n: int) -> bool:
        """Make `target` hold a copy of the first `n` cells of `source`. False: it cannot be done, `target` is empty."""
        state = self._context.save(self._stream[source])
        if self._context.restore(self._stream[target], state) and self.forget(target, n):
            return True
        self.forget(target)
        return False

    def gather(self, running: Collection[int]) -> bool:
        """Once gaps between the `running` places have lasted, move the outermost ones into them. True: moved."""
        used = {self._stream[place] for place in running}
        if len(used) < 2 or max(used) - min(used) == len(used) - 1:
            self._gaps_for = 0
            return False
        self._gaps_for += 1
        if self._gaps_for < _PATIENCE:
            return False
        self._gaps_for = 0
        first = max(
            range(len(self._stream) - len(used) + 1), key=lambda at: sum(at <= s < at + len(used) for s in used)
        )
        window = range(first, first + len(used))
        free = [stream for stream in window if stream not in used]
        for place in [place for place in running if self._stream[place] not in window]:
            self._swap(place, self._stream.index(free.pop()))
        return True

    def _swap(self, place: int, other: int) -> None:
        a, b = self._stream[place], self._stream[other]
        states = [self._context.save(stream) if self._context.holds(stream) else None for stream in (a, b)]
        for stream, state in zip((b, a), states, strict=True):
            self._context.forget(stream)
            if state is not None and not self._context.restore(stream, state):
                raise RuntimeError("the engine does not take back a sequence's cells that it gave")
        self._stream[place], self._stream[other] = b, a
