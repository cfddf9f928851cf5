"""DECODE over the tiny random model: places, quanta, ends, refusals; and that company never changes a result."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synapse.wire import messages as m
from tests.llama.driver import Driver, Refusal, Result, Run, Stream

EOG = 2
WARM = m.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=7)


def same(left: Result, right: Result) -> bool:
    return (left.text, left.ids, left.finish_reason) == (right.text, right.ids, right.finish_reason)


def alone(driver: Driver, stream: Stream) -> Result:
    """The same request by itself, with nothing to reuse."""
    driver.decode(drop=[0, 1, 2, 3])
    (result,) = driver.run(stream.again(reuse=None))
    return result


# --- the same under any load -----------------------------------------------------------------------------------------

prompts = st.builds(
    lambda shared, own: [*range(3, 3 + shared), *own],
    st.integers(0, 40),
    st.lists(st.integers(3, 272), min_size=1, max_size=60),
)
samplings = st.one_of(
    st.just(m.Sampling()),
    st.builds(
        m.Sampling,
        temperature=st.sampled_from([0.5, 1.0, 2.0]),
        top_k=st.sampled_from([0, 5, 40]),
        top_p=st.sampled_from([0.5, 0.95, 1.0]),
        min_p=st.sampled_from([0.0, 0.05]),
        repeat_penalty=st.sampled_from([1.0, 1.3]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        seed=st.integers(0, 2**63 - 1),
    ),
)
streams = st.builds(Stream, prompts, st.integers(1, 24), samplings)
quanta = st.lists(
    st.fixed_dictionaries(
        {
            "max_steps": st.integers(1, 6),
            "target_ms": st.sampled_from([0.0, 0.5, 1e6]),
            "threads": st.sampled_from([0, 1]),
            "hold": st.lists(st.integers(0, 3), max_size=2),
            "drop": st.lists(st.integers(0, 3), max_size=1),
            "join": st.integers(0, 2),
        }
    ),
    min_size=4,
    max_size=12,
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(waiting=st.lists(streams, min_size=2, max_size=6), schedule=quanta, offers=st.lists(st.integers(0, 100)))
def test_whatever_the_schedule_each_result_is_the_one_alone(
    tiny: Driver, waiting: list[Stream], schedule: list[dict[str, Any]], offers: list[int]
) -> None:
    expected = [alone(tiny, stream) for stream in waiting]
    tiny.decode(drop=[0, 1, 2, 3])
    run, queue, started, dropped = Run(tiny), list(waiting), list[Stream](), set[int]()
    for quantum in [*schedule, *[{"max_steps": 8, "hold": [], "drop": [], "join": 1}] * 200]:
        fields = dict(quantum)
        for place in fields["drop"]:
            if place in run.running:
                dropped.add(id(run.running[place]))
        fields["drop"] = [place for place in fields["drop"] if place in run.running]
        free = [place for place in range(4) if place not in run.running]
        for place in free[: fields.pop("join")]:
            if queue:
                stream = queue.pop(0)
                stream.result, stream.reuse = Result(), (offers.pop() % 4, 50) if offers else None
                started.append(stream)
                run.add(place, stream)
        run.quantum(**fields)
        if not queue and not run.busy:
            break
    assert started == waiting
    for stream, wanted in zip(waiting, expected, strict=True):
        if id(stream) not in dropped:
            assert same(stream.result, wanted)


def test_cancelling_three_of_four_changes_nothing_in_the_fourth(tiny: Driver) -> None:
    four = [Stream([3 + i, 50, 60 + i], 40, m.Sampling(temperature=1.0, seed=i)) for i in range(4)]
    wanted = alone(tiny, four[2])
    run = Run(tiny)
    for place, stream in enumerate(four):
        run.add(place, stream)
    run.quantum(max_steps=5)
    run.quantum(drop=[0, 1, 3], max_steps=5)
    while run.busy:
        run.quantum()
    assert same(four[2].result, wanted)


def test_sequences_with_gaps_between_them_are_moved_together_unharmed(tiny: Driver) -> None:
    endless = m.Sampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=4, logit_bias=[(EOG, -100.0)])
    streams = [Stream(list(range(3 + i, 40 + i)), 60, endless) for i in range(4)]
    wanted = [alone(tiny, stream) for stream in streams]
    tiny.decode(drop=[0, 1, 2, 3])
    run = Run(tiny)
    for place, stream in enumerate(streams):
        run.add(place, stream)
    run.quantum(max_steps=2)
    tiny.decode(park=[1], drop=[2])
    run.running = {place: streams[place] for place in (0, 3)}
    for _ in range(5):
        run.quantum(max_steps=2)
    again = streams[2].again()
    run.add(2, again)
    while run.busy:
        run.quantum(max_steps=2)
    for got, want in ((streams[0], wanted[0]), (streams[3], wanted[3]), (again, wanted[2])):
        assert same(got.result, want)
    # The parked one went along: its cells are still there, and still its own.
    (reused,) = tiny.run(streams[1].again(reuse=(1, 37)), places=[1])
    assert reused.n_reused == 36
    assert same(reused, wanted[1])


def test_a_held_sequence_keeps_its_state(tiny: Driver) -> None:
    stream = Stream([9, 8, 7], 20, WARM)
    wanted = alone(tiny, stream)
    run = Run(tiny)
    run.add(1, stream)
    run.quantum(max_steps=3)
    for _ in range(3):
        run.quantum(hold=[1])
    while run.busy:
        run.quantum(max_steps=3)
    assert same(stream.result, wanted)


def test_a_seed_gives_the_same_text_again_and_another_seed_another(tiny: Driver) -> None:
    first, again, other = (
        alone(tiny, Stream([5, 6, 7], 40, m.Sampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=seed)))
        for seed in (1, 1, 2)
    )
    assert same(first, again)
    assert first.ids != other.ids


# --- prefix reuse ----------------------------------------------------------------------------------------------------


def test_a_second_turn_evaluates_only_its_new_tokens(tiny: Driver) -> None:
    tiny.decode(drop=[0, 1, 2, 3])
    (first,) = tiny.run(Stream(list(range(3, 60)), 12))
    history = [*range(3, 60), *first.ids]
    turn = Stream([*history, 100, 101, 102], 12)
    (reused,) = tiny.run(turn.again(reuse=(0, len(history))))
    # The last token of the first turn was drawn but never evaluated; one that ends it is not part of the history.
    assert reused.n_reused == 57 + first.n_gen - 1
    assert same(reused, alone(tiny, turn))
    assert reused.n_prompt_done == len(turn.prompt)


def test_one_parked_prefix_serves_several_streams(tiny: Driver) -> None:
    shared = list(range(3, 80))
    several = [Stream([*shared, 100 + i], 10, m.Sampling(temperature=1.0, seed=i)) for i in range(3)]
    wanted = [alone(tiny, stream) for stream in several]
    tiny.decode(drop=[0, 1, 2, 3])
    tiny.run(Stream(shared, 1))
    found = tiny.run(*(stream.again(reuse=(0, 77)) for stream in several), places=[1, 2, 3])
    for got, want in zip(found, wanted, strict=True):
        assert got.n_reused == 77
        assert same(got, want)


def test_a_running_sequence_lends_its_prefix(tiny: Driver) -> None:
    shared = list(range(3, 50))
    lender, borrower = Stream([*shared, 200], 30), Stream([*shared, 201], 30)
    wanted = [alone(tiny, lender), alone(tiny, borrower)]
    tiny.decode(drop=[0, 1, 2, 3])
    run = Run(tiny)
    run.add(0, lender)
    run.quantum(max_steps=4)
    borrower = borrower.again(reuse=(0, 48))
    run.add(2, borrower)
    while run.busy:
        run.quantum(max_steps=4)
    assert borrower.result.n_reused == 47
    assert same(lender.result, wanted[0])
    assert same(borrower.result, wanted[1])


def test_an_offer_that_does_not_hold_is_not_taken(tiny: Driver) -> None:
    tiny.decode(drop=[0, 1, 2, 3])
    tiny.run(Stream([3, 4, 5, 6, 7, 8], 1))
    (differs,) = tiny.run(Stream([3, 4, 99, 6, 7, 8], 4, reuse=(0, 6)), places=[1])
    assert differs.n_reused == 2
    (nothing_there,) = tiny.run(Stream([3, 4, 5], 4, reuse=(3, 3)), places=[2])
    assert nothing_there.n_reused == 0
    (whole,) = tiny.run(Stream([3, 4, 5, 6, 7, 8], 4, reuse=(0, 6)), places=[3])
    assert whole.n_reused == 5  # the last one's logits are needed


def test_a_parked_sequence_keeps_its_cells_and_a_dropped_one_does_not(tiny: Driver) -> None:
    tiny.decode(drop=[0, 1, 2, 3])
    run = Run(tiny)
    run.add(0, Stream(list(range(3, 40)), 50))
    run.add(1, Stream(list(range(3, 40)), 50))
    run.quantum(max_steps=2)
    tiny.decode(park=[0], drop=[1])
    parked, dropped = (Stream(list(range(3, 41)), 2, reuse=(place, 37)) for place in (0, 1))
    tiny.run(dropped, places=[3])
    tiny.run(parked, places=[2])
    assert (parked.result.n_reused, dropped.result.n_reused) == (37, 0)


# --- quanta ----------------------------------------------------------------------------------------------------------


def test_a_long_prompt_takes_chunks_and_a_running_stream_moves_in_every_quantum(tiny: Driver) -> None:
    tiny.decode(drop=[0, 1, 2, 3])
    run = Run(tiny)
    runner, long = Stream([5, 6], 100, WARM), Stream([*range(3, 203)], 4)
    run.add(0, runner)
    run.quantum(max_steps=1, target_ms=0)
    run.add(1, long)
    quanta = 0
    while long.result.n_gen == 0:
        before = runner.result.n_gen
        decoded = run.quantum(max_steps=8, target_ms=0)
        assert decoded.steps == 1
        assert runner.result.finish_reason is not None or runner.result.n_gen == before + 1
        quanta += 1
    assert quanta > 5
    tiny.decode(drop=[0, 1])


def test_a_short_prompt_does_not_wait_for_a_long_one(tiny: Driver) -> None:
    """They share the steps: when the short one has its first token, the long one has had no more than it."""
    tiny.decode(drop=[0, 1, 2, 3])
    run = Run(tiny)
    long, short = Stream([*range(3, 203)], 4), Stream([*range(3, 23)], 4)
    run.add(0, long)
    run.add(1, short)
    done = {0: 0, 1: 0}
    while short.result.n_gen == 0:
        decoded = run.quantum(max_steps=1, target_ms=0)
        done |= {progress.seq: progress.n_prompt_done for progress in decoded.sequences}
    assert done[1] == 20
    assert 0 < done[0] <= 20 + 4
    assert long.result.n_gen == 0
    tiny.decode(drop=[0, 1])


def test_max_steps_bounds_a_quantum(tiny: Driver) -> None:
    run = Run(tiny)
    run.add(0, Stream([5], 50, m.Sampling(logit_bias=[(EOG, -100.0)])))
    assert run.quantum(max_steps=5).steps == 5
    assert run.running[0].result.n_gen == 5
    tiny.decode(drop=[0])


def test_an_empty_decode_is_answered(tiny: Driver) -> None:
    decoded = tiny.decode()
    assert decoded.sequences == []
    assert decoded.steps == 0


# --- ends ------------------------------------------------------------------------------------------------------------


def test_max_tokens_ends_with_length(tiny: Driver) -> None:
    (result,) = tiny.run(Stream([5, 6], 7, m.Sampling(logit_bias=[(EOG, -100.0)])))
    assert (result.finish_reason, result.n_gen, len(result.ids)) == ("length", 7, 7)


def test_the_window_ends_with_length(tiny: Driver) -> None:
    (result,) = tiny.run(Stream([5] * 250, 1000, m.Sampling(logit_bias=[(EOG, -100.0)])))
    assert (result.finish_reason, result.n_gen) == ("length", 6)


def test_the_models_end_is_stop_and_has_no_text(tiny: Driver) -> None:
    (result,) = tiny.run(Stream([5, 6], 7, m.Sampling(logit_bias=[(EOG, 1000.0)])))
    assert (result.finish_reason, result.text, result.ids) == ("stop", "", [EOG])


def test_generate_gives_what_decode_gives(tiny: Driver) -> None:
    wanted = alone(tiny, Stream([5, 6, 7, 8], 20))
    text = tiny.generate([5, 6, 7, 8], 20)
    assert (text.text, text.n_gen, text.finish_reason) == (wanted.text, wanted.n_gen, wanted.finish_reason)
    assert text.n_prompt == 4


def test_generate_finds_a_place_beside_running_streams_or_says_that_there_is_none(tiny: Driver) -> None:
    stream = Stream([5, 6, 7], 60, m.Sampling(logit_bias=[(EOG, -100.0)]))
    wanted = alone(tiny, stream)
    run = Run(tiny)
    run.add(0, stream)
    run.quantum(max_steps=2)
    tiny.generate([9, 9], 5)
    while run.busy:
        run.quantum()
    assert same(stream.result, wanted)
    for place in range(4):
        run.add(place, stream.again())
    run.quantum(max_steps=1)
    with pytest.raises(Refusal, match="all 4 sequences are running"):
        tiny.generate([9, 9], 5)
    tiny.decode(drop=[0, 1, 2, 3])


# --- one sequence's failure is its own -------------------------------------------------------------------------------


def options(**values: Any) -> Stream:
    return Stream([5, 6], 8, m.Sampling(temperature=1.0, **values))


BAD_STARTS = {
    "no tokens": Stream([]),
    "256 tokens, the window 256": Stream([5] * 256),
    "300 tokens, the window 256": Stream([5] * 300),
    "outside the vocabulary": Stream([5, 273]),
    "token id": Stream([-1]),
    "max_tokens is 0": Stream([5], 0),
    "logprobs is 101": Stream([5], logprobs=101),
    "temperature": Stream([5], sampling=m.Sampling(temperature=-0.5)),
    "top_k": options(top_k=-1),
    "top_p": options(top_p=1.5),
    "min_p": options(min_p=-0.1),
    "repeat_penalty": options(repeat_penalty=0.0),
    "frequency_penalty": options(frequency_penalty=1e9),
    "presence_penalty": options(presence_penalty=-1e9),
    "repeat_last_n": options(repeat_last_n=-1),
    "seed": options(seed=-1),
    "logit bias's token": options(logit_bias=[(273, 1.0)]),
    "bias's token is -1": options(logit_bias=[(-1, 1.0)]),
    "a logit bias is": options(logit_bias=[(5, 1e30)]),
    "number of logit biases": options(logit_bias=[(5, 1.0)] * 5000),
    "stop string": Stream([5], stop=[""]),
    "513 characters": Stream([5], stop=["x" * 513]),
    "65 stop strings": Stream([5], stop=["x"] * 65),
    "exclude each other": Stream([5], grammar='root ::= "a"', json_schema="{}"),
}


@pytest.mark.parametrize("reason", BAD_STARTS)
def test_a_bad_start_fails_alone(tiny: Driver, reason: str) -> None:
    good = Stream([5, 6, 7], 6)
    wanted = alone(tiny, good)
    bad = BAD_STARTS[reason].again()
    tiny.run(good, bad)
    assert bad.result.error is not None
    assert bad.result.error.code == "invalid_request"
    assert reason in bad.result.error.msg
    assert same(good.result, wanted)
    assert tiny.alive()


@pytest.mark.parametrize("bias", [-10_000.0, 10_000.0])
def test_a_bias_on_every_token_is_no_bias(tiny: Driver, bias: float) -> None:
    plain = alone(tiny, Stream([5, 6], 4))
    (result,) = tiny.run(Stream([5, 6], 4, m.Sampling(logit_bias=[(i, bias) for i in range(273)])))
    assert result.error is None
    assert len(result.ids) == len(plain.ids)
    assert tiny.alive()


CONTRADICTIONS: dict[str, dict[str, Any]] = {
    "does not run": {"continue_": [3]},
    "started or continued twice": {"continue_": [0, 0]},
    "not below parallel": {"continue_": [4]},
    "sequence 2147483647 is not below": {"drop": [2**31 - 1]},
    "both dropped and parked": {"drop": [0], "park": [0]},
    "runs already": {"start": [(0, Stream([5]))]},
    "is to be continued": {"continue_": [0], "drop": [0]},
    "target_ms": {"target_ms": -1.0},
    "threads": {"threads": 2**31 - 1},
}


@pytest.mark.parametrize("reason", CONTRADICTIONS)
def test_a_request_that_contradicts_itself_changes_nothing(tiny: Driver, reason: str) -> None:
    stream = Stream([5, 6, 7], 30, WARM)
    wanted = alone(tiny, stream)
    run = Run(tiny)
    run.add(0, stream)
    run.quantum(max_steps=3)
    with pytest.raises(Refusal, match=reason) as refused:
        tiny.decode(**CONTRADICTIONS[reason])
    assert refused.value.code == "invalid_request"
    while run.busy:
        run.quantum(max_steps=3)
    assert same(stream.result, wanted)


# --- log-probabilities and bias --------------------------------------------------------------------------------------


def test_logprobs_are_the_models_own(tiny: Driver) -> None:
    (result,) = tiny.run(Stream([5, 6, 7], 6, logprobs=5))
    assert len(result.logprobs) == len(result.ids)
    for token, chosen in zip(result.ids, result.logprobs, strict=True):
        assert chosen.id == token
        assert chosen.top[0][0] == token  # greedy
        assert chosen.top[0][3] == pytest.approx(chosen.logprob)
        values = [entry[3] for entry in chosen.top]
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
    (bare,) = tiny.run(Stream([5, 6, 7], 6, logprobs=0))
    assert [entry.top for entry in bare.logprobs] == [[]] * len(bare.ids)
    assert bare.ids == result.ids


def test_all_logprobs_sum_to_one(tiny: Driver) -> None:
    import math

    (result,) = tiny.run(Stream([5, 6, 7], 1, logprobs=100))
    total = sum(math.exp(entry[3]) for entry in result.logprobs[0].top)
    assert 0.5 < total <= 1.0001


def test_a_bias_forces_and_bans(tiny: Driver) -> None:
    (forced,) = tiny.run(Stream([5, 6], 5, m.Sampling(logit_bias=[(42, 1000.0)])))
    assert forced.ids == [42] * 5
    plain = alone(tiny, Stream([5, 6], 1))
    (banned,) = tiny.run(Stream([5, 6], 1, m.Sampling(logit_bias=[(plain.ids[0], -1000.0)])))
    assert banned.ids != plain.ids
