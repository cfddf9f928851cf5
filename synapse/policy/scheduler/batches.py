"""How texts become units: shortest first, packed to a token budget, several callers' texts together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from synapse.policy.scheduler.queues import WorkQueue
from synapse.policy.scheduler.work import BatchUnit, BatchWork, Ids
from synapse.wire.messages import Measured

DEFAULT_BUDGET_TOKENS = 384
"""Where the worker measured none: larger units are slower on a CPU, since attention is computed over all of it."""
MAX_TEXTS = 256
SCAN_WORKS = 64
"""So many works are looked at for texts that still fit into a unit."""


@dataclass(frozen=True)
class BatchLimits:
    """What one unit may hold. `shared`: texts of several callers may be in one unit (D5)."""

    tokens: int
    texts: int
    shared: bool

    @staticmethod
    def of(measured: Measured, shared: bool) -> BatchLimits:
        budget = measured.embed_budget or DEFAULT_BUDGET_TOKENS
        return BatchLimits(
            tokens=min(budget, measured.micro_batch or budget),
            texts=min(measured.max_texts or MAX_TEXTS, MAX_TEXTS),
            shared=shared,
        )


def pack(queue: WorkQueue, limits: BatchLimits, token_ms: float, target_ms: float) -> BatchUnit | None:
    """Take the next unit's texts out of `queue`'s works (the works themselves stay in it). None if there is nothing.

    The first work in the queue always gets its shortest text in, also one over the budget, which is then alone. The
    budget shrinks where `token_ms`, the measured time of a token, says that it would take longer than `target_ms`.
    """
    room = limits.tokens
    if token_ms > 0:
        room = min(room, int(target_ms / token_ms))
    kind, query = "", None
    items: list[tuple[BatchWork, int]] = []
    for seen, entry in enumerate(queue):
        work = cast(BatchWork, entry)
        if not items:
            kind, query = work.kind, work.query
        elif seen >= SCAN_WORKS or not limits.shared or query is not None:
            break
        elif work.kind != kind:
            continue
        while work.pending and len(items) < limits.texts:
            cost = work.cost(work.pending[-1])
            if cost > room and items:
                break
            items.append((work, work.pending.pop()))
            work.in_units += 1
            room -= cost
        if room <= 0 or len(items) == limits.texts:
            break
    if not items:
        return None
    items.sort(key=lambda item: len(item[0].inputs[item[1]]))
    first = items[0][0]
    return BatchUnit(flow="bulk" if first.bulk else "batch", kind=first.kind, items=items, query=query)


def unpack(unit: BatchUnit) -> None:
    """Give back what was taken by `pack`: the unit never went out."""
    for work, index in unit.items:
        give_back(work, index)


def give_back(work: BatchWork, index: int) -> None:
    work.in_units -= 1
    work.pending.append(index)
    work.pending.sort(key=lambda i: (-len(work.inputs[i]), -i))


def texts_of(unit: BatchUnit) -> list[Ids]:
    """The unit's texts, in its order."""
    return [work.inputs[index] for work, index in unit.items]
