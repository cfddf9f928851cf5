"""Generated tokens per second at 1, 4 and 8 streams: the direct loop, our worker, our HTTP, llama-server.

All in one run, in turn, the same GGUF, KV type, OpenMP settings and prompts of ids. Printed are the median of the
rounds' ratios and the ratio of each way's best round: a virtual machine's neighbours slow single rounds by a fifth and
more. Then the memory of the gateway and of a worker beside the engine's own.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from contextlib import ExitStack

import numpy as np
import trio

from synapse import Generation, Lane, Profile, Sampling, open_supervisor
from tests.bench.direct import Direct, Setup
from tests.bench.inputs import PROMPTS
from tests.bench.measure import anonymous_mb, both, memory_mb, rounds
from tests.bench.servers import complete, llama_server, pumas
from tests.models import smollm2

NEW_TOKENS = 64
MODEL = "smol"


async def through_lane(lane: Lane, prompts: list[list[int]]) -> float:
    """Seconds a token through the library."""
    counts: list[int] = []

    async def one(ids: list[int]) -> None:
        request = Generation(prompt=np.array(ids, np.int32), max_tokens=NEW_TOKENS, sampling=Sampling())
        async with lane.generate(request) as stream:
            async for _ in stream:
                pass
            counts.append(stream.n_gen)

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for ids in prompts:
            nursery.start_soon(one, ids)
    return (time.perf_counter() - started) / sum(counts)


async def through_http(url: str, prompts: list[list[int]]) -> float:
    counts: list[int] = []

    async def one(ids: list[int]) -> None:
        counts.append(await complete(url, MODEL, ids, NEW_TOKENS))

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for ids in prompts:
            nursery.start_soon(one, ids)
    return (time.perf_counter() - started) / sum(counts)


_number = itertools.count(1)


def fresh(prompts: list[list[int]]) -> list[list[int]]:
    """The prompts, but with a first token that none had in this run: no way may answer from a cache. (llama-server
    keeps what was asked long ago, in memory beside its slots.)"""
    number = next(_number) % 10_000
    return [[ids[0] + number, *ids[1:]] for ids in prompts]


async def measure(threads: int, each: list[int], count: int) -> None:
    path = smollm2()
    async with open_supervisor() as supervisor:
        lane = await supervisor.load(path, Profile(threads=threads, context=1024))
        every = [ids.tolist() for ids in await supervisor.text.tokenize(lane.file, PROMPTS)]
        with ExitStack() as stack:
            gateway = stack.enter_context(
                pumas({"path": str(path), "name": MODEL, "threads": threads, "context": 1024})
            )
            kv = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0", "--alias", MODEL, "--threads", str(threads))
            other = stack.enter_context(llama_server(path, "--ctx-size", "8192", "--parallel", "8", *kv))
            for streams in each:
                with Direct(Setup(str(path), threads, streams=streams)) as direct:
                    again = count * max(1, len(PROMPTS) // streams)  # short rounds are noisier: a row gets its time
                    taken = await interleaved(direct, lane, gateway.url, other, every[:streams], again)
                per_second = 1 / float(np.median(taken["direct"]))
                print(
                    f"{threads} thread(s), {streams} stream(s), {again} rounds: direct {per_second:.0f} tokens/s; "
                    "relative to it: " + ", ".join(both(taken, name, "direct") for name in taken if name != "direct"),
                    flush=True,
                )


async def interleaved(
    direct: Direct, lane: Lane, ours: str, other: str, prompts: list[list[int]], count: int
) -> dict[str, list[float]]:
    """Seconds a token of each way in each round."""

    def asynchronous(way: Callable[[list[list[int]]], float]) -> Callable[[], float]:
        return lambda: way(fresh(prompts))

    def run() -> dict[str, list[float]]:
        return rounds(
            {
                "direct": asynchronous(lambda ids: direct.run(ids, NEW_TOKENS) / (NEW_TOKENS * len(ids))),
                "worker": asynchronous(lambda ids: trio.from_thread.run(through_lane, lane, ids)),
                "http": asynchronous(lambda ids: trio.from_thread.run(through_http, ours, ids)),
                "llama-server": asynchronous(lambda ids: trio.from_thread.run(through_http, other, ids)),
            },
            count,
        )

    return await trio.to_thread.run_sync(run)


async def memory() -> None:
    """The gateway with two idle lanes; a worker against the engine alone in a process."""
    path = str(smollm2())
    with (
        pumas({"path": path, "name": "a", "context": 1024}, {"path": path, "name": "b", "context": 1024}) as gateway,
        Direct(Setup(path, 1, streams=8)) as direct,
    ):
        direct.run([[1, 2, 3]] * 8, 4)
        async with open_supervisor() as supervisor:
            lane = await supervisor.load(path, Profile(context=1024, threads=1))
            await through_lane(lane, [[1, 2, 3]] * 8)
            pid = lane.health().workers[0].pid
            assert pid is not None
            print(f"memory: the gateway with two idle lanes {memory_mb(gateway.process.pid):.0f} MB")
            over = anonymous_mb(pid) - anonymous_mb(direct.pid)
            print(f"memory: a worker {over:+.0f} MB against the engine in a bare process", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of 8 streams; of fewer, more in the same time")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 4, 8])
    arguments = parser.parse_args()
    for threads in arguments.threads:
        trio.run(measure, threads, arguments.streams, arguments.rounds)
    trio.run(memory)


if __name__ == "__main__":
    main()
