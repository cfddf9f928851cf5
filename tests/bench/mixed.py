"""Interactive streams beside bulk embedding: time to the first token and gaps between deltas, with and without the job.

Three jobs beside the streams: bulk embedding on another lane of the same machine; bulk embedding on the streams' own
lane, whose model does both; and long prompts on it, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import trio

from synapse import Generation, Lane, Profile, Sampling, open_supervisor
from tests.bench.inputs import LONG, PROMPTS, passage
from tests.models import minilm_f16_gguf, smollm2

STREAMS, NEW_TOKENS = 4, 128
TEXTS = 4
"""Of one call of the bulk job."""


async def stream(lane: Lane, ids: list[int], firsts: list[float], gaps: list[float]) -> None:
    request = Generation(prompt=np.array(ids, np.int32), max_tokens=NEW_TOKENS, sampling=Sampling())
    started = time.perf_counter()
    async with lane.generate(request) as generation:
        last = None
        async for _ in generation:
            now = time.perf_counter()
            if last is None:
                firsts.append(now - started)
            else:
                gaps.append(now - last)
            last = now


Times = tuple[float, float, float, float]
"""Seconds: median time to the first token; median, 95th percentile and longest of the gaps between deltas."""


def times_of(firsts: list[float], gaps: Sequence[float]) -> Times:
    return statistics.median(firsts), float(np.median(gaps)), float(np.quantile(gaps, 0.95)), float(np.max(gaps))


async def interactive(lane: Lane, prompts: list[list[int]], number: int) -> Times:
    """Of STREAMS streams at once."""
    firsts: list[float] = []
    gaps: list[float] = []
    async with trio.open_nursery() as nursery:
        for ids in prompts:
            nursery.start_soon(stream, lane, [ids[0] + 1 + number, *ids[1:]], firsts, gaps)
    return times_of(firsts, gaps)


async def run(count: int) -> None:
    async with open_supervisor() as supervisor:
        chat = await supervisor.load(smollm2(), Profile(context=2048, pooling="mean"))
        embedder = await supervisor.load(minilm_f16_gguf())
        prompts = [ids.tolist() for ids in await supervisor.text.tokenize(chat.file, PROMPTS[:STREAMS])]
        passages = {lane: await supervisor.text.tokenize(lane.file, LONG[:TEXTS]) for lane in (chat, embedder)}
        (burst,) = await supervisor.text.tokenize(chat.file, [passage(99, 1000)])

        async def embed_for_ever(lane: Lane) -> None:
            nonlocal embedded
            while True:
                await lane.embed(passages[lane], bulk=True, max_queue=None)
                embedded += TEXTS

        async def prompts_for_ever() -> None:
            number = 0
            while True:
                number += 1
                changed = burst.copy()
                changed[0] += number % 500
                request = Generation(prompt=changed, max_tokens=1, sampling=Sampling(), max_queue=None)
                async with chat.generate(request) as generation:
                    async for _ in generation:
                        pass

        jobs = {
            "alone": None,
            "bulk embedding on another lane": lambda: embed_for_ever(embedder),
            "bulk embedding on their own lane": lambda: embed_for_ever(chat),
            "long prompts on their own lane": prompts_for_ever,
        }
        done = 0  # every prompt of the run is another one: none may be answered from a prefix
        for name, job in jobs.items():
            found = []
            done += count
            embedded, began = 0, time.perf_counter()
            async with trio.open_nursery() as nursery:
                if job is not None:
                    nursery.start_soon(job)
                for number in range(done, done + count):
                    found.append(await interactive(chat, prompts, number))
                nursery.cancel_scope.cancel()
            beside = f"; {embedded / (time.perf_counter() - began):.1f} passages/s" if embedded else ""
            first, gap, slow, longest = (statistics.median(column) * 1e3 for column in zip(*found, strict=True))
            print(
                f"{STREAMS} streams, {name}: first token {first:.0f} ms; gap {gap:.0f} ms, 95 % below {slow:.0f} ms, "
                f"longest {longest:.0f} ms{beside}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    trio.run(run, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
