"""The promises, checked in a journal (docs/PROMISES.md). Each returns what is wrong, in words; nothing is good.

They take the journal and nothing else, so they hold for the simulated and for the real host alike.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from synapse.testing.journal import (
    Asked,
    Broke,
    Ended,
    Exited,
    Greeted,
    Healed,
    Journal,
    Replied,
    Requested,
    Spawned,
)
from synapse.testing.marks import operations_in
from synapse.wire import messages as m

INSTANT_S = 1e-6
"""Two things at one moment of virtual time."""


def one_outcome(journal: Journal) -> list[str]:
    """P4: every operation that was asked for ended exactly once, with the right answer where it was served."""
    ends: dict[int, list[Ended]] = defaultdict(list)
    for end in journal.of(Ended):
        ends[end.operation].append(end)
    asked = {event.operation for event in journal.of(Asked)}
    problems = [f"operation {number} ended without being asked" for number in ends if number not in asked]
    for number in sorted(asked):
        outcomes = [end.outcome for end in ends[number]]
        if len(outcomes) != 1:
            problems.append(f"operation {number} ended {len(outcomes)} times: {outcomes}")
        problems += [f"operation {number}: {end.wrong}" for end in ends[number] if end.wrong]
    return problems


def nothing_replayed(journal: Journal) -> list[str]:
    """P5: no part of an operation reached a worker twice, and what was served reached one whole."""
    parts = {event.operation: event.parts for event in journal.of(Asked)}
    reached = _reached(journal)
    problems = [
        f"operation {number} has {parts[number]} parts, and {count} reached workers"
        for number, count in reached.items()
        if count > parts.get(number, count)
    ]
    return problems + [
        f"operation {end.operation} was served with {reached[end.operation]} of {parts[end.operation]} parts"
        for end in journal.of(Ended)
        if end.outcome == "served" and reached[end.operation] != parts[end.operation]
    ]


def not_admitted_is_true(journal: Journal) -> list[str]:
    """P6: of what was called not admitted, no byte went to a worker."""
    reached = _reached(journal)
    return [
        f"operation {end.operation} was called not admitted, and {reached[end.operation]} parts reached workers"
        for end in journal.of(Ended)
        if end.outcome == "not_admitted" and reached[end.operation]
    ]


def single_lane(journal: Journal) -> list[str]:
    """P7: a worker never has two requests, and none is sent to one that broke, ended or was never greeted."""
    problems = []
    state: dict[int, str] = {}
    for event in journal:
        match event:
            case Greeted(pid=pid):
                state[pid] = "idle"
            case Requested(pid=pid):
                if state.get(pid) != "idle":
                    name = type(event.request).__name__
                    problems.append(f"{name} was sent to {pid}, which was {state.get(pid, 'not greeted')}")
                state[pid] = "busy"
            case Replied(pid=pid):
                state[pid] = "idle"
            case Broke(pid=pid):
                state[pid] = "broken"
            case Exited(pid=pid):
                state[pid] = "gone"
    return problems


def no_hang(journal: Journal, *, unit_s: float, load_s: float, slack_s: float = INSTANT_S) -> list[str]:
    """P3: every request was answered or its worker gone by its deadline, and what could not start in time was refused.

    Args:
        unit_s, load_s: the deadlines of a unit and of LOAD.
        slack_s: what killing and reaping may take on top; next to nothing in virtual time.
    """
    problems = []
    open_: dict[int, Requested] = {}
    for event in journal:
        match event:
            case Requested(pid=pid):
                open_[pid] = event
            case Replied(pid=pid) | Exited(pid=pid):
                if request := open_.pop(pid, None):
                    bound = (load_s if isinstance(request.request, m.Load) else unit_s) + slack_s
                    took = event.time - request.time
                    if took > bound:
                        problems.append(f"{type(request.request).__name__} to {pid} took {took:g} s of {bound:g} s")
    return problems + _late_starts(journal, slack_s)


def nothing_left(journal: Journal) -> list[str]:
    """P15: every worker that was started is gone, and nobody waits. For the end of a run."""
    gone = {event.pid for event in journal.of(Exited)}
    ended = {event.operation for event in journal.of(Ended)}
    problems = [f"worker {event.worker_id} was never reaped" for event in journal.of(Spawned) if event.pid not in gone]
    return problems + [f"operation {e.operation} waits" for e in journal.of(Asked) if e.operation not in ended]


def left_is_gone(journal: Journal) -> list[str]:
    """P16: of an operation whose caller left, no part is sent any more, and its sequence is in no later quantum."""
    left: dict[int, float] = {}
    running: dict[tuple[int, int], int] = {}
    problems = []
    for event in journal:
        match event:
            case Ended(operation=number, outcome="left"):
                left[number] = event.time
            case Exited(pid=pid):
                running = {key: number for key, number in running.items() if key[0] != pid}
            case Requested(pid=pid, request=request, raw=raw):
                problems += [
                    f"a part of operation {n} was sent after its caller had left" for n in _parts(request, raw, left)
                ]
                if isinstance(request, m.Decode):
                    problems += [
                        f"operation {running[pid, seq]} went on after its caller had left"
                        for seq in request.continue_
                        if running.get((pid, seq)) in left
                    ]
                    for seq in [*request.drop, *request.park]:
                        running.pop((pid, seq), None)
                    for start, number in zip(request.start, operations_in_order(request, raw), strict=True):
                        running[pid, start.seq] = number
    return problems


def healed(journal: Journal, *, within_s: float = 60.0) -> list[str]:
    """P29: what was asked `within_s` after the faults ended, or later, was served unless its caller left or would not
    wait."""
    heals = journal.of(Healed)
    if not heals:
        return ["the faults never ended"]
    later = {e.operation: e for e in journal.of(Asked) if e.time >= heals[-1].time + within_s}
    return [
        f"operation {end.operation} ended {end.outcome} although all was well"
        for end in journal.of(Ended)
        if end.operation in later
        and end.outcome not in ("served", "left")
        and not (end.outcome == "not_admitted" and later[end.operation].max_queue_s is not None)
    ]


SAFETY: dict[str, Callable[[Journal], list[str]]] = {
    "P4 one outcome": one_outcome,
    "P5 nothing replayed": nothing_replayed,
    "P6 not_admitted is true": not_admitted_is_true,
    "P7 single lane": single_lane,
    "P15 nothing left": nothing_left,
    "P16 left is gone": left_is_gone,
}
"""What holds for every journal, whatever was done to the workers."""


def verdict(journal: Journal, checks: Iterable[str] = tuple(SAFETY)) -> list[str]:
    """All that the checks of `SAFETY` find wrong, each with the promise's name in front."""
    return [f"{name}: {problem}" for name in checks for problem in SAFETY[name](journal)]


