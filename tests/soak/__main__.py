"""`python -m tests.soak --minutes N`: a gateway with four real models, clients of all manners, workers killed now and
then. Nothing may grow, nobody may hang, and when the faults end all is as it was.

Judged over the last two thirds of the time, by Theil and Sen's slope: the gateway's memory grows by 8 MiB or 5 % at
most, the workers' by 32 MiB or 5 %, descriptors by two. Exit status 1 where one of these does not hold. A good run of
five minutes or more is written into docs/PROMISES.md.
"""

from __future__ import annotations

import argparse
import datetime
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

import trio

from tests import models
from tests.gateway import Gateway, running, stop
from tests.proof.table import read_measured, renew_page, write_measured
from tests.soak.load import Load
from tests.soak.watch import MIB, Sample, children, growth, is_worker, sample, settled

CONFIG = """
[server]
port = 0

[limits]
crashes_per_key = 1000000
crashes_overall = 1000000
backoff_max_s = 1
boot_s = 60
unit_min_s = 30

[[model]]
path = "{smol}"
name = "smol"

[[model]]
path = "{minilm}"
name = "minilm"

[[model]]
path = "tiny.gguf"

[[model]]
path = "ranker.gguf"
"""
CLIENTS = 16
EVERY_S = 1.0
KILL_EVERY_S = 10.0
QUIET_S = 120.0
COUNTS = ("running", "queued")
WRITTEN_FROM_MINUTES = 5.0


class Soak:
    """One run."""

    def __init__(self, own: Gateway, seed: int) -> None:
        self.own, self.rng = own, random.Random(seed)
        self.load = Load(own.port, seed)
        self.samples: list[Sample] = []
        self.kills = 0

    async def run(self, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            nursery.start_soon(self._kill)
            nursery.start_soon(self.load.run, CLIENTS)
            await trio.sleep(seconds)
            self.load.stop.set()

    async def _watch(self) -> None:
        began = time.monotonic()
        while not self.load.stop.is_set():
            self.samples.append(sample(self.own.process.pid, time.monotonic() - began))
            await trio.sleep(EVERY_S)

    async def _kill(self) -> None:
        while True:
            with trio.move_on_after(KILL_EVERY_S * (0.5 + self.rng.random())):
                await self.load.stop.wait()
                return
            workers = [pid for pid in children(self.own.process.pid) if is_worker(pid)]
            if workers:
                os.kill(self.rng.choice(workers), self.rng.choice([signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT]))
                self.kills += 1

    def problems(self) -> list[str]:
        """What does not hold."""
        rest = settled(self.samples)
        gateway, workers = growth(self.samples, "gateway"), growth(self.samples, "workers")
        descriptors = growth(self.samples, "descriptors")
        mean = sum(one.workers for one in rest) / len(rest)
        found = []
        if gateway > max(8 * MIB, 0.05 * rest[0].gateway):
            found.append(f"the gateway grew by {gateway / MIB:.1f} MiB")
        if workers > max(32 * MIB, 0.05 * mean):
            found.append(f"the workers grew by {workers / MIB:.1f} MiB")
        if descriptors > 2:
            found.append(f"{descriptors:.1f} descriptors more")
        found += [
            f"{self.load.seen[kind]} x {kind}"
            for kind in ("hung", "500", "stream without its end")
            if self.load.seen[kind]
        ]
        return found

    def figure(self, minutes: float) -> str:
        rest = settled(self.samples)
        hours = (rest[-1].at - rest[0].at) / 3600
        return (
            f"{minutes:g} min, {sum(self.load.seen.values())} requests, {self.kills} kills; per hour: gateway "
            f"{growth(self.samples, 'gateway') / MIB / hours:+.1f} MiB of {rest[-1].gateway / MIB:.0f}, workers "
            f"{growth(self.samples, 'workers') / MIB / hours:+.1f} MiB of {rest[-1].workers / MIB:.0f}, descriptors "
            f"{growth(self.samples, 'descriptors') / hours:+.1f} of {rest[-1].descriptors}"
        )


def all_is_well(own: Gateway, before: Sample) -> list[str]:
    """After load and faults: everything is loaded, idle and served, and no descriptor is more than at first."""
    deadline = time.monotonic() + QUIET_S
    while True:
        health = own.get("/health").json()
        after = sample(own.process.pid, 0.0)
        states = {lane["model"]: lane["state"] for lane in health["lanes"]}
        busy = [
            lane["model"]
            for lane in health["lanes"]
            if (lane["detail"]["running"], lane["detail"]["queued"]) != ("0", "0")
        ]
        good = set(states.values()) == {"loaded"} and not busy
        if good and after.descriptors <= before.descriptors and after.processes == before.processes:
            break
        if time.monotonic() > deadline:
            return [f"not as it was: {states}, busy {busy}, {before} before, {after} after"]
        time.sleep(0.2)
    answer = own.post("/v1/embeddings", {"model": "minilm", "input": "still there"})
    return [] if answer.status == 200 else [f"minilm answers {answer.status}"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        models.tiny_llama(directory / "tiny.gguf")
        models.tiny_reranker(directory / "ranker.gguf")
        config = directory / "pumas.toml"
        config.write_text(CONFIG.format(smol=models.smollm2(), minilm=models.minilm_f16_gguf()))
        with running(directory, "--config", str(config)) as own:
            own.get("/health")
            before = sample(own.process.pid, 0.0)
            soak = Soak(own, options.seed)
            trio.run(soak.run, options.minutes * 60)
            problems = soak.problems() + all_is_well(own, before)
            below = children(own.process.pid)
            status = stop(own.process)
            if status != 0:
                problems.append(f"the gateway ended with status {status}")
            problems += [f"process {pid} is left" for pid in below if Path(f"/proc/{pid}").exists()]
            if "Traceback" in own.log():
                problems.append("a traceback in the log: " + own.log().split("Traceback", 1)[1][:2000])
    print("ended:", dict(soak.load.seen))
    for hung in soak.load.hung:
        print("hung:", hung)
    figure = soak.figure(options.minutes)
    print(figure)
    for problem in problems:
        print("PROBLEM:", problem)
    if not problems and options.minutes >= WRITTEN_FROM_MINUTES:
        measured = read_measured()
        measured["soak"] = {"full": f"{figure} ({datetime.date.today().isoformat()})"}
        write_measured(measured)
        renew_page()
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
