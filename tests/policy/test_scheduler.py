"""Single decisions of the scheduler, each in a few lines; what holds always is in the state machine."""

from __future__ import annotations

import numpy as np

from synapse.errors import EngineCrashed, LaneUnavailable, Overloaded
from synapse.policy.scheduler import (
    BatchUnit,
    BatchWork,
    Budgets,
    DecodeUnit,
    Effect,
    Failed,
    GenerateWork,
    Ids,
    Rejected,
    Scheduler,
    SchedulerConfig,
    StartUnit,
    Work,
)
from synapse.wire.messages import Measured, SequenceError, SequenceProgress

EMBED = Measured(context=512, micro_batch=512, parallel=8, embed_budget=100)
GENERATE = Measured(context=1000, parallel=4, decode=True, decode_step_ms=10.0, reuse_equal=True)
CRASH = EngineCrashed("request", "gone")


def ids(length: int, value: int = 1) -> Ids:
    return np.full(length, value, dtype=np.int32)


def texts(*lengths: int, max_queue: float | None = None, bulk: bool = False) -> BatchWork:
    return BatchWork(inputs=[ids(length) for length in lengths], max_queue=max_queue, bulk=bulk)


def prompt(tokens: Ids, max_tokens: int = 50, max_queue: float | None = None) -> GenerateWork:
    return GenerateWork(prompt=tokens, max_tokens=max_tokens, max_queue=max_queue)


def unit_in(effects: list[Effect]) -> BatchUnit | DecodeUnit:
    (unit,) = (effect.unit for effect in effects if isinstance(effect, StartUnit))
    assert isinstance(unit, BatchUnit | DecodeUnit)
    return unit


def lengths(unit: BatchUnit | DecodeUnit) -> list[int]:
    assert isinstance(unit, BatchUnit)
    return [len(work.inputs[index]) for work, index in unit.items]


def done(scheduler: Scheduler, now: float = 0.0, elapsed: float = 0.01, **progress: object) -> list[Effect]:
    scheduler.handed_over(0)
    return scheduler.unit_done(0, now, elapsed=elapsed, **progress)  # type: ignore[arg-type]


def busy(measured: Measured, config: SchedulerConfig | None = None) -> Scheduler:
    """A scheduler whose only worker has a unit already."""
    scheduler = Scheduler(config)
    scheduler.worker_ready(0, measured, 0.0)
    scheduler.submit(texts(10), 0.0)
    scheduler.handed_over(0)
    return scheduler


def test_texts_of_several_callers_are_packed_shortest_first() -> None:
    scheduler = busy(EMBED)
    for work in (texts(40, 10), texts(30), texts(15, 90), texts(300)):
        scheduler.submit(work, 0.0)
    unit = unit_in(done(scheduler))
    assert lengths(unit) == [10, 15, 30, 40], "packed to the budget of 100, by length"
    rest = [lengths(unit_in(done(scheduler))) for _ in range(2)]
    assert sorted(rest) == [[90], [300]], "what is over the budget goes alone"
    assert not any(isinstance(effect, StartUnit) for effect in done(scheduler))


def test_with_parallel_1_callers_share_no_unit() -> None:
    scheduler = busy(EMBED, SchedulerConfig(shared=False))
    scheduler.submit(texts(10, 11), 0.0)
    scheduler.submit(texts(12), 0.0)
    assert lengths(unit_in(done(scheduler))) == [10, 11]


def test_the_rest_of_a_large_batch_goes_behind_who_came_meanwhile() -> None:
    scheduler = busy(EMBED)
    scheduler.submit(texts(60, 60, 60, max_queue=10.0), 0.0)
    assert lengths(unit_in(done(scheduler, 1.0))) == [60]
    scheduler.submit(texts(70, max_queue=10.0), 1.0)
    scheduler.submit(texts(80, max_queue=10.0), 1.5)
    order = [lengths(unit_in(done(scheduler, now))) for now in (2.0, 3.0, 4.0, 5.0)]
    assert order == [[60], [70], [80], [60]]


def test_the_earlier_deadline_goes_first() -> None:
    scheduler = busy(EMBED)
    scheduler.submit(texts(91), 0.0)
    scheduler.submit(texts(92, max_queue=5.0), 0.0)
    scheduler.submit(texts(93, max_queue=1.0), 0.0)
    assert [lengths(unit_in(done(scheduler))) for _ in range(3)] == [[93], [92], [91]]


def test_bulk_gets_a_fifth_of_the_time_beside_interactive_texts() -> None:
    scheduler = busy(EMBED)
    for _ in range(100):
        scheduler.submit(texts(95), 0.0)
        scheduler.submit(texts(96, bulk=True), 0.0)
    flows = [unit_in(done(scheduler, elapsed=0.1)).flow for _ in range(50)]
    assert flows.count("bulk") in (10, 11)
    assert "bulk bulk" not in " ".join(flows)


