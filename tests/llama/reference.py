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

from synapse.host.environment import child_environment
from synapse.wire.messages import Sampling


class Question(msgspec.Struct):
    """`greedy`: the prompt's continuation of `n` tokens. `rank`, `embed`: one result for each text. `chain`: what the
    engine's own samplers leave of each chain's logits."""

    kind: str
    model: str
    texts: list[list[int]]
    n: int = 0
    context: int = 0
    threads: int = 1
    chains: list[Chain] = []


class Chain(msgspec.Struct):
    """Logits, the tokens before, and what the samplers are to do with them."""

    logits: list[float]
    history: list[int]
    sampling: Sampling


def ask(
    kind: str, model: Path, texts: Sequence[Sequence[int]], *, n: int = 0, context: int = 0, threads: int = 1
) -> list[list[float]]:
    """Ask the engine in a child process; one list for each text: ids, or floats."""
    return _ask(Question(kind, str(model), [list(map(int, ids)) for ids in texts], n, context, threads))


def chain(chains: Sequence[Chain]) -> list[tuple[list[int], list[float]]]:
    """What the engine's samplers leave of each: ids, most likely first, and probabilities."""
    answers = _ask(Question("chain", "", [], chains=list(chains)))
    return [([int(i) for i in ids], values) for ids, values in zip(answers[::2], answers[1::2], strict=True)]


def _ask(question: Question) -> list[list[float]]:
    asked = subprocess.run(
        [sys.executable, "-m", "tests.llama.reference"],
        input=msgspec.json.encode(question),
        stdout=subprocess.PIPE,
        check=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env=child_environment(os.environ, {}),
    )
    return msgspec.json.decode(asked.stdout, type=list[list[float]])


def _answer(question: Question) -> list[list[float]]:
    import llama_cpp.llama_cpp as lib

    quiet = lib.llama_log_callback(lambda level, text, user: None)
    lib.llama_log_set(quiet, ctypes.c_void_p(0))
    if question.kind == "chain":
        return [part for chain in question.chains for part in _sample(lib, chain)]
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


def _sample(lib: Any, chain: Chain) -> tuple[list[float], list[float]]:
    o, n = chain.sampling, len(chain.logits)
    samplers = [
        lib.llama_sampler_init_penalties(n, o.repeat_last_n, o.repeat_penalty, o.frequency_penalty, o.presence_penalty),
        lib.llama_sampler_init_top_k(o.top_k),
        lib.llama_sampler_init_top_p(o.top_p, 1),
        lib.llama_sampler_init_min_p(o.min_p, 1),
        lib.llama_sampler_init_temp(o.temperature),
        lib.llama_sampler_init_dist(1),  # computes the probabilities
    ]
    whole = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(whole, sampler)
    for token in chain.history:
        lib.llama_sampler_accept(whole, token)
    data = (lib.llama_token_data * n)(*((i, value, 0.0) for i, value in enumerate(chain.logits)))
    array = lib.llama_token_data_array(data=data, size=n, selected=-1, sorted=False)
    lib.llama_sampler_apply(whole, ctypes.byref(array))
    left = sorted(((array.data[i].p, array.data[i].id) for i in range(array.size)), reverse=True)
    lib.llama_sampler_free(whole)
    return [float(token) for _, token in left], [p for p, _ in left]


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
