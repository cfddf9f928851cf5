"""What a request must be before it is queued: everything that can be foreseen is refused here, as not admitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from synapse.errors import InputTooLarge, InvalidInput
from synapse.lane.profile import Generation
from synapse.limits import Limits
from synapse.policy.costs import answer_tokens
from synapse.policy.scheduler import Ids
from synapse.policy.scheduler.work import PAIR_SPECIALS
from synapse.wire.messages import Measured, Sampling

_DOING = {"generate": "generation", "embed": "embedding", "rerank": "reranking"}


def check_task(measured: Measured, task: Literal["generate", "embed", "rerank"]) -> None:
    """Raises InvalidInput where the model is not for this."""
    if measured.role != task and not (task == "embed" and measured.embeds):
        raise InvalidInput(f"this model is for {_DOING[measured.role]}, not for {_DOING[task]}")


def check_ids(ids: Ids, measured: Measured, index: int | None = None) -> None:
    """Raises InvalidInput for an empty array, another type than integers, or an id that is not in the vocabulary."""
    at = "" if index is None else f" {index}"
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise InvalidInput(f"item{at} is no one-dimensional array of token ids")
    if not len(ids):
        raise InvalidInput(f"item{at} is empty")
    if measured.vocabulary and not (int(ids.min()) >= 0 and int(ids.max()) < measured.vocabulary):
        raise InvalidInput(f"item{at} holds a token id outside 0 to {measured.vocabulary - 1}")


def text_limit(measured: Measured) -> int:
    """Tokens that one text, or one pair with its special tokens, may have."""
    return min(measured.context, measured.micro_batch) if measured.micro_batch else measured.context


def check_texts(texts: Sequence[Ids], measured: Measured) -> None:
    """Raises InvalidInput, or InputTooLarge that names the item."""
    limit = text_limit(measured)
    for index, ids in enumerate(texts):
        check_ids(ids, measured, index)
        if len(ids) > limit:
            raise InputTooLarge("the number of tokens", len(ids), limit, index=index)


def check_pairs(query: Ids, documents: Sequence[Ids], measured: Measured) -> None:
    """Raises InvalidInput, or InputTooLarge that names the document."""
    check_ids(query, measured)
    limit = text_limit(measured)
    for index, ids in enumerate(documents):
        check_ids(ids, measured, index)
        if len(query) + len(ids) + PAIR_SPECIALS > limit:
            raise InputTooLarge("the number of tokens of query and document", len(query) + len(ids), limit, index=index)


def max_tokens(measured: Measured, limits: Limits) -> int:
    """The longest answer that can be asked for: to the end of the window, or what fits one request (G4)."""
    window = max(1, measured.context - 1)
    if measured.decode:
        return window
    return min(window, answer_tokens(measured.decode_step_ms, limits.unit_min_s))


def check_generation(request: Generation, measured: Measured, limits: Limits) -> int:
    """Returns how many tokens are to be generated at most: what was asked for, cut at the window.

    Raises InputTooLarge for a prompt that leaves no room, InvalidInput for what this worker cannot do (G4).
    """
    prompt = len(request.prompt)
    check_ids(request.prompt, measured)
    if prompt > measured.context - 1:
        raise InputTooLarge("the number of prompt tokens", prompt, measured.context - 1)
    if request.max_tokens is not None and request.max_tokens < 1:
        raise InvalidInput(f"max_tokens is {request.max_tokens}; it must be at least 1", field="max_tokens")
    if request.grammar is not None and request.json_schema is not None:
        raise InvalidInput("grammar and json_schema exclude each other", field="grammar")
    longest = max_tokens(measured, limits)
    wanted = longest if request.max_tokens is None else request.max_tokens
    if not measured.decode:
        _check_plain(request, longest)
    return min(wanted, measured.context - prompt)


def _check_plain(request: Generation, longest: int) -> None:
    """A worker without DECODE has one way to generate; what asks for another is refused by name (G4)."""
    if request.max_tokens is not None and request.max_tokens > longest:
        raise InvalidInput(
            f"max_tokens is {request.max_tokens}; this worker answers {longest} at most", field="max_tokens"
        )
    if request.sampling.temperature != 0:
        raise InvalidInput("temperature must be 0: this worker is greedy", field="temperature")
    neutral = Sampling(temperature=0.0, seed=request.sampling.seed)
    for name in ("repeat_penalty", "frequency_penalty", "presence_penalty", "logit_bias"):
        if getattr(request.sampling, name) != getattr(neutral, name):
            raise InvalidInput(f"this worker knows no {name}", field=name)
    for name, value in (("stop", request.stop), ("json_schema", request.json_schema), ("logprobs", request.logprobs)):
        if value is not None and value != ():
            raise InvalidInput(f"this worker knows no {name}", field=name)


def check_sampling(sampling: Sampling, vocabulary: int) -> None:
    """Raises InvalidInput for a number that no sampler takes; the engine would pass over it in silence."""
    for field in msgspec.structs.fields(Sampling):
        value = getattr(sampling, field.name)
        if isinstance(value, float) and not np.isfinite(value):
            raise InvalidInput(f"{field.name} is not finite", field=field.name)
    for name, low, high in (
        ("temperature", 0.0, 2.0**20),
        ("top_k", 0, 2**31 - 1),
        ("top_p", 0.0, 1.0),
        ("min_p", 0.0, 1.0),
        ("repeat_last_n", 0, 2**20),
        ("seed", 0, 2**63 - 1),
    ):
        if not low <= getattr(sampling, name) <= high:
            raise InvalidInput(f"{name} is {getattr(sampling, name)}; it must be from {low} to {high}", field=name)
    for token, bias in sampling.logit_bias:
        if not np.isfinite(bias) or not 0 <= token < max(1, vocabulary):
            raise InvalidInput(f"logit_bias of token {token} is {bias}", field="logit_bias")