def test_a_request_that_must_start_at_once_and_cannot() -> None:
    scheduler = busy(EMBED)
    work = texts(10, max_queue=0.0)
    (effect,) = scheduler.submit(work, 1.0)
    assert isinstance(effect, Rejected)
    assert isinstance(effect.error, Overloaded)
    assert effect.error.budget == "max_queue"


def test_budgets_are_refused_by_name_and_one_request_alone_never() -> None:
    scheduler = busy(EMBED, SchedulerConfig(budgets=Budgets(requests=2, tokens=50, bytes=10_000)))
    assert scheduler.submit(texts(60), 0.0) == []
    (effect,) = scheduler.submit(texts(1), 0.0)
    assert isinstance(effect, Rejected)
    assert isinstance(effect.error, Overloaded)
    assert (effect.error.budget, effect.error.value, effect.error.limit) == ("tokens", 61, 50)
    assert scheduler.next_deadline is None


def test_what_no_worker_can_start_in_time_is_refused_at_once() -> None:
    scheduler = busy(EMBED)
    waits: Work = texts(10, max_queue=5.0)
    patient: Work = texts(10, max_queue=40.0)
    scheduler.submit(waits, 0.0)
    scheduler.submit(patient, 0.0)
    effects = scheduler.worker_dead(0, CRASH, 1.0, back_at=31.0)
    assert [type(effect) for effect in effects] == [Failed], "only what was in the unit; the others may wait"
    (effect,) = scheduler.submit(texts(10, max_queue=10.0), 1.0)
    assert isinstance(effect, Rejected)
    assert isinstance(effect.error, LaneUnavailable)
    assert effect.error.retry_after == 30.0
    assert scheduler.next_deadline == 5.0
    (effect,) = scheduler.tick(5.0)
    assert isinstance(effect, Rejected)
    assert effect.work is waits
    assert isinstance(effect.error, LaneUnavailable)
    assert lengths(unit_in(scheduler.worker_ready(0, EMBED, 31.0))) == [10]


def test_a_unit_that_never_went_out_waits_again() -> None:
    scheduler = Scheduler()
    scheduler.worker_ready(0, EMBED, 0.0)
    work = texts(10, 20, max_queue=5.0)
    assert lengths(unit_in(scheduler.submit(work, 0.0))) == [10, 20]
    assert scheduler.worker_dead(0, CRASH, 1.0) == []
    assert scheduler.counts().requests == 1
    assert lengths(unit_in(scheduler.worker_ready(0, EMBED, 2.0))) == [10, 20]


def started(effects: list[Effect]) -> list[tuple[int, int, int]]:
    """(prompt length, place that is reused or -1, tokens reused) of what a quantum starts."""
    unit = unit_in(effects)
    assert isinstance(unit, DecodeUnit)
    return [
        (len(one.work.prompt), one.reuse.seq if one.reuse else -1, one.reuse.n if one.reuse else 0)
        for one in unit.start
    ]


def test_prompts_that_come_together_start_together() -> None:
    """Who comes before a quantum was sent is in it, as far as there are places, and its pace is that of all of them."""
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    unit = unit_in(scheduler.submit(prompt(ids(20, 1)), 0.0))
    assert isinstance(unit, DecodeUnit)
    for value in (2, 3, 4, 5):
        assert scheduler.submit(prompt(ids(20, value)), 0.0) == []
    assert scheduler.confirm(0, 0.0) is unit
    assert [start.seat for start in unit.start] == [0, 1, 2, 3]
    ends = [SequenceProgress(seq=0, n_prompt_done=20, ids=[1], n_gen=1, finish_reason="length")]
    going = [SequenceProgress(seq=seat, n_prompt_done=20, ids=[1], n_gen=1) for seat in (1, 2, 3)]
    unit = unit_in(done(scheduler, progress=ends + going))
    assert isinstance(unit, DecodeUnit)
    assert ([start.seat for start in unit.start], unit.target_ms) == ([0], 250.0)
    done(scheduler, progress=[SequenceProgress(seq=0, n_prompt_done=20, ids=[1], n_gen=1, finish_reason="length")])
    scheduler.submit(prompt(ids(20, 6)), 0.0)
    unit = scheduler.confirm(0, 0.0)
    assert isinstance(unit, DecodeUnit)
    assert [len(unit.start), unit.max_steps, unit.target_ms] == [1, 1, 250.0], "beside streams, with a prompt now"