def outcomes(journal: Journal) -> Counter[str]:
    """How often each outcome occurred."""
    return Counter(end.outcome for end in journal.of(Ended))


def operations_in_order(request: m.Decode, raw: bytes) -> list[int]:
    """The operation of each started sequence."""
    found, at = [], 0
    for start in request.start:
        size = 4 * start.n_tokens
        found.append(next(iter(_one(start, raw[at : at + size]))))
        at += size
    return found


def _one(start: m.DecodeStart, ids: bytes) -> Counter[int]:
    return operations_in(m.Generate(req_id="", model_ref="", max_tokens=0), ids)


def _reached(journal: Journal) -> Counter[int]:
    """How many parts of each operation went to workers."""
    reached: Counter[int] = Counter()
    for event in journal.of(Requested):
        reached.update(operations_in(event.request, event.raw))
    return reached


def _parts(request: m.Request, raw: bytes, left: dict[int, float]) -> list[int]:
    return [number for number in operations_in(request, raw) if number in left]


def _late_starts(journal: Journal, slack_s: float) -> list[str]:
    """Operations that were neither handed over nor answered by the time they had to start."""
    first: dict[int, float] = {}
    for event in journal.of(Requested):
        for number in operations_in(event.request, event.raw):
            first.setdefault(number, event.time)
    asked = {event.operation: event for event in journal.of(Asked)}
    problems = []
    for end in journal.of(Ended):
        ask = asked[end.operation]
        if ask.max_queue_s is None:
            continue
        started = first.get(end.operation, end.time)
        if started > ask.time + ask.max_queue_s + slack_s:
            problems.append(
                f"operation {end.operation} waited {started - ask.time:g} s instead of {ask.max_queue_s:g} s"
            )
    return problems
