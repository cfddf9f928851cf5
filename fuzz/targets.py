"""What a target is, and which there are.

A target is a module of this package with `INVARIANT` (one sentence), `check(data)`, which raises where the invariant
does not hold, and `generate(rng)`, which makes one input; optional are `close()`, which ends what `check` started, and
`SLOW_S`, the CPU seconds that no input may take.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

NAMES = (
    "frames",
    "connection",
    "request_json",
    "upstream_sse",
    "upstream_json",
    "media_headers",
    "gguf_header",
    "tokenizer_metadata",
    "templates",
    "grammars",
    "redaction",
    "config",
    "http",
)
CORPUS = Path(__file__).parent / "corpus"
FAILURES = Path(__file__).parent / "failures"
SLOW_S = 10.0
"""CPU time that no input of some kilobytes may take unless its target says otherwise."""


@dataclass(frozen=True)
class Target:
    """One parser under test."""

    name: str
    invariant: str
    check: Callable[[bytes], object]
    generate: Callable[[random.Random], bytes]
    close: Callable[[], None] = lambda: None
    slow_s: float = SLOW_S

    def corpus(self) -> list[Path]:
        """The kept inputs, in a fixed order."""
        return sorted(path for path in (CORPUS / self.name).glob("*") if path.is_file())


def load(name: str) -> Target:
    """The target of that name. Imports its module, and with it the parser."""
    module = importlib.import_module(f"fuzz.{name}")
    return Target(
        name,
        module.INVARIANT,
        module.check,
        module.generate,
        getattr(module, "close", lambda: None),
        getattr(module, "SLOW_S", SLOW_S),
    )
