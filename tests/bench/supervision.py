"""What supervision costs and how fast it is: `python -m tests.bench.supervision [ROUNDS]`. Times in milliseconds."""

from __future__ import annotations

import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import trio

from synapse.errors import EngineCrashed
from synapse.host import RealHost
from synapse.worker import open_worker
from tests.worker.conftest import PATIENT, embed, embed_request, faulty_spec, load, ping
from tests.worker.test_orphans import _MODULE


def show(name: str, seconds: list[float]) -> None:
    ordered = sorted(seconds)
    print(
        f"{name:44} median {statistics.median(ordered) * 1000:9.2f}   max {ordered[-1] * 1000:9.2f}   n {len(ordered)}"
    )


async def boots(host: RealHost, rounds: int) -> None:
    boot, leave = [], []
    for _ in range(rounds):
        began = time.perf_counter()
        async with open_worker(host, faulty_spec(), PATIENT):
            boot.append(time.perf_counter() - began)
            ended = time.perf_counter()
        leave.append(time.perf_counter() - ended)
    show("spawn to HELLO_ACK", boot)
    show("leave (SHUTDOWN, exit, reap)", leave)


async def round_trips(host: RealHost, rounds: int) -> None:
    async with open_worker(host, faulty_spec(), PATIENT) as worker:
        await load(worker, context=str(2**22))
        small, large = [], []
        for _ in range(rounds * 20):
            began = time.perf_counter()
            await ping(worker)
            small.append(time.perf_counter() - began)
        request, raws = embed_request(2**22)
        request.pooling, raws = "cls", [np.zeros(2**22, "<i4")]
        for _ in range(rounds):
            began = time.perf_counter()
            await worker.call(request, raws, timeout_s=60)
            large.append(time.perf_counter() - began)
    show("PING round trip", small)
    show("16 MiB request, engine's own work included", large)


async def overruns(host: RealHost, rounds: int) -> None:
    for how in ("stop", "spin_c", "drip=0.005"):
        late = []
        for _ in range(rounds):
            async with open_worker(host, faulty_spec(f"{how}@EMBED_BATCH"), PATIENT) as worker:
                await load(worker, dims="4096")
                began = time.perf_counter()
                try:
                    await embed(worker, timeout_s=0.1)
                except EngineCrashed:
                    late.append(time.perf_counter() - began - 0.1)
        show(f"typed error after the deadline ({how})", late)


async def deaths(host: RealHost, rounds: int) -> None:
    seen = []
    for _ in range(rounds):
        async with open_worker(host, faulty_spec(), PATIENT) as worker:
            began = time.perf_counter()
            os.kill(worker.pid, 9)
            await worker.died()
            seen.append(time.perf_counter() - began)
    show("SIGKILL of an idle worker until noticed, reaped", seen)


def orphans(directory: Path, rounds: int) -> None:
    script = directory / "module.py"
    script.write_text(_MODULE)
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    for faults in ("slow=3600@EMBED_BATCH", "spin_c@EMBED_BATCH", "stop@EMBED_BATCH"):
        gone = []
        for _ in range(rounds):
            argv = [sys.executable, str(script), str(directory / "run"), faults, "work"]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as module:
                assert module.stdout is not None
                watched = os.pidfd_open(int(module.stdout.readline()))
                module.stdout.readline()
                began = time.perf_counter()
                module.kill()
                select.select([watched], [], [])
                gone.append(time.perf_counter() - began)
                os.close(watched)
        show(f"SIGKILL of the module until no worker ({faults.split('@')[0]})", gone)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory(prefix="sy-") as name:
        with RealHost(Path(name) / "run") as host:
            measures: list[Callable[..., object]] = [boots, round_trips, overruns, deaths]
            for measure in measures:
                trio.run(measure, host, rounds)
        orphans(Path(name), rounds)


if __name__ == "__main__":
    main()
