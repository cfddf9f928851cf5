"""What discovery says about a synapse lane: its state, and descriptors from what the engine showed (D1, D2, D6)."""

from __future__ import annotations

from pumas.contract.describe import LaneFacts, lane_capabilities, lane_modalities
from pumas.contract.descriptors import ServedModel
from pumas.contract.redact import redact
from synapse import Lane
from synapse.lane.checks import text_limit

REASONS = {
    "loading": "model_loading",
    "failed": "runtime_unavailable",
    "quarantined": "quarantined",
    "unloaded": "runtime_unavailable",
}
"""Why a lane in this state takes no work (C4)."""


def describe(alias: str, profile: str, lane: Lane) -> ServedModel:
    """A snapshot of one served model. Never waits."""
    state = lane.state
    facts = lane_facts(lane)
    return ServedModel(
        model=alias,
        profile=profile,
        model_id=model_id(lane.info.digest) if lane.info is not None else "unknown",
        provider="llama.cpp" if lane.profile.engine == "llama" else "onnxruntime",
        load_state="loading" if lane.restarting else state,
        context_tokens=facts.context or None,
        modalities=lane_modalities(facts),
        capabilities=lane_capabilities(facts),
        detail=_detail(lane),
    )


def model_id(digest: str) -> str:
    """`sha256:` and 12 hex digits (D3)."""
    return digest[: len("sha256:") + 12]


def lane_facts(lane: Lane) -> LaneFacts:
    """The facts of a lane: what the file declares until it is loaded, then what was measured."""
    info, measured, reason = lane.info, lane.measured, REASONS.get(lane.state)
    if info is None:
        return LaneFacts(reason=reason)
    chat = (info.chat_template and not info.template_error) or lane.profile.chat_template is not None
    if measured is None:
        return LaneFacts(
            role=info.role,
            embeds=info.role == "generate" and lane.profile.pooling is not None,
            reason=reason,
            context=lane.profile.context or info.context_length,
            dimensions=info.embedding_length,
            chat=chat,
        )
    generates = measured.role == "generate"
    return LaneFacts(
        role=measured.role,
        embeds=measured.embeds,
        reason=reason,
        context=measured.context if generates else text_limit(measured),
        embed_tokens=text_limit(measured) if measured.embeds else 0,
        dimensions=lane.dims,
        chat=chat,
        decode=measured.decode,
        generate_tokens=lane.max_tokens if generates else 0,
        deterministic=measured.deterministic if generates and measured.decode else None,
    )


def _detail(lane: Lane) -> dict[str, str]:
    """What the operator may want to know, and what the OpenAI routes need: the form of tool calls."""
    detail: dict[str, str] = {}
    info, measured = lane.info, lane.measured
    if lane.error:
        detail["error"] = lane.error
    if lane.restarting:
        detail["restarting"] = "its worker ended; requests wait for the next one"
    if info is not None:
        detail["architecture"] = info.architecture
        detail["weights"] = info.weights
        detail["tokenizer"] = info.tokenizer + (f" ({info.tokenizer_reason})" if info.tokenizer_reason else "")
        if info.role == "generate":
            closed = info.injection_closed and lane.profile.injection == "closed"
            detail["injection"] = "closed" if closed else "open"
            if info.template_error:
                detail["template_error"] = info.template_error
            if info.tools_format:
                detail["tools_format"] = info.tools_format
    if measured is not None and measured.role == "generate":
        detail["deterministic"] = "yes" if measured.deterministic else f"no: {measured.deterministic_detail or 'off'}"
    return {key: redact(value) for key, value in detail.items() if value}  # much of it is a model file's own words
