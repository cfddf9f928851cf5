"""A worker that behaves: greeted, asked, answered, stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import trio

from synapse.errors import EngineRefused, LocalProtocolError, SetupError
from synapse.host import RealHost, python_worker
from synapse.limits import Limits
from synapse.wire import messages as m
from synapse.worker import Worker, open_worker
from tests.worker.conftest import PATIENT, OpenFaulty, embed, faulty_spec, load, ping
from worker_bin.faulty.arithmetic import score, token, vector


async def test_it_says_who_it_is(faulty: OpenFaulty) -> None:
    async with faulty() as worker:
        assert worker.hello.engine.name == "faulty"
        assert worker.hello.pid == worker.pid
        assert worker.worker_id == "w1"
        assert os.getpgid(worker.pid) == os.getsid(worker.pid) == worker.pid


async def test_results_are_functions_of_the_ids(faulty: OpenFaulty) -> None:
    async with faulty() as worker:
        loaded = await load(worker, dims="16")
        assert loaded.dims == 16
        vectors = await embed(worker, 3, 5)
        assert np.allclose(vectors, [vector([0, 1, 2], 16), vector([3, 4, 5, 6, 7], 16)], atol=1e-6)
        rerank = m.Rerank(
            req_id="r", model_ref=loaded.model_ref, query_n_tokens=1, candidates=[m.Candidate(1), m.Candidate(2)]
        )
        _, scores = await worker.call(rerank, [np.array([1, 2, 3, 4], "<i4")], timeout_s=60)
        assert np.allclose(np.frombuffer(scores, "<f4"), [score([1], [2]), score([1], [3, 4])])
        generate = m.Generate(req_id="g", model_ref=loaded.model_ref, max_tokens=5)
        text, _ = await worker.call(generate, [np.array([1, 2], "<i4")], timeout_s=60)
        assert isinstance(text, m.Text)
        assert text.text == "".join(chr(token([1, 2], 0, at)) for at in range(5))
        assert (text.n_prompt, text.n_gen, text.finish_reason) == (2, 5, "length")
        pong = await ping(worker)
        assert pong.models_loaded == 1
        assert pong.rss_mb > 5
        unloaded, _ = await worker.call(m.Unload(req_id="u", model_ref=loaded.model_ref), timeout_s=60)
        assert isinstance(unloaded, m.Unloaded)


async def test_a_refusal_costs_no_crash(faulty: OpenFaulty) -> None:
    async with faulty() as worker:
        with pytest.raises(EngineRefused) as refused:
            await embed(worker)
        assert refused.value.code == "model_not_loaded"
        await load(worker)
        assert len(await embed(worker)) == 1
        assert worker.crash is None


async def test_a_nan_of_the_engine_is_its_own_refusal(faulty: OpenFaulty) -> None:
    """The worker looks before it sends (W5): the wrong result costs a request, not a process."""
    async with faulty() as worker:
        await load(worker, nan="1")
        with pytest.raises(EngineRefused) as refused:
            await embed(worker)
        assert refused.value.code == "engine_failed"
        await ping(worker)


async def test_the_line_of_admission(faulty: OpenFaulty) -> None:
    """on_handover is called once, before the first byte, and not for what is never sent (C3)."""
    handed: list[str] = []
    async with faulty() as worker:
        await worker.call(m.Ping(req_id="1"), timeout_s=60, on_handover=lambda: handed.append("ping"))
        assert handed == ["ping"]
        with pytest.raises(LocalProtocolError):
            await worker.call(
                m.Generate(req_id="1", model_ref="m", max_tokens=1),
                timeout_s=60,
                on_handover=lambda: handed.append("no"),
            )
        with trio.CancelScope() as scope:
            scope.cancel()
            await worker.call(m.Ping(req_id="2"), timeout_s=60, on_handover=lambda: handed.append("no"))
        assert handed == ["ping"]
        await ping(worker)


async def test_one_request_at_a_time(faulty: OpenFaulty) -> None:
    async with faulty("hang@PING") as worker, trio.open_nursery() as nursery:
        started = trio.Event()
        nursery.start_soon(lambda: worker.call(m.Ping(req_id="1"), timeout_s=60, on_handover=started.set))
        await started.wait()
        with pytest.raises(LocalProtocolError):
            await ping(worker)
        nursery.cancel_scope.cancel()


async def test_a_large_round_trip(faulty: OpenFaulty) -> None:
    """16 MiB in each direction, whole."""
    async with faulty() as worker:
        await load(worker, context=str(2**22))
        ids = np.arange(2**22, dtype="<i4") % 256
        request = m.EmbedBatch(
            req_id="e", model_ref="faulty-00000000", pooling="cls", normalize=True, items=[m.EmbedItem("a", 2**22)]
        )
        _, vectors = await worker.call(request, [ids], timeout_s=60)
        assert np.allclose(np.frombuffer(vectors, "<f4"), vector(ids.tolist(), 8))
        file = m.ModelFile(path="", digest="", cache_dir="")
        tokenize = m.Tokenize(req_id="t", model=file, lengths=[2**22], add_special=False, parse_special=False)
        reply, got = await worker.call(tokenize, [ids.astype("u1")], timeout_s=60)
        assert isinstance(reply, m.Tokenized)
        assert np.array_equal(np.frombuffer(got, "<i4"), ids)


async def test_the_blocks_own_exception_comes_out_bare(faulty: OpenFaulty) -> None:
    """No ExceptionGroup of ours around it, whatever else happens at the same time."""
    with pytest.raises(KeyError, match="mine"):
        async with faulty():
            raise KeyError("mine")


async def test_shutdown_is_asked_for_first(faulty: OpenFaulty) -> None:
    async with faulty("print=bye@SHUTDOWN") as worker:
        process = worker._process
    assert await process.wait() == 0
    assert "bye" in await process.log_tail()


@pytest.mark.parametrize(
    ("faults", "grace_s", "status"),
    [
        ("hang@SHUTDOWN", 60.0, -signal.SIGTERM),
        ("ignore_sigterm@ready,hang@SHUTDOWN", 0.1, -signal.SIGKILL),
        ("stop@SHUTDOWN", 0.1, -signal.SIGKILL),
    ],
)
async def test_the_kill_ladder(faulty: OpenFaulty, faults: str, grace_s: float, status: int) -> None:
    """SHUTDOWN, SIGTERM, SIGKILL: each step for the one that ignored the step before (W8)."""
    limits = Limits(boot_s=60.0, shutdown_grace_s=0.1, terminate_grace_s=grace_s)
    async with faulty(faults, limits) as worker:
        await ping(worker)
        process = worker._process
    assert await process.wait() == status


async def test_leaving_while_cancelled_still_leaves_nothing(faulty: OpenFaulty) -> None:
    with trio.CancelScope() as scope:
        async with faulty() as worker:
            process = worker._process
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert await process.wait() == 0


async def test_cancelling_a_call_kills_the_worker(faulty: OpenFaulty) -> None:
    """Its state is unknown, so there is none."""
    async with faulty("hang@PING") as worker:
        with trio.CancelScope() as scope:
            await worker.call(m.Ping(req_id="1"), timeout_s=60, on_handover=scope.cancel)
        assert scope.cancelled_caught
        crash = await worker.died()
        assert (crash.stage, crash.exit_status) == ("request", -9)


async def test_cancelling_a_boot_leaves_nothing(host: RealHost) -> None:
    async with trio.open_nursery() as nursery:

        async def boot() -> None:
            async with open_worker(host, faulty_spec("hang@boot"), PATIENT):
                raise AssertionError("never ready")

        nursery.start_soon(boot)
        await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()


async def test_a_missing_program_is_a_setup_error(host: RealHost) -> None:
    with pytest.raises(SetupError, match="no-such-program"):
        async with open_worker(host, faulty_spec(argv=["/no-such-program"]), PATIENT):
            raise AssertionError("never ready")


async def test_two_workers_side_by_side(host: RealHost) -> None:
    async def one(worker_id: str, found: list[Worker]) -> None:
        async with open_worker(host, faulty_spec(worker_id=worker_id), PATIENT) as worker:
            await ping(worker)
            found.append(worker)

    found: list[Worker] = []
    async with trio.open_nursery() as nursery:
        for worker_id in ("a", "b"):
            nursery.start_soon(one, worker_id, found)
    assert len({worker.pid for worker in found}) == 2


def test_a_worker_never_imports_an_async_library() -> None:
    """Start-up time and safety: trio alone would cost a third of a second."""
    code = "import worker_bin.faulty.__main__, sys; print({'trio','pumas','numpy'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_help_lists_every_switch() -> None:
    from worker_bin.faulty.faults import ACTS, LIES

    done = subprocess.run([*python_worker("faulty"), "--help"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ACTS | LIES)


async def test_a_wrong_switch_is_named(faulty: OpenFaulty) -> None:
    from synapse.errors import EngineCrashed

    with pytest.raises(EngineCrashed) as crashed:
        async with faulty("fly@LOAD"):
            raise AssertionError("never ready")
    assert (crashed.value.stage, crashed.value.exit_status) == ("spawn", 2)
    assert "no such fault: 'fly@LOAD'" in crashed.value.log_tail
