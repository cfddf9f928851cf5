"""Interactive streams beside bulk embedding: time to the first token and gaps between deltas, with and without the job.

A lane serves one model, so the bulk embedding runs on another lane of the same machine; what can crowd the streams' own
lane is other prompts: long ones, one after the other.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import trio

from synapse import Generation, Lane, Profile, Sampling, open_supervisor
from tests.bench.inputs import LONG, PROMPTS, passage
from tests.models import minilm_f16_gguf, smollm2

STREAMS, NEW_TOKENS = 4, 48


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


async def interactive(lane: Lane, prompts: list[list[int]], number: int) -> tuple[float, float, float]:
    """(median seconds to the first token, median gap, 95th percentile of the gaps) of STREAMS streams at once."""
    firsts: list[float] = []
    gaps: list[float] = []
    async with trio.open_nursery() as nursery:
        for ids in prompts:
            nursery.start_soon(stream, lane, [ids[0] + 1 + number, *ids[1:]], firsts, gaps)
    return statistics.median(firsts), statistics.median(gaps), float(np.quantile(gaps, 0.95))


async def run(count: int) -> None:
    async with open_supervisor() as supervisor:
        chat = await supervisor.load(smollm2(), Profile(context=2048))
        embedder = await supervisor.load(minilm_f16_gguf())
        prompts = [ids.tolist() for ids in await supervisor.text.tokenize(chat.file, PROMPTS[:STREAMS])]
        passages = await supervisor.text.tokenize(embedder.file, LONG)
        (burst,) = await supervisor.text.tokenize(chat.file, [passage(99, 1000)])

        async def embed_for_ever() -> None:
            while True:
                await embedder.embed(passages, bulk=True, max_queue=None)

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

        jobs = {"alone": None, "bulk embedding on another lane": embed_for_ever, "long prompts on it": prompts_for_ever}
        done = 0  # every prompt of the run is another one: none may be answered from a prefix
        for name, job in jobs.items():
            found = []
            done += count
            async with trio.open_nursery() as nursery:
                if job is not None:
                    nursery.start_soon(job)
                for number in range(done, done + count):
                    found.append(await interactive(chat, prompts, number))
                nursery.cancel_scope.cancel()
            first, gap, slow = (statistics.median(column) * 1000 for column in zip(*found, strict=True))
            print(f"{STREAMS} streams, {name}: first token {first:.0f} ms, gap {gap:.0f} ms, 95 % below {slow:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    trio.run(run, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
