"""The llama.cpp engine behind the serve loop: one model at a time, its requests answered one by one."""

from __future__ import annotations

import importlib.util
import os
import resource
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synapse.wire import messages as m
from worker_bin.engine import Buffer, Handler, Refused
from worker_bin.llama import selftest
from worker_bin.llama.artifact import Artifact, check_reranker, open_verified
from worker_bin.llama.config import Config, Role, Shape, parse, shape
from worker_bin.llama.context import Context, generation_context
from worker_bin.llama.decoder import Decoder
from worker_bin.llama.encoder import Encoder
from worker_bin.llama.library import engine_info, library
from worker_bin.llama.model import Model

Ids = NDArray[np.int32]
_MODEL_REF = "model"


class Loaded:
    """The model that is loaded, with what works on it: a decoder, an encoder or both, each on its own context."""

    def __init__(
        self,
        model: Model,
        measured: m.Measured,
        contexts: ExitStack,
        *,
        decoder: Decoder | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        """`contexts` closes those of the decoder and the encoder."""
        self.model, self.measured = model, measured
        self.decoder, self.encoder = decoder, encoder
        self._contexts = contexts

    @property
    def dims(self) -> int:
        return self.model.n_embd if self.encoder is None else self.encoder.dims

    def close(self) -> None:
        self._contexts.close()
        self.model.close()


class LlamaEngine:
    """Engine of the seam `worker_bin.engine`. `sandbox`: what harden.py could arm, reported in LOADED."""

    def __init__(self, sandbox: Mapping[str, str] | None = None) -> None:
        self._lib = library()
        self._sandbox = dict(sandbox or {})
        self._loaded: Loaded | None = None
        self.info = engine_info()
        self.handlers: Mapping[type, Handler] = {
            m.Load: self._load,
            m.Unload: self._unload,
            m.Ping: self._ping,
            m.EmbedBatch: self._embed,
            m.Rerank: self._rerank,
            m.Generate: self._generate,
            m.Decode: self._decode,
        }

    # --- control -----------------------------------------------------------------------------------------------------

    def _load(self, request: m.Load, _raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        began = time.perf_counter()
        if self._loaded is not None:
            raise Refused("invalid_request", "a model is loaded already: unload it first")
        if request.format != "gguf":
            raise Refused("artifact_invalid", f"the format {request.format!r} is not served here; gguf is")
        config = parse(request.runtime_config)
        with open_verified(request.artifact_path, request.artifact_digest) as artifact:
            self._loaded = load(self._lib, artifact, config)
        self._loaded.measured.sandbox = self._sandbox
        reply = m.Loaded(
            req_id=request.req_id,
            model_ref=_MODEL_REF,
            dims=self._loaded.dims,
            cold_load_ms=(time.perf_counter() - began) * 1e3,
            measured=self._loaded.measured,
        )
        return reply, None

    def _unload(self, request: m.Unload, _raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        self._model(request.model_ref).close()
        self._loaded = None
        return m.Unloaded(req_id=request.req_id), None

    def _ping(self, request: m.Ping, _raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        return m.Pong(req_id=request.req_id, rss_mb=rss_mb(), models_loaded=int(self._loaded is not None)), None

    # --- work --------------------------------------------------------------------------------------------------------

    def _embed(self, request: m.EmbedBatch, raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        encoder = self._encoder(request.model_ref)
        texts = _split(raw, [item.n_tokens for item in request.items])
        vectors = encoder.embed(texts, request.pooling, normalize=request.normalize)
        reply = m.Vectors(req_id=request.req_id, dims=encoder.dims, n=len(texts))
        return reply, vectors.astype("<f4", copy=False).reshape(-1).data.cast("B") if texts else b""

    def _rerank(self, request: m.Rerank, raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        encoder = self._encoder(request.model_ref)
        texts = _split(raw, [request.query_n_tokens, *(c.n_tokens for c in request.candidates)])
        scores = encoder.rerank(texts[0], texts[1:])
        return m.Scores(req_id=request.req_id), scores.astype("<f4", copy=False).tobytes()

    def _generate(self, request: m.Generate, raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        decoder = self._decoder(request.model_ref)
        prompt = _ids(raw)
        text, n_gen, reason = decoder.generate(prompt, request.max_tokens, request.grammar)
        reply = m.Text(req_id=request.req_id, text=text, n_prompt=len(prompt), n_gen=n_gen, finish_reason=reason)
        return reply, None

    def _decode(self, request: m.Decode, raw: memoryview) -> tuple[m.Reply, Buffer | None]:
        return self._decoder(request.model_ref).decode(request, _ids(raw)), None

    # --- helpers -----------------------------------------------------------------------------------------------------

    def _model(self, model_ref: str) -> Loaded:
        if self._loaded is None or model_ref != _MODEL_REF:
            raise Refused("model_not_loaded", f"no model {model_ref!r} is loaded")
        return self._loaded

    def _encoder(self, model_ref: str) -> Encoder:
        encoder = self._model(model_ref).encoder
        if encoder is None:
            raise Refused("unsupported", "the model generates text: it embeds only where pooling is set")
        return encoder

    def _decoder(self, model_ref: str) -> Decoder:
        decoder = self._model(model_ref).decoder
        if decoder is None:
            raise Refused("unsupported", "the model embeds or reranks: it does not generate")
        return decoder


def load(lib: Any, artifact: Artifact, config: Config) -> Loaded:
    """Load, measure and self-test a verified model.

    Raises: Refused with artifact_invalid, config_invalid or oom; nothing stays loaded then.
    Blocks: seconds. An abort of the engine ends the process (the module's stage `load`).
    """
    role = _role(artifact, config)
    strict = config.deterministic == "strict"
    if strict:
        # Tiled products sum in another order as soon as there are 8 rows. Read by the engine at its first product.
        os.environ["GGML_CPU_TILED_MM"] = "0"
    else:
        os.environ.pop("GGML_CPU_TILED_MM", None)
    model = Model(lib, artifact.path, extra_buffers=not strict)
    try:
        with ExitStack() as contexts:
            if role == "generate":
                decoder, measured = _load_decoder(lib, model, artifact, config, contexts)
                encoder = None
                if config.pooling is not None:
                    encoder = _add_encoder(lib, model, config, measured, contexts)
                return Loaded(model, measured, contexts.pop_all(), decoder=decoder, encoder=encoder)
            encoder, measured = _load_encoder(lib, model, artifact, config, role, contexts)
            return Loaded(model, measured, contexts.pop_all(), encoder=encoder)
    except BaseException:
        model.close()
        raise


def _role(artifact: Artifact, config: Config) -> Role:
    own: Role = artifact.info.role
    role = config.role or own
    if role == "rerank" or own == "rerank":
        check_reranker(artifact)
    if role == "generate" and own != "generate":
        raise Refused("config_invalid", f"role is generate, but the model is made to {own}")
    if role == "rerank" and own != "rerank":
        raise Refused("config_invalid", "role is rerank, but the model has no ranking head")
    if role == "embed" and own == "rerank":
        raise Refused("config_invalid", "role is embed, but the model is a reranker: its vectors mean nothing")
    if role == "embed" and artifact.info.pooling in (None, "none") and config.pooling is None:
        raise Refused("config_invalid", "the model names no pooling: set pooling to mean, cls or last")
    return role


def _load_decoder(
    lib: Any, model: Model, artifact: Artifact, config: Config, contexts: ExitStack
) -> tuple[Decoder, m.Measured]:
    if not model.has_decoder or model.has_encoder or model.diffusion:
        raise Refused("artifact_invalid", f"type {artifact.info.architecture} is no plain decoder: not served")
    sizes = shape(config, "generate", model.trained)
    with _VocabularyBuilder(lib, model) as builder:
        context, detail = _open_context(lib, model, sizes, config)
        contexts.callback(context.close)
        step_ms = selftest.smoke_generation(context, model)
        found = selftest.test_generation(context, model, config.threads, step_ms)
        if config.deterministic == "strict" and not found.deterministic:
            raise Refused("config_invalid", f"deterministic is strict, but {found.detail}")
        vocabulary = builder.result()
    wanted = config.deterministic != "off"
    holds = wanted and found.deterministic
    measured = m.Measured(
        architecture=artifact.info.architecture,
        role="generate",
        context=sizes.context,
        micro_batch=sizes.micro_batch,
        vocabulary=model.n_vocab,
        parallel=config.parallel,
        threads=config.threads,
        decode=True,
        decode_step_ms=found.step_ms,
        deterministic=holds,
        reuse_equal=holds and found.reuse_equal,
        threads_equal=holds and found.threads_equal,
        deterministic_detail=detail or found.detail,
        add_bos=model.add_bos,
    )
    return Decoder(context, model, config.parallel, vocabulary, found.ms_per_token), measured


def _add_encoder(lib: Any, model: Model, config: Config, measured: m.Measured, contexts: ExitStack) -> Encoder:
    """What embeds with a model for generation, in a context of its own: texts of up to a micro-batch."""
    assert config.pooling is not None
    longest = min(measured.context, measured.micro_batch)
    sizes = shape(replace(config, context=longest, micro_batch=measured.micro_batch), "embed", model.trained)
    encoder, measured.embed_budget = _open_encoder(lib, model, sizes, config, config.pooling, "embed", contexts)
    measured.embeds, measured.pooling, measured.max_texts = True, config.pooling, sizes.sequences
    return encoder


def _open_context(lib: Any, model: Model, sizes: Shape, config: Config) -> tuple[Context, str]:
    """A context, and why it can promise nothing, "" where it can. Raises: Refused(oom)."""
    if config.deterministic == "off":
        return generation_context(lib, model, sizes, config.threads, quantized_kv=False), "turned off"
    try:
        return generation_context(lib, model, sizes, config.threads, quantized_kv=True), ""
    except Refused as refusal:
        if config.deterministic == "strict":
            raise
        # Heads whose width is no multiple of 32 have no Q8_0 cache.
        context = generation_context(lib, model, sizes, config.threads, quantized_kv=False)
        return context, f"no Q8_0 KV cache: {refusal.message}"


def _open_encoder(
    lib: Any, model: Model, sizes: Shape, config: Config, pooling: str, role: Role, contexts: ExitStack
) -> tuple[Encoder, int]:
    """An encoder that works, and the tokens of a unit that are fastest."""
    encoder = Encoder(lib, model, sizes, config.threads, pooling, role)
    contexts.callback(encoder.close)
    selftest.smoke_encoder(encoder, model)
    return encoder, selftest.measure_budget(encoder, model)


def _load_encoder(
    lib: Any, model: Model, artifact: Artifact, config: Config, role: Role, contexts: ExitStack
) -> tuple[Encoder, m.Measured]:
    pooling = "rank" if role == "rerank" else config.pooling or artifact.info.pooling or "mean"
    sizes = shape(config, role, model.trained)
    encoder, budget = _open_encoder(lib, model, sizes, config, pooling, role, contexts)
    measured = m.Measured(
        architecture=artifact.info.architecture,
        role=role,
        context=sizes.context,
        micro_batch=sizes.micro_batch,
        vocabulary=model.n_vocab,
        pooling=pooling,
        ranking_head=role == "rerank",
        parallel=config.parallel,
        max_texts=sizes.sequences,
        threads=config.threads,
        embed_budget=budget,
        deterministic_detail="vectors are equal to 6 digits in any batch, not bit by bit",
        add_bos=model.add_bos,
    )
    return encoder, measured


class _VocabularyBuilder:
    """llguidance's vocabulary, built in a thread beside the self-tests (0.6 s for 49,000 tokens, mostly outside the
    GIL), so that no request waits for it. Without the library there is none and grammars are `unsupported`.

    A context manager: when its block ends, nobody reads the model's vocabulary any more.
    """

    def __init__(self, lib: Any, model: Model) -> None:
        self._lib, self._model = lib, model
        self._vocabulary: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._build, name="vocabulary", daemon=True)

    def __enter__(self) -> _VocabularyBuilder:
        if importlib.util.find_spec("llguidance") is not None:
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    def _build(self) -> None:
        from worker_bin.llama.constraint import build_vocabulary

        try:
            self._vocabulary = build_vocabulary(self._lib, self._model)
        except Exception as error:  # noqa: BLE001 - carried over to the thread that waits
            self._error = error

    def result(self) -> Any:
        """The vocabulary, None without the library. Raises: what the building raised. Blocks until it is done."""
        if self._thread.ident is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._vocabulary


def rss_mb() -> float:
    """This process's resident memory in MB (its peak where /proc is not there)."""
    if os.path.exists("/proc/self/statm"):
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _ids(raw: memoryview) -> Ids:
    if raw.nbytes % 4:
        raise Refused("invalid_request", f"the ids' frame has {raw.nbytes} bytes, no multiple of 4")
    return np.frombuffer(raw, "<i4").astype(np.int32, copy=False)


def _split(raw: memoryview, lengths: list[int]) -> list[Ids]:
    ids = _ids(raw)
    if sum(lengths) != len(ids):
        raise Refused("invalid_request", f"{sum(lengths)} ids are announced, the frame has {len(ids)}")
    parts, at = [], 0
    for n in lengths:
        parts.append(ids[at : at + n])
        at += n
    return parts
