"""Interactive streams beside bulk embedding: time to the first token and gaps between deltas, with and without the job.

Three jobs beside the streams: bulk embedding on another lane of the same machine; long prompts, one after the other, on
the streams' own lane; and bulk embedding on it. A lane of the llama worker has one role, so the last one is what the
scheduler makes of a worker that has both: the real scheduler in virtual time, the worker's costs those of SmolLM2 here.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import trio

from synapse import Generation, Lane, Profile, Sampling, open_supervisor
from synapse.policy.scheduler import (
    BatchUnit,
    BatchWork,
    Completed,
    DecodeUnit,
    GenerateWork,
    Ids,
    Scheduler,
    StartUnit,
)
from synapse.wire.messages import FinishReason, Measured, SequenceProgress
from tests.bench.inputs import LONG, PROMPTS, passage
from tests.models import minilm_f16_gguf, smollm2

STREAMS, NEW_TOKENS = 4, 48
TOKEN_S, STEP_S = 0.0036, 0.024
"""Of the simulated worker: a prompt's or a text's token, a step of all streams; SmolLM2 on two threads."""


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


def simulated(prompts: list[list[int]], passages: list[Ids] | None) -> Times:
    """As `interactive`, of one lane whose worker also embeds, with a bulk job of `passages` again and again or none."""
    scheduler = Scheduler()
    both = Measured(
        context=2048, micro_batch=512, parallel=8, embed_budget=384, decode=True, decode_step_ms=STEP_S * 1e3
    )
    effects = scheduler.worker_ready(0, both, 0.0)
    now, told = 0.0, {}
    works = [
        GenerateWork(prompt=np.array(ids, np.int32), max_tokens=NEW_TOKENS, sampling=Sampling()) for ids in prompts
    ]
    state = dict.fromkeys(works, (0, 0))  # tokens of the prompt that were evaluated, tokens generated
    if passages is not None:
        effects += scheduler.submit(BatchWork(inputs=passages, bulk=True, max_queue=None), now)
        unit = next(effect.unit for effect in effects if isinstance(effect, StartUnit))
        assert isinstance(unit, BatchUnit)  # from its time the scheduler learns how long the next one may be
        scheduler.handed_over(0)
        now = unit.n_tokens * TOKEN_S
        effects = scheduler.unit_done(0, now, elapsed=now)
    began = now
    for work in works:
        effects += scheduler.submit(work, now)
    seats: dict[int, GenerateWork] = {}
    while any(made < NEW_TOKENS for _, made in state.values()):
        unit = next(effect.unit for effect in effects if isinstance(effect, StartUnit))
        scheduler.handed_over(0)
        if isinstance(unit, BatchUnit):
            took = unit.n_tokens * TOKEN_S
            now += took
            effects = scheduler.unit_done(0, now, elapsed=took)
        else:
            assert isinstance(unit, DecodeUnit)
            took, progress = _quantum(unit, seats, state)
            now += took
            for one in progress:
                told.setdefault(seats[one.seq], []).extend([now] if one.ids else [])
            steps = unit.max_steps
            effects = scheduler.unit_done(0, now, elapsed=took, progress=progress, steps=steps, elapsed_ms=took * 1e3)
        if passages is not None and any(isinstance(e, Completed) and isinstance(e.work, BatchWork) for e in effects):
            effects += scheduler.submit(BatchWork(inputs=passages, bulk=True, max_queue=None), now)
    gaps = np.concatenate([np.diff(times) for times in told.values()])
    return times_of([times[0] - began for times in told.values()], gaps.tolist())


def _quantum(
    unit: DecodeUnit, seats: dict[int, GenerateWork], state: dict[GenerateWork, tuple[int, int]]
) -> tuple[float, list[SequenceProgress]]:
    """What the worker does with a quantum: its seconds and what comes of it."""
    seats.update({start.seat: start.work for start in unit.start})
    moving = [*unit.continue_, *(start.seat for start in unit.start)]
    left = int(unit.target_ms / 1e3 / TOKEN_S)
    took = STEP_S * unit.max_steps if any(state[seats[seat]][1] for seat in moving) else 0.0
    progress = []
    for seat in moving:
        work = seats[seat]
        evaluated, made = state[work]
        fresh: list[int] = []
        if evaluated < len(work.prompt):
            n = min(left, len(work.prompt) - evaluated)
            evaluated, left, took = evaluated + n, left - n, took + n * TOKEN_S
            fresh = [1] if evaluated == len(work.prompt) else []
        else:
            fresh = [1] * min(unit.max_steps, NEW_TOKENS - made)
        made += len(fresh)
        state[work] = evaluated, made
        end: FinishReason | None = "length" if made == NEW_TOKENS else None
        progress.append(SequenceProgress(seq=seat, n_prompt_done=evaluated, ids=fresh, n_gen=made, finish_reason=end))
    return took, progress


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
            report(name, *(statistics.median(column) for column in zip(*found, strict=True)))
        report("simulated, alone", *simulated(prompts, None))
        report("simulated, bulk embedding on it", *simulated(prompts, passages))


def report(name: str, *times: float) -> None:
    first, gap, slow, longest = (seconds * 1e3 for seconds in times)
    print(
        f"{STREAMS} streams, {name}: first token {first:.0f} ms; gap {gap:.0f} ms, 95 % below {slow:.0f} ms, "
        f"longest {longest:.0f} ms",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    trio.run(run, parser.parse_args().rounds)


if __name__ == "__main__":
    main()
