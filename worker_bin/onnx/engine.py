"""Text embeddings by onnxruntime, behind the same messages as the llama worker.

Every text runs alone, without padding: a dynamically quantized graph scales its activations over the whole batch, so a
padded batch gives each text other numbers than it has alone. Alone costs nothing measurable here (docs/performance.md)
and makes a vector independent of its company, bit for bit.
"""

from __future__ import annotations

import hashlib
import os
import resource
import stat
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from synapse.wire.messages import (
    EmbedBatch,
    EngineInfo,
    Load,
    Loaded,
    Measured,
    Ping,
    Pong,
    Unload,
    Unloaded,
    Vectors,
)
from worker_bin.engine import Handler, Refused

DEFAULT_CONTEXT = 512
"""Longest input in tokens where no config.json beside the model declares one."""
UNIT_TOKENS = 512
"""Tokens of one unit that the scheduler should pack: texts run alone, so this only bounds how long a unit takes."""
CONFIG_MAX_BYTES = 1 << 20
INTEGERS: Mapping[str, type[np.integer]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
CONFIG_KEYS = frozenset({"context", "threads", "pooling", "parallel", "deterministic", "micro_batch", "role"})


class ModelConfig(msgspec.Struct):
    """What a Hugging Face config.json may say of the longest input."""

    max_position_embeddings: int | None = None
    n_positions: int | None = None


@dataclass
class Model:
    """A loaded graph and what was measured of it."""

    session: ort.InferenceSession
    inputs: Mapping[str, type[np.integer]]
    """Name and integer type of each input."""
    output: str
    length: int | None
    """Tokens that the graph is fixed to; a shorter text is padded to it. None: any."""
    context: int
    """Longest text in tokens."""
    dims: int = 0
    pooled: bool = False
    """The graph pools by itself: its output is [batch, dims]."""


def read_verified(path: str, digest: str) -> bytes:
    """The file's bytes, read once from one descriptor, if they have the digest. Raises Refused(artifact_invalid)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise Refused("artifact_invalid", f"{path} cannot be opened: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Refused("artifact_invalid", f"{path} is not a regular file")
        data = file.read()
    found = "sha256:" + hashlib.sha256(data).hexdigest()
    if found != digest:
        raise Refused("artifact_invalid", f"{path} has the digest {found}, not {digest}: the file was changed")
    return data


def declared_context(path: str) -> int:
    """The longest input in tokens by the config.json beside the model, DEFAULT_CONTEXT where there is none."""
    try:
        with open(os.path.join(os.path.dirname(path), "config.json"), "rb") as file:
            config = msgspec.json.decode(file.read(CONFIG_MAX_BYTES), type=ModelConfig)
    except FileNotFoundError:
        return DEFAULT_CONTEXT
    except (OSError, msgspec.MsgspecError) as error:
        raise Refused("config_invalid", f"the config.json beside the model cannot be read: {error}") from error
    return config.max_position_embeddings or config.n_positions or DEFAULT_CONTEXT


def positive(config: Mapping[str, str], key: str, default: int) -> int:
    """A positive integer of runtime_config. Raises Refused(config_invalid) naming key and value."""
    text = config.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise Refused("config_invalid", f"{key} must be a positive integer, not {text!r}")
    return int(text)


def pool(hidden: NDArray[np.float32], how: str) -> NDArray[np.float32]:
    """float32[tokens, dims] → float32[dims]."""
    if how == "mean":
        return np.asarray(hidden.mean(axis=0, dtype=np.float32))
    return np.asarray(hidden[0] if how == "cls" else hidden[-1])


class OnnxEngine:
    """One model at a time; see worker_bin.engine.Engine."""

    def __init__(self, sandbox: Mapping[str, str] | None = None) -> None:
        """`sandbox`: what harden.py could arm, reported in LOADED."""
        self._sandbox = dict(sandbox or {})
        self.info = EngineInfo(
            name="onnxruntime", version=ort.__version__, build_flags={"build": ort.get_build_info()[:200]}
        )
        self.handlers: Mapping[type, Handler] = {
            Load: self.load,
            EmbedBatch: self.embed,
            Unload: self.unload,
            Ping: self.ping,
        }
        self._models: dict[str, Model] = {}

    def load(self, request: Load, raw: memoryview) -> tuple[Loaded, None]:
        """Verify, build the session, run one text: what that shows is what is reported."""
        started = time.monotonic()
        if request.format != "onnx":
            raise Refused("config_invalid", f"format must be onnx, not {request.format!r}")
        for key in sorted(set(request.runtime_config) - CONFIG_KEYS):
            raise Refused("config_invalid", f"unknown runtime_config key {key!r}")
        data = read_verified(request.artifact_path, request.artifact_digest)
        declared = declared_context(request.artifact_path)
        context = min(declared, positive(request.runtime_config, "context", declared))
        threads = positive(request.runtime_config, "threads", 1)
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise Refused("artifact_invalid", f"onnxruntime cannot load the model: {error}") from error
        model = self._describe(session, context)
        self._models = {request.artifact_digest: model}
        measured = Measured(
            architecture="onnx",
            role="embed",
            context=model.context,
            micro_batch=max(model.context, UNIT_TOKENS),
            pooling=request.runtime_config.get("pooling") or "mean",
            parallel=1,
            threads=threads,
            embed_budget=UNIT_TOKENS,
            deterministic=True,
            sandbox=self._sandbox,
        )
        return (
            Loaded(
                req_id=request.req_id,
                model_ref=request.artifact_digest,
                dims=model.dims,
                cold_load_ms=(time.monotonic() - started) * 1000,
                measured=measured,
            ),
            None,
        )

    def _describe(self, session: ort.InferenceSession, context: int) -> Model:
        """What the graph is, by its declaration and by a text of two tokens."""
        declared = {i.name: i for i in session.get_inputs()}
        if "input_ids" not in declared or set(declared) - set(INPUTS):
            raise Refused("artifact_invalid", f"the graph's inputs are {sorted(declared)}, not {list(INPUTS)}")
        for name, value in declared.items():
            if value.type not in INTEGERS or len(value.shape) != 2:
                raise Refused(
                    "artifact_invalid", f"the input {name} is {value.type} {value.shape}, not int64 [n, length]"
                )
            if isinstance(value.shape[0], int) and value.shape[0] != 1:
                raise Refused("artifact_invalid", f"the graph is fixed to batches of {value.shape[0]}, not 1")
        length = declared["input_ids"].shape[1]
        fixed = length if isinstance(length, int) else None
        if fixed is not None and fixed < 2:
            raise Refused("artifact_invalid", f"the graph is fixed to texts of {fixed} tokens")
        outputs = session.get_outputs()
        chosen = next((o for o in outputs if o.name == "sentence_embedding"), outputs[0])
        model = Model(
            session=session,
            inputs={name: INTEGERS[value.type] for name, value in declared.items()},
            output=chosen.name,
            length=fixed,
            context=context if fixed is None else min(context, fixed),
        )
        try:
            found = self._run(model, np.zeros(2, np.int64))
        except Refused as error:
            raise Refused("artifact_invalid", f"a text of two tokens cannot be run: {error.message}") from error
        if found.ndim not in (1, 2) or 0 in found.shape or (found.ndim == 2 and found.shape[0] != 2):
            raise Refused(
                "artifact_invalid", f"the output {chosen.name} of a text of two tokens has the shape {found.shape}"
            )
        model.dims, model.pooled = int(found.shape[-1]), found.ndim == 1
        return model

    def _run(self, model: Model, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """float32[tokens, dims], or float32[dims] of a graph that pools. Raises Refused(engine_failed)."""
        n = len(ids)
        row, mask = np.zeros((2, model.length or n), np.int64)
        row[:n], mask[:n] = ids, 1
        feed = {"input_ids": row, "attention_mask": mask, "token_type_ids": np.zeros_like(row)}
        try:
            (result,) = model.session.run(
                [model.output], {name: feed[name][np.newaxis, :].astype(kind) for name, kind in model.inputs.items()}
            )
            if len(result) != 1:
                raise ValueError(f"one text gave {len(result)} results")
            found = np.asarray(result[0], dtype=np.float32)
        except Exception as error:
            raise Refused("engine_failed", f"onnxruntime: {error}") from error
        return found[:n] if found.ndim == 2 else found

    def embed(self, request: EmbedBatch, raw: memoryview) -> tuple[Vectors, bytes]:
        """float32[n, dims]; each text alone."""
        model = self._models.get(request.model_ref)
        if model is None:
            raise Refused("model_not_loaded", f"{request.model_ref} is not loaded")
        ids = np.frombuffer(raw, dtype="<i4")
        for index, item in enumerate(request.items):
            if not 1 <= item.n_tokens <= model.context:
                raise Refused(
                    "invalid_request", f"item {index} has {item.n_tokens} tokens; 1 to {model.context} are possible"
                )
        if ids.size and int(ids.min()) < 0:
            raise Refused("invalid_request", "a token id is negative")
        vectors = np.empty((len(request.items), model.dims), dtype="<f4")
        start = 0
        for row, item in zip(vectors, request.items, strict=True):
            hidden = self._run(model, ids[start : start + item.n_tokens].astype(np.int64))
            start += item.n_tokens
            vector = hidden if model.pooled else pool(hidden, request.pooling)
            norm = float(np.sqrt(np.dot(vector, vector))) if request.normalize else 1.0
            row[:] = vector / norm if norm > 0 else vector
        if not np.isfinite(vectors).all():
            raise Refused("engine_failed", "a vector holds a number that is not finite")
        reply = Vectors(req_id=request.req_id, dims=model.dims, n=len(request.items))
        return reply, vectors.tobytes()

    def unload(self, request: Unload, raw: memoryview) -> tuple[Unloaded, None]:
        if self._models.pop(request.model_ref, None) is None:
            raise Refused("model_not_loaded", f"{request.model_ref} is not loaded")
        return Unloaded(req_id=request.req_id), None

    def ping(self, request: Ping, raw: memoryview) -> tuple[Pong, None]:
        return Pong(req_id=request.req_id, rss_mb=rss_mb(), models_loaded=len(self._models)), None


def rss_mb() -> float:
    """This process's resident memory in MB (the peak where the current figure is not to be had)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 1e6
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1e6 if sys.platform == "darwin" else peak / 1e3
