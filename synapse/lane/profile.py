"""How a lane is to be run, and what is asked of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from synapse.policy.scheduler import Ids
from synapse.wire.messages import ModelInfo, Sampling


@dataclass(frozen=True)
class Profile:
    """How a model is served. Everything is optional.

    Attributes:
        parallel: sequences that share a worker; 1 keeps the strict promise that a crash takes down one request only,
            and then texts of several callers never share a unit either (D5).
        context: tokens of one sequence; None: the engine's choice.
        threads: None: all cores for generation (units get what is free), half of them for the rest.
        workers: processes that serve this lane.
        deterministic: `auto` (all that is free), `strict` (also what costs speed, else the load fails), `off` (G2).
        pooling: `mean`, `cls` or `last` instead of the model's own. A model for generation embeds as well where it is
            given.
        micro_batch: tokens of one engine call; None: the engine's choice.
        env: additions to the workers' allow-listed environment (W2).
        require_sandbox: the load fails where a worker cannot be boxed in.
        injection: `closed`: special-token text in messages stays text; `engine`: as the engine's own tokenizer has it.
        chat_template: a named fallback instead of the model's own.
        engine: which worker program.
        argv: another worker program instead, without --socket and --nonce.
    """

    parallel: int = 8
    context: int | None = None
    threads: int | None = None
    workers: int = 1
    deterministic: Literal["auto", "strict", "off"] = "auto"
    pooling: str | None = None
    micro_batch: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    require_sandbox: bool = False
    injection: Literal["closed", "engine"] = "closed"
    chat_template: str | None = None
    engine: Literal["llama", "onnx"] = "llama"
    argv: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name in ("parallel", "context", "threads", "workers", "micro_batch"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")

    def program(self) -> list[str]:
        """argv of its workers."""
        if self.argv is not None:
            return list(self.argv)
        return [sys.executable, "-P", "-m", f"worker_bin.{self.engine}"]

    def runtime_config(self, info: ModelInfo, cores: int) -> dict[str, str]:
        """What LOAD says; with the digest the crash budget's key. A key that is missing is the engine's choice."""
        threads = self.threads or (cores if info.role == "generate" else max(1, cores // 2))
        config = {
            "parallel": str(self.parallel),
            "threads": str(threads),
            "deterministic": self.deterministic,
            "role": info.role,
        }
        if self.context is not None:
            config["context"] = str(self.context)
        # A GGUF holds its pooling; that of an ONNX graph stands in a file beside it, which the ingest read.
        pooling = self.pooling or (info.pooling if self.engine == "onnx" else None)
        if pooling is not None:
            config["pooling"] = pooling
        if self.micro_batch is not None:
            config["micro_batch"] = str(self.micro_batch)
        return config


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A prompt to continue.

    Attributes:
        prompt: token ids, int32.
        max_tokens: None: to the end of the window.
        sampling: how tokens are drawn; the default is greedy.
        stop: texts that end it and are not part of it.
        grammar, json_schema: at most one; checked by the text service before (G1).
        logprobs: None, or how many of the most likely tokens to report with each.
        max_queue: seconds within which it must start, or None.
    """

    prompt: Ids
    max_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stop: Sequence[str] = ()
    grammar: str | None = None
    json_schema: str | None = None
    logprobs: int | None = None
    max_queue: float | None = 10.0
