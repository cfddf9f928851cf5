"""Workers that die, hang or refuse: who fails, who waits, what is served next, what the crash budget says."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio

from synapse import (
    EngineCrashed,
    EngineRefused,
    Generation,
    InvalidInput,
    LaneUnavailable,
    OutcomeUnknown,
    Quarantined,
    SetupError,
    SynapseError,
)
from synapse.policy.budget import key_of
from synapse.quarantine import QuarantineStore
from tests.lane.lab import (
    BOUND_S,
    QUICK,
    answer,
    expected_text,
    expected_vectors,
    nothing_left,
    open_lab,
    text_of,
    until,
)

PATIENT = replace(QUICK, crashes_per_key=100)
"""No quarantine: for tests of what happens before."""


async def end_of(call: Callable[[], Awaitable[object]]) -> str | SynapseError:
    """`served`, or the error that the call ended with."""
    try:
        await call()
    except SynapseError as error:
        return error
    return "served"


async def test_a_crash_fails_its_unit_and_nobody_else(runtime_dir: Path, tmp_path: Path) -> None:
    """With parallel 1 a unit is one request (D5): exactly one fails, the queued ones wait out the restart (D4)."""
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = await lab.load("embed", "abort@EMBED_BATCH#2", parallel=1)
        ends: list[str | SynapseError] = []

        async def caller() -> None:
            ends.append(await end_of(lambda: lane.embed([text_of(3)], max_queue=None)))

        with trio.fail_after(BOUND_S):
            await lane.embed([text_of(3)])
            async with trio.open_nursery() as nursery:
                for _ in range(2):
                    nursery.start_soon(caller)
        assert sorted(end for end in ends if isinstance(end, str)) == ["served"]
        (error,) = (end for end in ends if not isinstance(end, str))
        assert isinstance(error, EngineCrashed)
        assert error.stage == "request"
        assert error.exit_status == -signal.SIGABRT
        assert "GGML_ASSERT" in error.log_tail
        assert nothing_left(lane)
        assert lane.health().crashes == 1


async def test_a_hang_is_ended_at_the_units_deadline(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = await lab.load("embed", "spin_c@EMBED_BATCH#2")
        with trio.fail_after(BOUND_S):
            await lane.embed([text_of(3)])
            error = await end_of(lambda: lane.embed([text_of(3)]))
            assert isinstance(error, EngineCrashed)
            assert (error.stage, error.exit_status) == ("timeout", -signal.SIGKILL)
            np.testing.assert_allclose(await lane.embed([text_of(3)]), expected_vectors([text_of(3)]), atol=1e-6)


async def test_a_worker_killed_in_mid_quantum(runtime_dir: Path, tmp_path: Path) -> None:
    """Its sequences fail, running and held alike; what was queued is served by the next worker; nothing is replayed."""
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = lab.start(lab.model(role="generate", step_ms=5), parallel=2)
        with trio.fail_after(BOUND_S):
            await lane.ready()
            ends: list[str | SynapseError] = []
            texts: list[str] = []

            async def stream(number: int) -> None:
                async def call() -> None:
                    request = Generation(prompt=text_of(10, number), max_tokens=450, max_queue=None)
                    async with lane.generate(request) as stream:
                        async for delta in stream:
                            texts[number] += delta.text

                texts.append("")
                ends.append(await end_of(call))

            async with trio.open_nursery() as nursery:
                for number in range(2):
                    nursery.start_soon(stream, number)
                    await trio.testing.wait_all_tasks_blocked()
                await until(lambda: all(len(text) > 3 for text in texts))
                nursery.start_soon(stream, 2)
                await trio.testing.wait_all_tasks_blocked()
                os.kill(lane.health().workers[0].pid or 0, signal.SIGKILL)
            errors = [end for end in ends if isinstance(end, SynapseError)]
            assert len(errors) == 2
            assert all(isinstance(error, EngineCrashed) and error.stage in ("request", "idle") for error in errors)
            assert all(expected_text(text_of(10, number), 450).startswith(texts[number]) for number in range(2))
            assert texts[2] == expected_text(text_of(10, 2), 450)
        assert nothing_left(lane)


async def test_a_death_while_idle_is_noticed_and_costs_no_request(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = await lab.load("embed")
        before = lane.health().workers[0].pid or 0
        with trio.fail_after(BOUND_S):
            os.kill(before, signal.SIGKILL)
            await until(lambda: lane.health().crashes == 1)
            await lane.embed([text_of(3)], max_queue=None)
            assert lane.health().workers[0].pid not in (before, None)
            assert lane.state == "loaded"


async def test_quarantine_at_exactly_the_third_crash_and_only_there(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("embed", "abort@EMBED_BATCH")
        same_model = await lab.load("embed", parallel=4)
        with trio.fail_after(BOUND_S):
            for _ in range(2):
                assert isinstance(await end_of(lambda: lane.embed([text_of(3)])), EngineCrashed)
                assert lane.state == "loaded"
            async with trio.open_nursery() as nursery:
                third: list[str | SynapseError] = []

                async def caller(length: int) -> None:
                    third.append(await end_of(lambda: lane.embed([text_of(length)], max_queue=None)))

                for length in (500, 501):  # two units: one crashes, one is queued
                    nursery.start_soon(caller, length)
            assert sorted(type(end).__name__ for end in third) == ["EngineCrashed", "Quarantined"]
            assert lane.state == "quarantined"
            assert "after 3 crashes" in (lane.error or "")
            with pytest.raises(Quarantined) as refused:
                await lane.embed([text_of(3)])
            assert refused.value.crashes == 3
            assert lane.health().workers[0].pid is None
            await same_model.embed([text_of(3)])

            again = lab.start(lane.path, "abort@EMBED_BATCH")
            with pytest.raises(Quarantined):
                await again.ready()

            await lane.probe()
            assert lane.state == "loaded"
            assert isinstance(await end_of(lambda: lane.embed([text_of(3)])), EngineCrashed)
            assert lane.state == "loaded", "its budget started anew"


async def test_a_worker_that_dies_at_every_start_is_spawned_three_times(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        journal = tmp_path / "journal"
        script = f"import os; os.write(os.open({str(journal)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), b'x')"
        lane = lab.start(
            lab.model(role="embed"), argv=["/bin/sh", "-c", f"exec {sys.executable} -c {shlex.quote(script)}", "sh"]
        )
        with trio.fail_after(BOUND_S):
            with pytest.raises(Quarantined):
                await lane.ready()
        assert journal.read_bytes() == b"xxx"


async def test_a_worker_that_knows_decode_and_refuses_it_empty_crashed(runtime_dir: Path, tmp_path: Path) -> None:
    """A passing failure must not make it an old worker, which cannot stream, for the rest of its life (G5)."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="generate"), "refuse@DECODE#1")
        with trio.fail_after(BOUND_S):
            with pytest.raises(Quarantined, match="stage load"):
                await lane.ready()
        assert lane.measured is None


