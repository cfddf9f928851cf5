"""The engine driven directly in one process by the low-level API: what every other way is compared with.

The parent talks to it by JSON lines: `Direct` starts the process, `generate` and `embed` return the seconds that the
engine's work took, measured inside the process.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np

from synapse.host.environment import child_environment

Q8_0 = 8


class Setup(msgspec.Struct):
    model: str
    threads: int
    embed: bool = False
    streams: int = 1
    cells: int = 1024
    """KV cells of each stream."""
    budget: int = 384
    """Tokens of one embedding call."""


class Direct:
    """A child process with one model and one context."""

    def __init__(self, setup: Setup) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.direct"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=child_environment(os.environ, {}),
        )
        self.pid = self._process.pid
        self._ask(msgspec.to_builtins(setup))

    def run(self, texts: Sequence[Sequence[int]], n: int = 0) -> float:
        """Seconds for `n` new tokens of each prompt, all in one batch; or for embedding all texts."""
        return float(self._ask({"texts": [list(map(int, ids)) for ids in texts], "n": n}))

    def _ask(self, value: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(value) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline())

    def __enter__(self) -> Direct:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class _Engine:
    """The low-level loop."""

    def __init__(self, setup: Setup) -> None:
        import llama_cpp.llama_cpp as lib

        self.lib, self.setup = lib, setup
        self._quiet = lib.llama_log_callback(lambda level, text, user: None)
        lib.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = lib.llama_model_load_from_file(setup.model.encode(), lib.llama_model_default_params())
        self.n_vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self.model))
        p = lib.llama_context_default_params()
        p.n_threads = p.n_threads_batch = setup.threads
        p.n_batch = p.n_ubatch = 512
        if setup.embed:
            p.n_ctx, p.embeddings, p.pooling_type, p.n_seq_max, p.kv_unified = 512, True, -1, 256, True
        else:
            p.n_ctx, p.n_seq_max, p.n_outputs_max = setup.cells * setup.streams, setup.streams, setup.streams
            p.flash_attn_type, p.type_k, p.type_v, p.kv_unified = 1, Q8_0, Q8_0, False
        self.context = lib.llama_init_from_model(self.model, p)
        self.batch = lib.llama_batch_init(512, 0, 1)

    def _put(self, index: int, token: int, position: int, sequence: int, output: bool) -> None:
        batch = self.batch
        batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
        batch.seq_id[index][0], batch.logits[index] = sequence, output

    def _decode(self, n: int) -> None:
        self.batch.n_tokens = n
        assert self.lib.llama_decode(self.context, self.batch) == 0

    def _best(self, index: int) -> int:
        logits = self.lib.llama_get_logits_ith(self.context, index)
        return int(np.ctypeslib.as_array(logits, (self.n_vocab,)).argmax())

    def generate(self, prompts: list[list[int]], n: int) -> None:
        """Prompts in chunks of the batch, then `n` greedy tokens of each, all in one batch a step."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), False)
        tokens: dict[int, int] = {}
        waiting = [(s, p, token) for s, prompt in enumerate(prompts) for p, token in enumerate(prompt)]
        for start in range(0, len(waiting), 512):
            chunk, ends = waiting[start : start + 512], {}
            for i, (sequence, position, token) in enumerate(chunk):
                last = position == len(prompts[sequence]) - 1
                self._put(i, token, position, sequence, last)
                if last:
                    ends[sequence] = i
            self._decode(len(chunk))
            tokens |= {sequence: self._best(i) for sequence, i in ends.items()}
        for step in range(n - 1):
            for i, (sequence, token) in enumerate(tokens.items()):
                self._put(i, token, len(prompts[sequence]) + step, sequence, True)
            self._decode(len(tokens))
            tokens = {sequence: self._best(i) for i, sequence in enumerate(tokens)}

    def embed(self, texts: list[list[int]]) -> None:
        """Sorted by length, packed to the budget."""
        pending: list[list[int]] = []
        for ids in sorted(texts, key=len):
            if pending and sum(map(len, pending)) + len(ids) > self.setup.budget:
                self._pooled(pending)
                pending = []
            pending.append(ids)
        self._pooled(pending)

    def _pooled(self, texts: list[list[int]]) -> None:
        index = 0
        for sequence, ids in enumerate(texts):
            for position, token in enumerate(ids):
                self._put(index, token, position, sequence, True)
                index += 1
        self._decode(index)
        n = self.lib.llama_model_n_embd(self.model)
        for sequence in range(len(texts)):
            vector = np.ctypeslib.as_array(self.lib.llama_get_embeddings_seq(self.context, sequence), (n,)).copy()
            vector /= np.sqrt(vector @ vector)


def main() -> None:
    lines = iter(sys.stdin.buffer.readline, b"")
    engine = _Engine(msgspec.json.decode(next(lines), type=Setup))
    print("0", flush=True)
    for line in lines:
        asked = msgspec.json.decode(line)
        started = time.perf_counter()
        if engine.setup.embed:
            engine.embed(asked["texts"])
        else:
            engine.generate(asked["texts"], asked["n"])
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
