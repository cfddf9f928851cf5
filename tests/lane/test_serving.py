"""What a lane promises while nothing goes wrong: right answers in the callers' order, cancellation, slow readers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

import synapse
from synapse import Generation, InputTooLarge, InvalidInput, LaneUnavailable, Overloaded, Sampling
from synapse.lane.checks import check_sampling
from tests.lane.lab import (
    BOUND_S,
    QUICK,
    answer,
    expected_text,
    expected_vectors,
    ids,
    nothing_left,
    open_lab,
    text_of,
    until,
)
from worker_bin.faulty import arithmetic


async def test_embeddings_of_many_callers_are_their_own(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("embed")

        async def caller(number: int) -> None:
            texts = [text_of(1 + (37 * number + 11 * at) % 300, number) for at in range(number % 7 + 1)]
            vectors = await lane.embed(texts, bulk=number % 2 == 0)
            assert vectors.dtype == np.float32
            np.testing.assert_allclose(vectors, expected_vectors(texts), atol=1e-6)

        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(caller, number)
            assert (await lane.embed([])).shape == (0, 8)
        assert nothing_left(lane)


async def test_scores_stand_in_the_documents_order(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("rerank")
        query, documents = text_of(9), [text_of(length, length) for length in (200, 3, 77, 150, 1, 199, 60)]
        with trio.fail_after(BOUND_S):
            scores = await lane.rerank(query, documents)
        expected = [arithmetic.score(query.tolist(), document.tolist()) for document in documents]
        np.testing.assert_allclose(scores, expected, atol=1e-6)


async def test_more_streams_than_places(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("generate", parallel=3)

        async def caller(number: int) -> None:
            prompt = text_of(5 + 20 * number, number)
            assert await answer(lane, prompt, 30, max_queue=None) == (expected_text(prompt, 30), "length")

        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(caller, number)
        assert nothing_left(lane)


async def test_a_second_turn_evaluates_only_what_is_new(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("generate")
        first = text_of(100)
        with trio.fail_after(BOUND_S):
            async with lane.generate(Generation(prompt=first, max_tokens=10)) as stream:
                made = [token async for delta in stream for token in delta.ids]
            second = np.concatenate([first, ids(*made), text_of(5, 7)])
            async with lane.generate(Generation(prompt=second, max_tokens=10)) as stream:
                text = "".join([delta.text async for delta in stream])
        assert text == expected_text(second, 10)
        assert (stream.n_prompt, stream.n_gen, stream.seed) == (115, 10, 0)
        assert stream.n_reused == 109, "all but the last token, which was drawn and never evaluated"


async def test_the_window_ends_a_generation(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="generate", context=64))
        with trio.fail_after(BOUND_S):
            await lane.ready()
            text, reason = await answer(lane, text_of(60), 500)
            assert (len(text), reason) == (4, "length")
            with pytest.raises(InputTooLarge) as refused:
                await answer(lane, text_of(64))
        assert (refused.value.value, refused.value.limit) == (64, 63)


async def test_a_caller_that_leaves_takes_everything_with_it(runtime_dir: Path, tmp_path: Path) -> None:
    """Cancelled while queued, before the first token, in mid-stream; the others do not notice."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="generate", step_ms=2), parallel=2)
        with trio.fail_after(BOUND_S):
            await lane.ready()
            results: list[tuple[str, str | None]] = []

            async def stays() -> None:
                results.append(await answer(lane, text_of(20), 100, max_queue=None))

            async def leaves(after: int) -> None:
                async with lane.generate(Generation(prompt=text_of(30, after), max_queue=None)) as stream:
                    if after == 0:
                        return
                    n = 0
                    async for delta in stream:
                        n += len(delta.ids)
                        if n >= after:
                            return

            async with trio.open_nursery() as nursery:
                nursery.start_soon(stays)
                await trio.testing.wait_all_tasks_blocked()
                for after in (0, 1, 5, 30):
                    nursery.start_soon(leaves, after)
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await answer(lane, text_of(9))
            assert results == [(expected_text(text_of(20), 100), "length")]
            await until(lambda: nothing_left(lane))


