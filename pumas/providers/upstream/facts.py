"""What an upstream model is and can do, as observed; and the descriptors that follow. Pure.

A model with no recorded task is described by its runtime: one that declares text output chats and completes, and
describes images where it takes them; a native decision model decides and does nothing else (contract, Endpoints).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import msgspec

from pumas.contract import limits
from pumas.contract.describe import (
    DOWN,
    LOCAL_SAMPLING,
    MISMATCH,
    Offer,
    capabilities,
    embedding_bounds,
    text_bounds,
)
from pumas.contract.descriptors import Capability, LoadState, Modalities, OptionBound, ServedModel

Kind = Literal["llama-server", "ollama", "openai"]
TEXT = ("chat_generation", "text_generation", "image_to_text")
OFFERED: dict[Kind, frozenset[str]] = {
    "llama-server": frozenset((*TEXT, "text_embedding", "multimodal_embedding", "rerank", "decision")),
    "ollama": frozenset(("chat_generation", "text_generation", "text_embedding")),
    "openai": frozenset(("chat_generation", "text_generation", "text_embedding", "rerank")),
}
"""Which capabilities there is an adapter for."""
SEED = OptionBound("seed", 0, 2**31 - 1)
SAMPLING: dict[Kind, tuple[OptionBound, ...]] = {"llama-server": LOCAL_SAMPLING, "ollama": (SEED,), "openai": (SEED,)}
"""Options beyond the contract's own that each kind is known to honour. Grammars and schemas are not among them:
llama-server accepts a schema that it does not understand and answers unconstrained."""


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """What a server said of one model."""

    name: str
    """Its name there."""
    inputs: tuple[str, ...] = ()
    """Modalities it declares; empty: it has not answered."""
    outputs: tuple[str, ...] = ()
    context: int | None = None
    load_state: LoadState = "loaded"
    recorded: tuple[str, ...] = ()
    """Capabilities that the server or the configuration records; empty: described by its runtime."""
    dimensions: int | None = None
    fingerprint: str = ""
    """What tells this model from another of the same name, where the server says it."""

    def is_same(self, other: Observed) -> bool:
        """Whether both are one model: by name, and by fingerprint where both times the server gave one."""
        known = self.fingerprint and other.fingerprint
        return self.name == other.name and (not known or self.fingerprint == other.fingerprint)


def offered(kind: Kind, observed: Observed) -> tuple[str, ...]:
    """The capabilities that fit the model and have an adapter."""
    if observed.recorded:
        wanted: Sequence[str] = observed.recorded
    elif "decisions" in observed.outputs:
        wanted = ("decision",)
    elif "text" in observed.outputs:
        wanted = ("chat_generation", "text_generation", *(("image_to_text",) if "image" in observed.inputs else ()))
    else:
        wanted = ()
    if "text_embedding" in wanted and kind == "llama-server" and "image" in observed.inputs:
        wanted = (*wanted, "multimodal_embedding")
    return tuple(name for name in wanted if name in OFFERED[kind])


def modalities(names: Sequence[str], observed: Observed) -> Modalities:
    """As the contract reports them: embedders produce vectors, rerankers and decision models json."""
    if not observed.inputs:
        return Modalities()
    outputs = dict.fromkeys(
        "text" if name in TEXT else "vector" if name.endswith("embedding") else "json" for name in names
    )
    return Modalities(observed.inputs, tuple(outputs))


def descriptors(kind: Kind, observed: Observed | None, reason: str | None) -> tuple[Capability, ...]:
    """All ten descriptors. `reason`: why the model takes no work now; None: it does."""
    if observed is None:
        return capabilities((), {}, otherwise=reason or "runtime_unavailable")
    names = offered(kind, observed)
    text = Offer(reason=reason, bounds=text_bounds(observed.context) + SAMPLING[kind], options=("stop",))
    vectors = Offer(reason=reason, bounds=embedding_bounds(observed.dimensions, None))
    count = OptionBound("top_n", 1, limits.MAX_INPUT_COUNT), OptionBound("input_count", 1, limits.MAX_INPUT_COUNT)
    offers = {
        **dict.fromkeys(TEXT, text),
        "text_embedding": vectors,
        "multimodal_embedding": vectors,
        "rerank": Offer(reason=reason, bounds=count),
        "decision": Offer(reason=reason, without=("audio",)),
    }
    otherwise = MISMATCH if names else "unknown_model_task"
    if reason in DOWN:  # which all ten show (D6)
        otherwise = reason
    return capabilities(observed.inputs, {n: offers[n] for n in names}, otherwise=otherwise)


def short_digest(digest: str) -> str:
    """`sha256:` and 12 hex digits (D3)."""
    return digest[: len("sha256:") + 12]


def library_name(name: str) -> str:
    """A server without an alias calls its model by the path of a file, which is nobody's business."""
    return name.rpartition("/")[2] if name.startswith("/") else name


@lru_cache(maxsize=1024)
def served(
    alias: str, profile: str, provider: str, kind: Kind, observed: Observed | None, state: LoadState, reason: str | None
) -> ServedModel:
    """The snapshot of one upstream model."""
    names = () if observed is None else offered(kind, observed)
    return ServedModel(
        model=alias,
        profile=profile,
        model_id="unknown" if observed is None else library_name(observed.name),
        provider=provider,
        load_state=state,
        context_tokens=None if observed is None else observed.context,
        modalities=Modalities() if observed is None else modalities(names, observed),
        capabilities=descriptors(kind, observed, reason),
    )