async def test_quarantine_survives_the_module(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="embed"), "exit=3@LOAD")
        with trio.fail_after(BOUND_S), pytest.raises(Quarantined):
            await lane.ready()
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="embed"))
        with trio.fail_after(BOUND_S):
            with pytest.raises(Quarantined) as refused:
                await lane.ready()
            assert refused.value.crashes == 3
            assert "stage load" in str(refused.value)
            assert lane.health().workers[0].pid is None, "nobody was started"
            await lane.probe()
            await lane.embed([text_of(3)])
    async with open_lab(runtime_dir, tmp_path) as lab:
        await lab.load("embed")


async def test_an_unreadable_record_quarantines_its_own_key(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = await lab.load("embed")
        assert lane.info is not None
        key = key_of(lane.info.digest, lane.runtime_config)
    store = QuarantineStore(tmp_path / "state")
    store.save(key, 3, "test")
    record = store.path(key)
    record.write_bytes(record.read_bytes()[:-5])
    async with open_lab(runtime_dir, tmp_path) as lab:
        with trio.fail_after(BOUND_S):
            with pytest.raises(Quarantined, match="cannot be read"):
                await lab.start(lab.model(role="embed")).ready()
            other = await lab.load("embed", name="other")
            await other.embed([text_of(3)])


@pytest.mark.parametrize("lie", ["nan", "dims_lie", "short_raw", "wrong_req_id", "wrong_type", "garbage", "half"])
async def test_a_reply_that_cannot_be_trusted_is_a_crash(runtime_dir: Path, tmp_path: Path, lie: str) -> None:
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = await lab.load("embed", f"{lie}@EMBED_BATCH#1")
        with trio.fail_after(BOUND_S):
            error = await end_of(lambda: lane.embed([text_of(3)]))
        assert isinstance(error, EngineCrashed)
        assert error.stage in ("protocol", "request")


async def test_an_err_costs_no_crash(runtime_dir: Path, tmp_path: Path) -> None:
    """A worker's ERR after the hand-over is of unknown outcome (D4); the worker goes on."""
    async with open_lab(runtime_dir, tmp_path) as lab:
        lane = lab.start(lab.model(role="embed", nan="1"))
        with trio.fail_after(BOUND_S):
            await lane.ready()
            pid = lane.health().workers[0].pid
            error = await end_of(lambda: lane.embed([text_of(3)]))
            assert isinstance(error, EngineRefused)
            assert isinstance(error, OutcomeUnknown)
            assert error.code == "engine_failed"
            assert (lane.health().crashes, lane.health().workers[0].pid) == (0, pid)


async def test_what_cannot_be_loaded_fails_without_a_crash(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path) as lab:
        bad = tmp_path / "bad.gguf"
        bad.write_bytes(b"no model")
        with trio.fail_after(BOUND_S):
            with pytest.raises(InvalidInput):
                await lab.supervisor.load(bad)
            with pytest.raises((InvalidInput, SetupError)):
                await lab.supervisor.load(tmp_path / "missing.gguf")
            lane = lab.start(lab.model(role="embed"), argv=["/nowhere/worker"])
            with pytest.raises((SetupError, LaneUnavailable)):
                await lane.ready()
        assert lane.state in ("failed", "quarantined")


async def test_other_workers_of_a_lane_go_on(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lane = await lab.load("embed", workers=2, parallel=1)
        with trio.fail_after(BOUND_S):
            await until(lambda: all(worker.pid is not None for worker in lane.health().workers))
            os.kill(lane.health().workers[0].pid or 0, signal.SIGSTOP)
            ends: list[str | SynapseError] = []

            async def caller() -> None:
                ends.append(await end_of(lambda: lane.embed([text_of(3)], max_queue=None)))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(caller)
        assert ends.count("served") >= 19


async def test_many_crashes_degrade_and_refuse_nothing(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, replace(QUICK, crashes_overall=3, crashes_per_key=2)) as lab:
        with trio.fail_after(BOUND_S):
            for name in ("one", "two"):
                lane = lab.start(lab.model(name, role="embed"), "exit=1@LOAD")
                with pytest.raises(Quarantined):
                    await lane.ready()
            assert lab.supervisor.health().degraded
            good = await lab.load("embed", name="good")
            await good.embed([text_of(3)])


async def test_two_faults_at_once_reach_callers_as_plain_errors(runtime_dir: Path, tmp_path: Path) -> None:
    async with open_lab(runtime_dir, tmp_path, PATIENT) as lab:
        lanes = [await lab.load("generate", "segv@DECODE#3", name=name) for name in ("one", "two")]
        with trio.fail_after(BOUND_S):
            ends: list[str | SynapseError] = []

            async def caller(lane: object) -> None:
                ends.append(await end_of(lambda: answer(lane, text_of(3), 400)))  # type: ignore[arg-type]

            async with trio.open_nursery() as nursery:
                for lane in lanes:
                    nursery.start_soon(caller, lane)
        assert [type(end) for end in ends] == [EngineCrashed, EngineCrashed]


async def test_the_module_shuts_down_around_a_hang(runtime_dir: Path, tmp_path: Path) -> None:
    """Callers are answered, the process is gone (the leak fixture looks)."""
    ends: list[str | SynapseError] = []
    async with trio.open_nursery() as nursery:
        with trio.fail_after(BOUND_S):
            async with open_lab(runtime_dir, tmp_path) as lab:
                lane = await lab.load("embed", "stop@EMBED_BATCH", parallel=1)

                async def caller() -> None:
                    ends.append(await end_of(lambda: lane.embed([text_of(3)], max_queue=None)))

                for _ in range(2):
                    nursery.start_soon(caller)
                await until(lambda: lane.scheduler.counts().units == 1)
    assert sorted(type(end).__name__ for end in ends) == ["LaneUnavailable", "OutcomeUnknown"]