async def test_a_slow_reader_holds_back_only_itself(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("generate", parallel=2)
        slow, fast = text_of(20), text_of(21)
        with trio.fail_after(BOUND_S):
            async with lane.generate(Generation(prompt=slow, max_tokens=400)) as stream:
                await until(lambda: stream.n_gen >= 64)
                assert await answer(lane, fast, 400) == (expected_text(fast, 400), "length")
                assert stream.n_gen < 400, "its sequence was held"
                assert "".join([delta.text async for delta in stream]) == expected_text(slow, 400)
        assert nothing_left(lane)


async def test_a_place_in_the_queue_is_reached_in_time_or_refused(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("embed", "hang@EMBED_BATCH", parallel=1)
        with trio.fail_after(BOUND_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lane.embed, [text_of(3)])
                await trio.testing.wait_all_tasks_blocked()
                with pytest.raises(Overloaded) as refused:
                    await lane.embed([text_of(3)], max_queue=0.05)
                assert refused.value.budget == "max_queue"
                with pytest.raises(Overloaded):
                    await lane.embed([text_of(3)], max_queue=0)
                nursery.cancel_scope.cancel()


async def test_what_can_be_foreseen_is_refused_before_a_worker_sees_it(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("embed", "abort@EMBED_BATCH")
        for bad in ([ids()], [ids(5), ids(-1)], [ids(258)], [np.zeros(3, dtype=np.float32)], [ids(1).reshape(1, 1)]):
            with pytest.raises(InvalidInput):
                await lane.embed(bad)
        with pytest.raises(InputTooLarge) as refused:
            await lane.embed([ids(1), text_of(513)])
        assert (refused.value.index, refused.value.value, refused.value.limit) == (1, 513, 512)
        with pytest.raises(InvalidInput):
            await lane.rerank(ids(1), [ids(2)])
        with pytest.raises(InvalidInput):
            await answer(lane, ids(1))
        assert lane.health().workers[0].state == "idle"


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=float("nan")),
        Sampling(temperature=-1.0),
        Sampling(top_k=-1),
        Sampling(top_p=1.5),
        Sampling(seed=-1),
        Sampling(logit_bias=[(258, 1.0)]),
        Sampling(logit_bias=[(1, float("inf"))]),
    ],
)
def test_sampling_that_no_engine_takes(sampling: Sampling) -> None:
    check_sampling(Sampling(), 258)
    with pytest.raises(InvalidInput):
        check_sampling(sampling, 258)


async def test_a_worker_without_decode_answers_in_one_piece(runtime_dir: Path, tmp_path: Path) -> None:
    """G4: greedy, one delta, a bounded length; what asks for more is refused by name."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="generate", decode="no"))
        with trio.fail_after(BOUND_S):
            await lane.ready()
            assert lane.measured is not None
            assert not lane.measured.decode
            assert lane.max_tokens == 64
            assert await answer(lane, text_of(10), 20) == (expected_text(text_of(10), 20), "length")
            for field, options in (
                ("stop", {"stop": ("a",)}),
                ("json_schema", {"json_schema": "{}"}),
                ("logprobs", {"logprobs": 1}),
            ):
                with pytest.raises(InvalidInput) as refused:
                    await answer(lane, text_of(10), **options)
                assert refused.value.field == field
            with pytest.raises(InvalidInput) as refused:
                await answer(lane, text_of(10), 65)
            assert refused.value.field == "max_tokens"
            with pytest.raises(InvalidInput) as refused:
                async with lane.generate(Generation(prompt=text_of(3), sampling=Sampling(temperature=0.5))):
                    pass
            assert refused.value.field == "temperature"


async def test_unload_ends_a_lane_at_a_unit_boundary(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("generate")
        other = await lab.load("embed", name="other")
        pid = lane.health().workers[0].pid or 0
        with trio.fail_after(BOUND_S):
            async with lane.generate(Generation(prompt=text_of(5), max_tokens=5)) as stream:
                assert [delta async for delta in stream]
            await lane.unload()
            assert lane.state == "unloaded"
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            with pytest.raises(LaneUnavailable):
                await answer(lane, text_of(5))
            assert lab.supervisor.lanes == (other,)
            await other.embed([text_of(5)])


async def test_ping_stamps_health_while_idle(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, replace(QUICK, ping_every_s=0.02)) as lab:
        lane = await lab.load("embed")
        await until(lambda: lane.health().workers[0].rss_mb > 0)
        health = lab.supervisor.health()
        assert not health.degraded
        assert health.lanes[0].state == "loaded"
        assert health.lanes[0].workers[0].models_loaded == 1
        with trio.fail_after(BOUND_S):
            await lane.embed([text_of(5)])


async def test_what_the_block_raises_leaves_it_bare(runtime_dir: Path, tmp_path: Path) -> None:
    async def block() -> None:
        async with open_lab(runtime_dir, tmp_path) as lab:
            await lab.load("embed")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await block()
    with trio.CancelScope() as scope:
        async with open_lab(runtime_dir, tmp_path):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


def test_every_public_name_is_there() -> None:
    for name in synapse.__all__:
        assert getattr(synapse, name) is not None
    assert set(synapse.__all__) <= set(dir(synapse))
