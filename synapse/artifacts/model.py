"""What a model file is, read from its header: never from its name."""

from __future__ import annotations

from typing import Literal

from synapse.artifacts.gguf import ArtifactInvalid, Header
from synapse.wire.messages import ModelInfo

Role = Literal["generate", "embed", "rerank"]


def describe(header: Header, digest: str) -> ModelInfo:
    """What the header says of the model; tokenizer and template are filled in by the ingest.

    Raises: ArtifactInvalid for a header that names no architecture or holds a value of the wrong type.
    """
    if not header.architecture:
        raise ArtifactInvalid("the header names no architecture")
    role = role_of(header)
    return ModelInfo(
        digest=digest,
        size=header.size,
        architecture=header.architecture,
        name=header.name,
        role=role,
        context_length=header.context_length,
        embedding_length=header.embedding_length,
        vocabulary=header.vocabulary,
        pooling=header.pooling,
        ranking_head=header.ranking_head,
        faithful_pairs=not (role == "rerank" and _instructed_reranker(header)),
        decision=f"{header.architecture}.decision.type" in header.metadata,
        weights=header.weights,
        chat_template=header.chat_template is not None,
    )


def role_of(header: Header) -> Role:
    """What the model is for: a pooling type or attention over both directions makes no text generator."""
    if header.ranking_head or header.pooling == "rank":
        return "rerank"
    if not header.causal or header.pooling in ("mean", "cls", "last"):
        return "embed"
    return "generate"


def _instructed_reranker(header: Header) -> bool:
    """It judges a pair through a chat template (the Qwen3 kind), which plain pairs do not reproduce (D10)."""
    return "rerank" in header.chat_templates or header.architecture.startswith("qwen3")
