"""llama-cpp-python's low-level API used the plain way, in a process of its own: what the worker must be equal to."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np


class Question(msgspec.Struct):
    """`greedy`: the prompt's continuation of `n` tokens. `rank`, `embed`: one result for each text."""

    kind: str
    model: str
    texts: list[list[int]]
    n: int = 0
    context: int = 0
    threads: int = 1


def ask(
    kind: str, model: Path, texts: Sequence[Sequence[int]], *, n: int = 0, context: int = 0, threads: int = 1
) -> list[list[float]]:
    """Ask the engine in a child process; one list for each text: ids, or floats."""
    question = Question(kind, str(model), [list(map(int, ids)) for ids in texts], n, context, threads)
    asked = subprocess.run(
        [sys.executable, "-m", "tests.llama.reference"],
        input=msgspec.json.encode(question),
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_WAIT_POLICY": "passive", "GGML_NO_BACKTRACE": "1"},
    )
    return msgspec.json.decode(asked.stdout, type=list[list[float]])


def _answer(question: Question) -> list[list[float]]:
    import llama_cpp.llama_cpp as lib

    quiet = lib.llama_log_callback(lambda level, text, user: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    model = lib.llama_model_load_from_file(question.model.encode(), lib.llama_model_default_params())
    p = lib.llama_context_default_params()
    p.n_threads = p.n_threads_batch = question.threads
    if question.kind == "greedy":
        p.n_ctx, p.n_batch, p.n_ubatch = question.context, 512, 512
        p.flash_attn_type, p.type_k, p.type_v = 1, 8, 8  # the worker's: flash attention, a Q8_0 cache
        return [_greedy(lib, model, p, ids, question.n) for ids in question.texts]
    p.n_ctx = p.n_batch = p.n_ubatch = 512
    p.embeddings = True
    p.pooling_type = 4 if question.kind == "rank" else -1
    return [_pooled(lib, model, p, ids, question.kind) for ids in question.texts]


def _greedy(lib: Any, model: Any, p: Any, ids: list[int], n: int) -> list[float]:
    vocab = lib.llama_model_get_vocab(model)
    context = lib.llama_init_from_model(model, p)
    out: list[float] = []
    pending = ids
    while len(out) < n:
        array = (lib.llama_token * len(pending))(*pending)
        assert lib.llama_decode(context, lib.llama_batch_get_one(array, len(pending))) == 0
        logits = np.ctypeslib.as_array(lib.llama_get_logits_ith(context, -1), (lib.llama_vocab_n_tokens(vocab),))
        token = int(logits.argmax())
        out.append(token)
        if lib.llama_vocab_is_eog(vocab, token):
            break
        pending = [token]
    lib.llama_free(context)
    return out


def _pooled(lib: Any, model: Any, p: Any, ids: list[int], kind: str) -> list[float]:
    context = lib.llama_init_from_model(model, p)
    array = (lib.llama_token * len(ids))(*ids)
    assert lib.llama_encode(context, lib.llama_batch_get_one(array, len(ids))) == 0
    n = 1 if kind == "rank" else lib.llama_model_n_embd(model)
    values = np.ctypeslib.as_array(lib.llama_get_embeddings_seq(context, 0), (n,)).tolist()
    lib.llama_free(context)
    return list(values)


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(_answer(msgspec.json.decode(sys.stdin.buffer.read(), type=Question))))
