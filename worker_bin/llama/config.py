"""What a LOAD's runtime_config may say (strings to strings), and the numbers that follow from it and the model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from worker_bin.engine import Refused

Deterministic = Literal["auto", "strict", "off"]
Role = Literal["generate", "embed", "rerank"]

MAX_SEQUENCES: Final = 256
"""llama.cpp gives no context for more."""
_DEFAULT_CONTEXT: Final = 4096
_DEFAULT_MICRO_BATCH: Final = 512
_CELL_STEP: Final = 256
"""llama.cpp pads a context up to a multiple of this."""


@dataclass(frozen=True)
class Config:
    """A checked runtime_config.

    Attributes:
        context: tokens that one sequence may hold (an encoder: its longest input); None: the model's, at most 4096.
        parallel: sequences that may be resident at once.
        cells: KV cells that all resident sequences share; None: context x parallel, so that none can lack one.
        micro_batch: tokens of one engine call; None: 512, an encoder's at least its context.
        pooling: for a model that does not name its own.
    """

    context: int | None = None
    parallel: int = 8
    cells: int | None = None
    threads: int = 1
    micro_batch: int | None = None
    deterministic: Deterministic = "auto"
    pooling: str | None = None
    role: Role | None = None


def parse(values: Mapping[str, str]) -> Config:
    """Check a runtime_config. Raises: Refused(config_invalid) naming the key and what it may be."""
    known = {
        "context": lambda v: _integer("context", v, 8, 1 << 22),
        "parallel": lambda v: _integer("parallel", v, 1, MAX_SEQUENCES - 1),
        "cells": lambda v: _integer("cells", v, 8, 1 << 24),
        "threads": lambda v: _integer("threads", v, 1, 512),
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
    """The sizes of a context. All in tokens, but `sequences`."""

    context: int
    cells: int
    micro_batch: int
    sequences: int


def shape(config: Config, role: Role, trained: int) -> Shape:
    """Settle a context's sizes for a model that was trained on `trained` tokens.

    Raises: Refused(config_invalid) for a window over the trained one, or a micro-batch that an encoder's longest input
    does not fit in.
    """
    context = min(trained, _DEFAULT_CONTEXT) if config.context is None else config.context
    if context > trained:
        raise Refused("config_invalid", f"context is {context}, but the model was trained on {trained} tokens")
    if role == "generate":
        cells = context * config.parallel if config.cells is None else config.cells
        if cells < context:
            raise Refused("config_invalid", f"cells is {cells}, fewer than the context of {context}")
        padded = -(-cells // _CELL_STEP) * _CELL_STEP
        micro = min(_DEFAULT_MICRO_BATCH if config.micro_batch is None else config.micro_batch, padded)
        # One sequence more than the profile's: GENERATE and the self-test work beside the resident ones.
        return Shape(context, padded, max(micro, config.parallel + 1), config.parallel + 1)
    micro = max(_DEFAULT_MICRO_BATCH, context) if config.micro_batch is None else config.micro_batch
    if micro < context:
        raise Refused("config_invalid", f"micro_batch is {micro}, fewer than the longest input of {context} tokens")
    return Shape(context, -(-micro // _CELL_STEP) * _CELL_STEP, micro, min(MAX_SEQUENCES, micro))
