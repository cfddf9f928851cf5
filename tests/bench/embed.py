"""Passages embedded per second: the direct loop, our worker, our HTTP, llama-server, ONNX int8; in one run, in turn.

32 passages of 100 to 250 tokens and 64 short texts, MiniLM F16, one thread and two. Printed as in generate.py.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import trio
from numpy.typing import NDArray

from synapse import Lane, Profile, open_supervisor
from tests.bench.direct import Direct, Setup
from tests.bench.inputs import LONG, SHORT
from tests.bench.measure import both, rounds
from tests.bench.servers import llama_server, post, pumas
from tests.models import minilm_f16_gguf, minilm_onnx_served

MODEL = "minilm"


async def through_lane(lane: Lane, ids: list[NDArray[np.int32]]) -> float:
    started = time.perf_counter()
    await lane.embed(ids)
    return time.perf_counter() - started


async def through_http(url: str, texts: list[str]) -> float:
    """As the OpenAI client asks: base64."""
    started = time.perf_counter()
    await post(url, b"/v1/embeddings", {"model": MODEL, "input": texts, "encoding_format": "base64"})
    return time.perf_counter() - started


async def measure(threads: int, count: int) -> None:
    path, onnx = minilm_f16_gguf(), minilm_onnx_served()
    async with open_supervisor() as supervisor:
        lane = await supervisor.load(path, Profile(threads=threads))
        with ExitStack() as stack:
            direct = stack.enter_context(Direct(Setup(str(path), threads, embed=True)))
            gateway = stack.enter_context(pumas({"path": str(path), "name": MODEL, "threads": threads}))
            other = stack.enter_context(server(path, threads))
            int8 = await supervisor.load(onnx, Profile(threads=threads, engine="onnx"))
            for name, texts in (("32 passages", LONG), ("64 short texts", SHORT)):
                ids = await supervisor.text.tokenize(lane.file, texts)
                plain = [row.tolist() for row in ids]

                def run(texts: list[str] = texts, ids: list[NDArray[np.int32]] = ids, plain: list[list[int]] = plain):  # type: ignore[no-untyped-def]
                    return rounds(
                        {
                            "direct": lambda: direct.run(plain),
                            "worker": lambda: trio.from_thread.run(through_lane, lane, ids),
                            "http": lambda: trio.from_thread.run(through_http, gateway.url, texts),
                            "llama-server": lambda: trio.from_thread.run(through_http, other, texts),
                            "onnx int8": lambda: trio.from_thread.run(through_lane, int8, ids),
                        },
                        count,
                    )

                taken = await trio.to_thread.run_sync(run)
                per_second = len(texts) / float(np.median(taken["direct"]))
                print(
                    f"{threads} thread(s), {name}: direct {per_second:.0f} texts/s; relative to it: "
                    + ", ".join(both(taken, way, "direct") for way in taken if way != "direct")
                    + "; against llama-server: "
                    + both(taken, "http", "llama-server"),
                    flush=True,
                )


def server(path: Path, threads: int):  # type: ignore[no-untyped-def]
    arguments = ("--embeddings", "--ctx-size", "2048", "--ubatch-size", "2048", "--parallel", "4")
    return llama_server(path, *arguments, "--threads", str(threads), "--alias", MODEL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    arguments = parser.parse_args()
    for threads in arguments.threads:
        trio.run(measure, threads, arguments.rounds)


if __name__ == "__main__":
    main()
