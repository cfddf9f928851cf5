"""What a LOAD's runtime_config may say (strings to strings), and the numbers that follow from it and the model."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from worker_bin.engine import Refused

Deterministic = Literal["auto", "strict", "off"]
Role = Literal["generate", "embed", "rerank"]

MAX_SEQUENCES: Final = 256
"""llama.cpp gives no context for more."""
MAX_THREADS: Final = 512
_DEFAULT_CONTEXT: Final = 4096
_LEAST_CONTEXT: Final = 8
_DEFAULT_MICRO_BATCH: Final = 512
_CELL_STEP: Final = 256
"""llama.cpp pads a context up to a multiple of this."""


@dataclass(frozen=True)
class Config:
    """A checked runtime_config.

    Attributes:
        context: tokens that one sequence may hold (an encoder: its longest input); None: the model's, at most 4096.
        parallel: sequences that may be resident at once.
        micro_batch: tokens of one engine call; None: 512, an encoder's at least its context.
        pooling: for a model that does not name its own; a model for generation embeds as well where it is given.
    """

    context: int | None = None
    parallel: int = 8
    threads: int = 1
    micro_batch: int | None = None
    deterministic: Deterministic = "auto"
    pooling: str | None = None
    role: Role | None = None


def parse(values: Mapping[str, str]) -> Config:
    """Check a runtime_config. Raises: Refused(config_invalid) naming the key and what it may be."""
    known: dict[str, Callable[[str], int | str | None]] = {
        "context": lambda v: _integer("context", v, _LEAST_CONTEXT, 1 << 22),
        "parallel": lambda v: _integer("parallel", v, 1, MAX_SEQUENCES),
        "threads": lambda v: _integer("threads", v, 1, MAX_THREADS),
        "micro_batch": lambda v: _integer("micro_batch", v, 8, 1 << 16),
        "deterministic": lambda v: _word("deterministic", v, ("auto", "strict", "off")),
        "pooling": lambda v: _word("pooling", v, ("mean", "cls", "last")),
        "role": lambda v: None if v == "auto" else _word("role", v, ("auto", "generate", "embed", "rerank")),
    }
    for key in values:
        if key not in known:
            raise Refused("config_invalid", f"unknown key {key!r}; known are {', '.join(sorted(known))}")
    fields = {key: known[key](value) for key, value in values.items()}
    fields.setdefault("threads", _cores())
    return Config(**fields)  # type: ignore[arg-type]


def _cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _integer(key: str, value: str, low: int, high: int) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 9 and low <= int(value) <= high):
        raise Refused("config_invalid", f"{key} must be an integer from {low} to {high}, not {value!r}")
    return int(value)


def _word(key: str, value: str, words: tuple[str, ...]) -> str:
    if value not in words:
        raise Refused("config_invalid", f"{key} must be one of {', '.join(words)}, not {value!r}")
    return value


@dataclass(frozen=True)
class Shape:
    """The sizes of a context. All in tokens, but `sequences`.

    Attributes:
        context: what one sequence may hold.
        cells: what all of them take in the KV cache.
        micro_batch: tokens of one engine call at most.
        sequences: how many there may be.
    """

    context: int
    cells: int
    micro_batch: int
    sequences: int


def shape(config: Config, role: Role, trained: int) -> Shape:
    """Settle a context's sizes for a model that was trained on `trained` tokens.

    Raises: Refused(config_invalid) for a window over the trained one, or a micro-batch that an encoder's longest input
    does not fit in; Refused(artifact_invalid) for a model without a window.
    """
    if trained < _LEAST_CONTEXT:
        raise Refused("artifact_invalid", f"the model says that its window is {trained} tokens")
    context = min(trained, _DEFAULT_CONTEXT) if config.context is None else config.context
    if context > trained:
        raise Refused("config_invalid", f"context is {context}, but the model was trained on {trained} tokens")
    if role == "generate":
        cells = _padded(context) * config.parallel
        micro = min(config.micro_batch or _DEFAULT_MICRO_BATCH, cells)
        return Shape(context, cells, max(micro, config.parallel + 1), config.parallel)
    micro = config.micro_batch or max(_DEFAULT_MICRO_BATCH, context)
    if micro < context:
        raise Refused("config_invalid", f"micro_batch is {micro}, fewer than the longest input of {context} tokens")
    return Shape(context, _padded(micro), micro, min(MAX_SEQUENCES, micro))


def _padded(tokens: int) -> int:
    return -(-tokens // _CELL_STEP) * _CELL_STEP