def test_a_shared_beginning_is_evaluated_once() -> None:
    """The second prompt waits until the first one has evaluated what they share, then copies it."""
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    system = ids(200)
    first, second = np.concatenate([system, ids(10, 2)]), np.concatenate([system, ids(10, 3)])
    assert started(scheduler.submit(prompt(first), 0.0)) == [(210, -1, 0)]
    assert scheduler.submit(prompt(second), 0.0) == []
    assert started(done(scheduler, progress=[SequenceProgress(seq=0, n_prompt_done=100)])) == []
    assert started(done(scheduler, progress=[SequenceProgress(seq=0, n_prompt_done=200)])) == [(210, 0, 200)]


def test_who_has_to_start_soon_does_not_wait_for_a_prefix() -> None:
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    scheduler.submit(prompt(ids(210)), 0.0)
    scheduler.submit(prompt(ids(205), max_queue=0.5), 0.0)
    progress = [SequenceProgress(seq=0, n_prompt_done=16)]
    assert started(done(scheduler, progress=progress)) == [(205, 0, 16)]


def test_the_next_turn_takes_its_own_place_and_the_oldest_gives_way() -> None:
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    for value in range(4):
        scheduler.submit(prompt(ids(50, value)), float(value))
        end = SequenceProgress(seq=value, n_prompt_done=50, ids=[9, 8], n_gen=2, finish_reason="stop")
        done(scheduler, float(value), progress=[end])
    assert scheduler.counts().parked == 4
    turn = np.concatenate([ids(50, 2), [9, 8, 7]]).astype(np.int32)
    assert started(scheduler.submit(prompt(turn), 5.0)) == [(53, 2, 51)]
    effects = done(scheduler, 5.0, progress=[SequenceProgress(seq=2, n_prompt_done=53)])
    assert started(effects) == []
    scheduler.submit(prompt(ids(20, 7)), 6.0)
    unit = unit_in(done(scheduler, 6.0, progress=[SequenceProgress(seq=2, n_prompt_done=53, ids=[1], n_gen=1)]))
    assert isinstance(unit, DecodeUnit)
    assert [start.seat for start in unit.start] == [0], "the least recently used one"


def test_no_room_is_no_failure_the_first_time() -> None:
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    scheduler.submit(prompt(ids(50)), 0.0)
    no_room = SequenceProgress(seq=0, error=SequenceError("oom", "no KV cell is free"))
    assert started(done(scheduler, progress=[no_room])) == [(50, -1, 0)]
    effects = done(scheduler, progress=[no_room])
    assert [type(effect) for effect in effects if not isinstance(effect, StartUnit)] == [Failed]


def test_a_quantum_follows_what_is_in_it() -> None:
    """A long step while nobody generates, a unit's with short prompts beside a stream, a short one with long prompts;
    many short steps without any."""
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    unit = unit_in(scheduler.submit(prompt(ids(500)), 0.0))
    assert isinstance(unit, DecodeUnit)
    assert (unit.max_steps, unit.target_ms) == (1, 500.0)
    unit = unit_in(done(scheduler, progress=[SequenceProgress(seq=0, n_prompt_done=500, ids=[1], n_gen=1)]))
    assert isinstance(unit, DecodeUnit)
    assert (unit.max_steps, unit.target_ms) == (5, 50.0)
    scheduler.submit(prompt(ids(500, 7)), 0.0)
    unit = unit_in(done(scheduler, progress=[SequenceProgress(seq=0, n_prompt_done=500, ids=[1], n_gen=2)]))
    assert isinstance(unit, DecodeUnit)
    assert (unit.max_steps, unit.target_ms) == (1, 250.0)
    scheduler.submit(prompt(ids(500, 9)), 0.0)
    stream = SequenceProgress(seq=0, n_prompt_done=500, ids=[1], n_gen=3)
    unit = unit_in(done(scheduler, progress=[stream, SequenceProgress(seq=1, n_prompt_done=30)]))
    assert isinstance(unit, DecodeUnit)
    assert (unit.max_steps, unit.target_ms) == (1, 50.0)


def test_a_slow_reader_is_left_out_and_keeps_its_place() -> None:
    scheduler = Scheduler()
    scheduler.worker_ready(0, GENERATE, 0.0)
    slow, fast = prompt(ids(5, 1)), prompt(ids(5, 2))
    scheduler.submit(slow, 0.0)
    scheduler.submit(fast, 0.0)
    both = [SequenceProgress(seq=seat, n_prompt_done=5, ids=[1], n_gen=1) for seat in range(2)]
    done(scheduler, progress=both[:1])
    scheduler.reader_slow(slow)
    unit = unit_in(done(scheduler, progress=both))
    assert isinstance(unit, DecodeUnit)
    assert unit.continue_ == [1]
    scheduler.reader_ready(slow, 0.0)
    unit = unit_in(done(scheduler, progress=[SequenceProgress(seq=1, n_prompt_done=5, ids=[1], n_gen=2)]))
    assert isinstance(unit, DecodeUnit)
    assert unit.continue_ == [0, 1]
