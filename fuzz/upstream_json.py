"""Finite answers of an upstream server, and what it says of itself."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from fuzz.mutate import damaged
from fuzz.upstream_sse import finished
from pumas.contract.errors import STATUS, ContractError
from pumas.operations import Decide
from pumas.providers.upstream import results
from pumas.providers.upstream.facts import descriptors, served
from pumas.providers.upstream.observe import OBSERVERS, Wanted

INVARIANT = (
    "An answer is a coherent result (as many as were asked for, finite, in order) or a ContractError of unknown "
    "outcome; a server's account of its models is descriptors or a ContractError."
)
_QUESTIONS = {
    "a": {"type": "choice", "instructions": "x", "criteria": {"yes": None, "no": None}},
    "b": {"type": "score", "instructions": "x", "criteria": ["low", "high"]},
    "c": {"type": "noul", "instructions": "x"},
}
_SAMPLES = {
    b"text": b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":3,"completion_tokens":1}}',
    b"event": b'{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}],"usage":null}',
    b"embeddings": b'{"data":[{"index":1,"embedding":[0.5,1]},{"index":0,"embedding":[1,0]}],'
    b'"usage":{"prompt_tokens":2}}',
    b"scores": b'{"results":[{"index":1,"relevance_score":0.5},{"index":0,"relevance_score":-3}],'
    b'"usage":{"input_tokens":2}}',
    b"decisions": b'{"answers":{"a":{"type":"choice","choice":"yes","probabilities":{"yes":0.9,"no":0.1},'
    b'"confidence":0.9},'
    b'"b":{"score":0.5,"legend":["x"],"probabilities":[0.5,0.5],"confidence":1},"c":{"type":"noul","noul":0.2}}}',
    b"reason": b'{"error":{"message":"no such model","code":404}}',
    b"llama-server": b'{"data":[{"id":"m","aliases":["n"],"architecture":{"input_modalities":["text","image"],'
    b'"output_modalities":["text"]},"status":{"value":"loaded"},"meta":{"n_embd":64}}],'
    b'"default_generation_settings":{"n_ctx":512},"modalities":{"vision":true}}',
    b"ollama": b'{"capabilities":["completion","embedding"],"model_info":{"x.context_length":512,'
    b'"x.embedding_length":8},'
    b'"models":[{"name":"m:latest","model":"m:latest","context_length":256}]}',
    b"openai": b'{"data":[{"id":"m","max_model_len":512}]}',
}
_WORDS = (
    *(b"null", b"true", b"[]", b"{}", b'""', b'"x"', b"-1", b"1.5", b"1e999", b"9" * 30, b"9" * 400, b"NaN", b"[[1]]"),
    *(b'["yes"]', b"0", b"2", b'{"x":1}', b'"index":0', b'"\\ud800"', b"\xff", b"[" * 2000, b"1e38", b"-0.0"),
)


class _Answering:
    """An upstream that answers every question with the same body."""

    provider = "upstream"

    def __init__(self, body: bytes) -> None:
        self._body = body
        self.status = 200

    @asynccontextmanager
    async def request(self, *_: object) -> AsyncIterator[_Answering]:
        yield self

    async def read(self, limit: int) -> bytes:
        return self._body


def check(data: bytes) -> None:
    """The first line says what was asked, the rest is the answer."""
    kind, _, body = data.partition(b"\n")
    try:
        _check(kind.decode("latin-1"), body)
    except ContractError as error:
        assert error.code in STATUS
        assert error.outcome == "unknown" or kind in (b"llama-server", b"ollama", b"openai")


def _check(kind: str, body: bytes) -> None:
    match kind:
        case "text":
            said = results.text(body)
            assert said.delta is not None
            assert said.finish_reason is not None
            assert said.usage is not None
        case "event":
            results.event(body.decode("utf-8", "replace"), "upstream")
        case "embeddings":
            vectors = results.embeddings(body, 2).vectors
            assert vectors.shape[0] == 2
            assert vectors.dtype == np.float32
            assert np.isfinite(vectors).all()
            assert np.allclose(np.linalg.norm(vectors.astype(np.float64), axis=1), 1, atol=1e-5)
        case "scores":
            found = results.scores(body, 2).scores
            assert len(found) == 2
            assert np.isfinite(found).all()
        case "decisions":
            answers = results.decisions(body, Decide(state={}, questions=_QUESTIONS)).answers
            assert set(answers) == set(_QUESTIONS)
        case "llama-server" | "ollama" | "openai":
            seen = finished(OBSERVERS[kind](_Answering(body), Wanted("m"), ()))  # type: ignore[index,arg-type]
            assert len(descriptors(kind, seen, None)) == 10  # type: ignore[arg-type]
            served("m", "default", "upstream", kind, seen, seen.load_state, None)  # type: ignore[arg-type]
        case _:
            assert len(results.reason(body)) <= results.MAX_REASON_CHARS
            raise results.refusal("upstream", 500, body)


def generate(rng: random.Random) -> bytes:
    kind = rng.choice(list(_SAMPLES))
    body = _SAMPLES[kind]
    return (
        kind
        + b"\n"
        + (damaged(rng, body, _WORDS, list(_SAMPLES.values())) if rng.random() < 0.5 else _value(rng, body))
    )


def _value(rng: random.Random, body: bytes) -> bytes:
    """One value of the JSON text replaced by another."""
    starts = [at + 1 for at, byte in enumerate(body[:-1]) if byte in b":["]
    at = rng.choice(starts)
    depth, end = 0, at
    while end < len(body) and not (depth == 0 and body[end] in b",}]"):
        depth += (body[end] in b"[{") - (body[end] in b"]}")
        end += 1
    return body[:at] + rng.choice(_WORDS) + body[end:]
