"""What comes back: upstream JSON as checked results, or `invalid_provider_result`. Pure.

A provider's envelope is never passed on: one choice, coherent indexes and counts, finite numbers, one dimension, every
document scored once, probabilities that are probabilities, recognized finish reasons (contract, Capability outputs).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from pumas.contract.errors import ContractError
from pumas.operations import Decide, Decisions, Embeddings, Scores, Usage

T = TypeVar("T")

FINISH_REASONS = frozenset({"stop", "length", "content_filter"})
PROBABILITY_SUM_TOLERANCE = 1e-3
SCORE_TOLERANCE = 1e-2
MAX_REASON_CHARS = 1000
"""How much of a provider's own reason reaches the caller."""


def invalid(why: str) -> ContractError:
    return ContractError("invalid_provider_result", f"the provider's result is not coherent: {why}", outcome="unknown")


class UsageJson(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    input_tokens: int = 0


class MessageJson(msgspec.Struct):
    content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChoiceJson(msgspec.Struct):
    index: int = 0
    message: MessageJson | None = None
    delta: MessageJson | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: Any = None


class CompletionJson(msgspec.Struct):
    """A finite completion or one event of a streamed one. Without `choices` it is neither."""

    choices: list[ChoiceJson]
    usage: UsageJson | None = None


class ErrorJson(msgspec.Struct):
    error: Any


class EmbeddingJson(msgspec.Struct):
    index: int
    embedding: list[float]


class EmbeddingsJson(msgspec.Struct):
    data: list[EmbeddingJson]
    usage: UsageJson | None = None


class ScoreJson(msgspec.Struct):
    index: int
    relevance_score: float


class ScoresJson(msgspec.Struct):
    results: list[ScoreJson]
    usage: UsageJson | None = None


class AnswerJson(msgspec.Struct, omit_defaults=True):
    type: Literal["choice", "score", "noul"]
    choice: str | None = None
    score: float | None = None
    noul: float | None = None
    legend: dict[str, Any] | None = None
    probabilities: dict[str, float] | None = None
    confidence: float | None = None


class DecisionsJson(msgspec.Struct):
    answers: dict[str, AnswerJson]
    usage: UsageJson | None = None


def decode(body: bytes, type_: type[T]) -> T:
    """The body as `type_`. Raises ContractError invalid_provider_result without quoting it."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("it does not have the expected shape") from error


def reason(body: bytes) -> str:
    """The provider's own reported reason from an error body, or "" where it gives none that can be told."""
    try:
        error = msgspec.json.decode(body, type=ErrorJson).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    text = error.get("message") if isinstance(error, dict) else error
    return text[:MAX_REASON_CHARS] if isinstance(text, str) else ""


def refusal(provider: str, status: int, body: bytes) -> ContractError:
    """An error status, with the reason that the provider reported."""
    why = reason(body)
    return ContractError(
        "provider_failure",
        f"the provider {provider} refused the request with status {status}" + (f": {why}" if why else ""),
        outcome="unknown",
    )


def usage_of(value: UsageJson | None) -> Usage:
    if value is None:
        return Usage(prompt_tokens=0)
    if min(value.prompt_tokens, value.completion_tokens, value.total_tokens, value.input_tokens) < 0:
        raise invalid("a token count is negative")
    return Usage(prompt_tokens=value.prompt_tokens or value.input_tokens, completion_tokens=value.completion_tokens)


def one_choice(value: CompletionJson) -> ChoiceJson:
    """The only choice there may be."""
    if len(value.choices) != 1 or value.choices[0].index != 0:
        raise invalid(f"it has {len(value.choices)} choices where one with index 0 is expected")
    return value.choices[0]


def finish_reason(value: str | None) -> str:
    if value not in FINISH_REASONS:
        raise invalid("its finish reason is not one that is known")
    return value


def text(body: bytes) -> tuple[str, str, Usage]:
    """A finite completion: text, finish reason, usage."""
    value = decode(body, CompletionJson)
    choice = one_choice(value)
    words = choice.text if choice.message is None else choice.message.content
    if words is None:
        raise invalid("it has no text")
    return words, finish_reason(choice.finish_reason), usage_of(value.usage)


def embeddings(body: bytes, count: int) -> Embeddings:
    """float32[count, dims], L2-normalized, in the order of the request."""
    value = decode(body, EmbeddingsJson)
    if sorted(item.index for item in value.data) != list(range(count)):
        raise invalid(f"it does not have one vector for each of {count} inputs")
    rows = [item.embedding for item in sorted(value.data, key=lambda item: item.index)]
    if not rows[0] or any(len(row) != len(rows[0]) for row in rows):
        raise invalid("its vectors differ in dimension")
    return Embeddings(normalized(np.asarray(rows, dtype=np.float64)), usage_of(value.usage).prompt_tokens)


def normalized(vectors: NDArray[np.float64]) -> NDArray[np.float32]:
    """Unit rows. Raises invalid_provider_result for values that are not finite and for rows of length 0."""
    if not np.isfinite(vectors).all():
        raise invalid("a vector has a value that is not finite")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (norms > 0).all():
        raise invalid("a vector has the length 0")
    return np.ascontiguousarray(vectors / norms, dtype=np.float32)


def scores(body: bytes, count: int) -> Scores:
    """One finite score for each of `count` documents, in their order."""
    value = decode(body, ScoresJson)
    if sorted(item.index for item in value.results) != list(range(count)):
        raise invalid(f"it does not score each of {count} documents exactly once")
    ordered = [item.relevance_score for item in sorted(value.results, key=lambda item: item.index)]
    if not all(math.isfinite(score) for score in ordered):
        raise invalid("a score is not finite")
    return Scores(tuple(ordered), usage_of(value.usage).prompt_tokens)


def decisions(body: bytes, operation: Decide) -> Decisions:
    """One answer for each question, of the question's type, with probabilities that are probabilities."""
    value = decode(body, DecisionsJson)
    if set(value.answers) != set(operation.questions):
        raise invalid("it does not answer exactly the questions that were asked")
    answers = {}
    for name, question in operation.questions.items():
        answer = value.answers[name]
        if answer.type != question["type"]:
            raise invalid(f"the answer to {name!r} is not of the question's type")
        answers[name] = _answer(name, question, answer)
    return Decisions(answers, usage_of(value.usage).prompt_tokens)


def _answer(name: str, question: Mapping[str, Any], answer: AnswerJson) -> dict[str, Any]:
    if answer.type == "noul":
        if answer.noul is None or not 0.0 <= answer.noul <= 1.0:
            raise invalid(f"the answer to {name!r} is not a probability")
        return {"type": "noul", "noul": answer.noul}
    probabilities, confidence = answer.probabilities or {}, answer.confidence
    criteria = question["criteria"]
    expected = list(criteria) if answer.type == "choice" else [str(i) for i in range(len(criteria))]
    if set(probabilities) != set(expected):
        raise invalid(f"the probabilities of {name!r} are not those of its options")
    values = [probabilities[option] for option in expected]
    if not all(0.0 <= p <= 1.0 for p in values) or abs(math.fsum(values) - 1.0) > PROBABILITY_SUM_TOLERANCE:
        raise invalid(f"the probabilities of {name!r} do not sum to 1")
    if confidence is None or not 0.0 <= confidence <= 1.0:
        raise invalid(f"the confidence of {name!r} is not between 0 and 1")
    common = {"probabilities": dict(zip(expected, values, strict=True)), "confidence": confidence}
    if answer.type == "choice":
        if answer.choice not in probabilities or probabilities[answer.choice] < max(values):
            raise invalid(f"the choice of {name!r} is not its most probable option")
        return {"type": "choice", "choice": answer.choice, **common}
    mean = math.fsum(i * p for i, p in enumerate(values))
    if answer.score is None or abs(answer.score - mean) > SCORE_TOLERANCE:
        raise invalid(f"the score of {name!r} is not its probability-weighted level")
    legend = {str(i): level for i, level in enumerate(criteria)}
    return {"type": "score", "score": answer.score, "legend": legend, **common}
