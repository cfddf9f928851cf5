"""What comes back: upstream JSON as checked results, or `invalid_provider_result`. Pure.

A provider's envelope is never passed on. The checks themselves are the contract's (pumas.contract.results).
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from pumas.contract.errors import ContractError
from pumas.contract.results import (
    check_choice,
    check_count_of_tokens,
    check_decisions,
    check_finish_reason,
    check_scores,
    check_vectors,
    in_order,
    invalid_result,
    normalized,
)
from pumas.operations import Decide, Decisions, Embeddings, Scores, TextDelta, Usage

MAX_REASON_CHARS = 1000
"""How much of a provider's own reason reaches the caller."""
T = TypeVar("T")


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    input_tokens: Any = None


class _Words(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    """`text` of a completion, `message` of a chat, `delta` of a streamed chat."""

    index: int = 0
    finish_reason: Any = None
    text: str | None = None
    message: _Words | None = None
    delta: _Words | None = None

    @property
    def words(self) -> str | None:
        said = self.message or self.delta
        return self.text if said is None else said.content


class _Completion(msgspec.Struct):
    """A finite completion or one event of a streamed one; without `choices` it is neither."""

    choices: list[_Choice]
    usage: _Usage | None = None


class _Error(msgspec.Struct):
    error: Any = None


class _Vector(msgspec.Struct):
    index: int
    embedding: list[float]


class _Vectors(msgspec.Struct):
    data: list[_Vector]
    usage: _Usage | None = None


class _Score(msgspec.Struct):
    index: int
    relevance_score: float


class _Scores(msgspec.Struct):
    results: list[_Score]
    usage: _Usage | None = None


class _Decisions(msgspec.Struct):
    answers: dict[str, Any]
    usage: _Usage | None = None


def decode(body: bytes, type_: type[T]) -> T:
    """The body as `type_`. Raises ContractError invalid_provider_result, without quoting it."""
    try:
        return msgspec.json.decode(body, type=type_)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_result("the provider's answer does not have the expected shape") from error


def _reported(body: bytes) -> Any:
    """The `error` of a body, None where it has none."""
    try:
        return msgspec.json.decode(body, type=_Error).error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def reason(body: bytes) -> str:
    """The provider's own reported reason from an error body, or "" where it gives none that can be told."""
    return _told(_reported(body))


def _told(error: Any) -> str:
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


def _usage(value: _Usage | None) -> Usage:
    if value is None:
        return Usage(prompt_tokens=0)
    prompt = value.prompt_tokens if value.prompt_tokens is not None else value.input_tokens
    return Usage(
        prompt_tokens=check_count_of_tokens(0 if prompt is None else prompt),
        completion_tokens=check_count_of_tokens(0 if value.completion_tokens is None else value.completion_tokens),
    )


class TextEvent(msgspec.Struct, frozen=True):
    """What one completion, or one event of a stream, says."""

    delta: TextDelta | None = None
    finish_reason: str | None = None
    usage: Usage | None = None


def text(body: bytes) -> TextEvent:
    """A finite completion: all three members are there."""
    value = decode(body, _Completion)
    choice = _only(value.choices)
    if choice.words is None:
        raise invalid_result("the provider's answer has no text")
    return TextEvent(TextDelta(choice.words), check_finish_reason(choice.finish_reason), _usage(value.usage))


def _only(choices: list[_Choice]) -> _Choice:
    check_choice([{"index": choice.index} for choice in choices])
    return choices[0]


def event(data: str, provider: str) -> TextEvent:
    """One event of a streamed completion. Raises provider_failure for an error object in mid-stream."""
    body = data.encode()
    if (error := _reported(body)) is not None:
        why = _told(error)
        message = f"the provider {provider} failed in mid-stream" + (f": {why}" if why else "")
        raise ContractError("provider_failure", message, outcome="unknown")
    value = decode(body, _Completion)
    usage = None if value.usage is None else _usage(value.usage)
    if not value.choices:
        if usage is None:
            raise invalid_result("an event of the provider has no choice")
        return TextEvent(usage=usage)
    choice = _only(value.choices)
    words, finish = choice.words, choice.finish_reason
    return TextEvent(
        TextDelta(words) if words else None,
        None if finish is None else check_finish_reason(finish),
        usage,
    )


def embeddings(body: bytes, count: int) -> Embeddings:
    """float32[count, dims], L2-normalized, in the order of the request."""
    value = decode(body, _Vectors)
    rows = in_order(((item.index, item.embedding) for item in value.data), count)
    return Embeddings(normalized(check_vectors(rows, count)), _usage(value.usage).prompt_tokens)


def scores(body: bytes, count: int) -> Scores:
    """One finite score for each of `count` documents, in their order."""
    value = decode(body, _Scores)
    found = check_scores(((item.index, item.relevance_score) for item in value.results), count)
    return Scores(found, _usage(value.usage).prompt_tokens)


def decisions(body: bytes, operation: Decide) -> Decisions:
    """One answer for each question, of the question's type, with probabilities that are probabilities."""
    value = decode(body, _Decisions)
    return Decisions(check_decisions(value.answers, operation.questions), _usage(value.usage).prompt_tokens)
