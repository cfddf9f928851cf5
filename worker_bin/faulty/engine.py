"""A deterministic engine without a model: its results are functions of the ids alone, so that a test can compute them.

LOAD needs no file; where `artifact_path` names one, its digest is verified and its `name=value` words are settings, as
runtime_config's are: role, dims, context, micro_batch, parallel, step_ms (time of one decode step), eos_after, nan (the
engine computes one), decode (`no`: an old worker that does not know DECODE).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from synapse.wire import messages as m
from synapse.wire.messages import EngineInfo
from worker_bin import harden
from worker_bin.engine import Buffer, Handler, Refused
from worker_bin.faulty import decode, text
from worker_bin.faulty.arithmetic import score, token, vector
from worker_bin.faulty.faults import Plan


class FaultyEngine:
    """`worker_bin.engine.Engine`."""

    def __init__(self, plan: Plan) -> None:
        self.info = EngineInfo("faulty", "1", {"kind": "deterministic"})
        self._plan = plan
        self._settings: dict[str, str] = {}
        self._model_ref: str | None = None
        self._sequences = decode.Sequences({})
        self.handlers: Mapping[type, Handler] = {
            m.Load: self._load,
            m.EmbedBatch: self._embed,
            m.Rerank: self._rerank,
            m.Generate: self._generate,
            m.Decode: self._decode,
            m.Unload: self._unload,
            m.Ping: self._ping,
            m.Ingest: text.ingest,
            m.Tokenize: text.tokenize,
            m.Render: text.render,
            m.CheckGrammar: text.check_grammar,
        }

    def _load(self, request: m.Load, raw: memoryview) -> tuple[m.Loaded, None]:
        started = time.perf_counter()
        settings: dict[str, str] = {}
        if Path(request.artifact_path).is_file():
            if text.digest_of(request.artifact_path) != request.artifact_digest:
                raise Refused("artifact_invalid", "the file has another digest")
            settings |= text.read_settings(request.artifact_path)
        settings |= request.runtime_config
        self._plan.add(settings.get("faults", ""))
        self._settings, self._model_ref = settings, "faulty-" + request.artifact_digest[-8:]
        self._sequences = decode.Sequences(settings)
        elapsed_ms = (time.perf_counter() - started) * 1000
        reply = m.Loaded(
            req_id="", model_ref=self._model_ref, dims=self._dims, cold_load_ms=elapsed_ms, measured=self._measured()
        )
        return reply, None

    def _measured(self) -> m.Measured:
        role, embeds = self._settings.get("role", "generate"), "embeds" in self._settings
        return msgspec.convert(
            {
                "architecture": "faulty",
                "role": role,
                "embeds": embeds,
                "context": self._context,
                "micro_batch": int(self._settings.get("micro_batch", "512")),
                "vocabulary": text.VOCABULARY,
                "pooling": "mean" if role == "embed" or embeds else None,
                "ranking_head": role == "rerank",
                "parallel": self._sequences.parallel,
                "decode": self._knows_decode,
                "decode_step_ms": float(self._settings.get("step_ms", "0.01")),
                "embed_budget": int(self._settings.get("micro_batch", "512")),
                "deterministic": True,
                "reuse_equal": True,
                "threads_equal": True,
                "add_bos": True,
                "sandbox": dict(harden.report),
            },
            m.Measured,
        )

    @property
    def _knows_decode(self) -> bool:
        return self._settings.get("decode", "yes") != "no"

    @property
    def _dims(self) -> int:
        return int(self._settings.get("dims", "8"))

    @property
    def _context(self) -> int:
        return int(self._settings.get("context", "512"))

    def _check(self, model_ref: str, ids: Sequence[int], longest: int) -> None:
        if model_ref != self._model_ref:
            raise Refused("model_not_loaded", f"{model_ref!r} is not loaded")
        if any(not 0 <= token_id < text.VOCABULARY for token_id in ids):
            raise Refused("invalid_request", "a token id is out of range")
        if longest > self._context:
            raise Refused("invalid_request", f"{longest} tokens are over the context of {self._context}")

    def _embed(self, request: m.EmbedBatch, raw: memoryview) -> tuple[m.Vectors, Buffer]:
        ids = _ids(raw)
        self._check(request.model_ref, ids, max((item.n_tokens for item in request.items), default=0))
        out, at = array("f"), 0
        for item in request.items:
            out.extend(vector(ids[at : at + item.n_tokens], self._dims))
            at += item.n_tokens
        if out and "nan" in self._settings:
            out[0] = float("nan")
        return m.Vectors(req_id="", dims=self._dims, n=len(request.items)), out.tobytes()

    def _rerank(self, request: m.Rerank, raw: memoryview) -> tuple[m.Scores, Buffer]:
        ids = _ids(raw)
        query, at = ids[: request.query_n_tokens], request.query_n_tokens
        longest = max((candidate.n_tokens for candidate in request.candidates), default=0)
        self._check(request.model_ref, ids, len(query) + longest)
        out = array("f")
        for candidate in request.candidates:
            out.append(score(query, ids[at : at + candidate.n_tokens]))
            at += candidate.n_tokens
        return m.Scores(req_id=""), out.tobytes()

    def _generate(self, request: m.Generate, raw: memoryview) -> tuple[m.Text, None]:
        ids = _ids(raw)
        self._check(request.model_ref, ids, len(ids))
        if request.grammar:
            raise Refused("unsupported", "no grammars here")
        wanted = min(request.max_tokens, self._context - len(ids))
        made = "".join(chr(token(ids, 0, at)) for at in range(wanted))
        reply = m.Text(req_id="", text=made, n_prompt=len(ids), n_gen=wanted, finish_reason="length")
        return reply, None

    def _decode(self, request: m.Decode, raw: memoryview) -> tuple[m.Decoded, None]:
        if not self._knows_decode:
            raise Refused("unknown_type", "decode=no: an old worker")
        ids = _ids(raw)
        self._check(request.model_ref, ids, 0)
        return self._sequences.quantum(request, ids), None

    def _unload(self, request: m.Unload, raw: memoryview) -> tuple[m.Unloaded, None]:
        self._check(request.model_ref, (), 0)
        self._model_ref = None
        return m.Unloaded(req_id=""), None

    def _ping(self, request: m.Ping, raw: memoryview) -> tuple[m.Pong, None]:
        return m.Pong(req_id="", rss_mb=_rss_mb(), models_loaded=int(self._model_ref is not None)), None


def _ids(raw: memoryview) -> array[int]:
    ids = array("i")
    ids.frombytes(raw)
    return ids


def _rss_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
