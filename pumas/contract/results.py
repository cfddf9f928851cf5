"""Success bodies, and the checks that make a provider's answer a result (contract, projection).

Vectors are encoded once, straight from the float32 array: the shortest decimals that give the same float32 back.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any

import msgspec
import numpy as np
import orjson
from numpy.typing import ArrayLike, NDArray

from pumas.contract.errors import ContractError
from pumas.contract.limits import CONTRACT_VERSION, MAX_RESPONSE_BYTES

FINISH_REASONS = ("stop", "length", "content_filter")
PROBABILITY_TOLERANCE = 1e-3
"""How far the probabilities of one question may be from 1 in sum: up to 255 options, each of some rounded decimals."""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Additive: tokens as the model counts them."""

    prompt_tokens: int
    completion_tokens: int = 0
    cached_tokens: int = 0


# --- encoding --------------------------------------------------------------------------------------------------------


def encode_text(
    request_id: str, text: str, finish_reason: str, *, usage: UsageRecord | None = None, seed: int | None = None
) -> bytes:
    """`usage` and `seed` are additive; the seed gives the same answer again (G3)."""
    result: dict[str, Any] = {"kind": "text", "text": text, "finish_reason": check_finish_reason(finish_reason)}
    if seed is not None:
        result["seed"] = seed
    if usage is not None:
        result["usage"] = usage
    return _envelope(request_id, result)


def encode_embeddings(
    request_id: str, vectors: NDArray[np.float32], *, dimensions: int | None = None, input_tokens: int | None = None
) -> bytes:
    """`vectors`: float32[n, dims], L2-normalized. `dimensions` keeps the leading values and renormalizes.

    Blocks: about 30 ns for each value. Raises: ContractError: see `cut` and `check_vectors`; response_limit.
    """
    chosen = check_vectors(vectors if dimensions is None else cut(vectors, dimensions))
    result: dict[str, Any] = {"kind": "embeddings", "vectors": msgspec.Raw(floats_json(chosen))}
    if input_tokens is not None:
        result["input_tokens"] = input_tokens
    return _envelope(request_id, result)


def encode_image(request_id: str, png: bytes, seed: int) -> bytes:
    image = base64.b64encode(png).decode()
    return _envelope(request_id, {"kind": "image", "png_base64": image, "seed": seed})


def encode_decisions(request_id: str, answers: Mapping[str, Any], input_tokens: int) -> bytes:
    return _envelope(request_id, {"kind": "decisions", "answers": answers, "input_tokens": input_tokens})


def encode_scores(request_id: str, scores: Sequence[float], input_tokens: int, *, top_n: int | None = None) -> bytes:
    """`scores`: one for each document, in their order."""
    results = [{"index": index, "relevance_score": scores[index]} for index in rank(scores, top_n)]
    return _envelope(request_id, {"kind": "relevance_scores", "results": results, "input_tokens": input_tokens})


def _envelope(request_id: str, result: dict[str, Any]) -> bytes:
    body = msgspec.json.encode({"contract_version": CONTRACT_VERSION, "request_id": request_id, "result": result})
    return bounded(body)


def bounded(body: bytes) -> bytes:
    """`body`, if it fits the response bound. Raises: ContractError: response_limit, unknown: the work was done."""
    if len(body) > MAX_RESPONSE_BYTES:
        message = f"the response is {len(body)} bytes, over the limit of {MAX_RESPONSE_BYTES} bytes"
        raise ContractError("response_limit", message, outcome="unknown")
    return body


def floats_json(vectors: NDArray[np.float32]) -> bytes:
    """A float32 array of one or two dimensions as JSON, exact: reading it as float32 gives the same bits."""
    return orjson.dumps(np.ascontiguousarray(vectors, np.float32), option=orjson.OPT_SERIALIZE_NUMPY)


def vector_base64(vector: NDArray[np.float32]) -> str:
    """One vector as base64 of its little-endian float32 bytes, as OpenAI clients ask for it."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode()


def cut(vectors: NDArray[np.float32], dimensions: int) -> NDArray[np.float32]:
    """The leading values, renormalized (Matryoshka truncation).

    Raises: ContractError: request_limit for more dimensions than there are; invalid_provider_result where the leading
        values are all 0 and have no direction.
    """
    produced = vectors.shape[1]
    if dimensions > produced:
        message = f"option `dimensions` is {dimensions}, but the model produces {produced}"
        raise ContractError("request_limit", message, outcome="unknown", field="options.dimensions")
    if dimensions == produced:
        return vectors
    leading = vectors[:, :dimensions].astype(np.float64)
    norms = np.linalg.norm(leading, axis=1, keepdims=True)
    if not norms.all():
        raise invalid_result(f"the leading {dimensions} values of a vector are all 0")
    return np.asarray(leading / norms, np.float32)


def rank(scores: Sequence[float], top_n: int | None = None) -> list[int]:
    """Document indexes, most relevant first; ties keep document order; cut to `top_n`."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])[:top_n]


# --- projection: what a provider's answer must be --------------------------------------------------------------------


def invalid_result(message: str) -> ContractError:
    return ContractError("invalid_provider_result", message, outcome="unknown")


def check_finish_reason(reason: object) -> str:
    """Raises: ContractError: not one of the recognized finish reasons."""
    if reason not in FINISH_REASONS:
        raise invalid_result(f"finish reason {str(reason)[:64]!r} is not one of {', '.join(FINISH_REASONS)}")
    return str(reason)


def check_choice(choices: Any) -> Any:
    """The single choice of a text answer. Raises: ContractError: none, several, or another index than 0."""
    if not isinstance(choices, list | tuple) or len(choices) != 1 or not isinstance(choices[0], dict):
        raise invalid_result("the provider's answer does not hold exactly one text choice")
    if choices[0].get("index", 0) != 0:
        raise invalid_result("the provider's only text choice has another index than 0")
    return choices[0]


def check_vectors(vectors: ArrayLike, count: int | None = None, dimensions: int | None = None) -> NDArray[np.float32]:
    """Vectors as float32[n, dims], C order. Raises: ContractError: ragged, other counts, not finite, empty."""
    try:
        with np.errstate(over="ignore"):  # becomes an infinity, which is refused below
            array = np.ascontiguousarray(vectors, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise invalid_result("embeddings are not one rectangle of numbers") from None
    if array.ndim != 2 or 0 in array.shape:
        raise invalid_result(f"embeddings have the shape {array.shape}")
    if count is not None and array.shape[0] != count:
        raise invalid_result(f"there are {array.shape[0]} embeddings for {count} inputs")
    if dimensions is not None and array.shape[1] != dimensions:
        raise invalid_result(f"embeddings have {array.shape[1]} dimensions instead of {dimensions}")
    if not np.isfinite(array).all():
        raise invalid_result("an embedding holds a number that is not finite")
    return array


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vectors with norm 1 (G7). Raises: ContractError: a vector of zeros."""
    norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    if not norms.all():
        raise invalid_result("an embedding is all zeros")
    return np.asarray(vectors / norms, np.float32)


def in_order(items: Iterable[tuple[object, Any]], count: int) -> list[Any]:
    """Values in the order of their indexes 0..count-1. Raises: ContractError: an index missing, foreign or twice."""
    placed: dict[int, Any] = {}
    for index, value in items:
        if type(index) is not int or not 0 <= index < count or index in placed:
            raise invalid_result(f"index {str(index)[:32]} is not one of {count}, or is given twice")
        placed[index] = value
    if len(placed) != count:
        raise invalid_result(f"there are results for {len(placed)} of {count} inputs")
    return [placed[index] for index in range(count)]


def check_scores(items: Iterable[tuple[object, object]], count: int) -> tuple[float, ...]:
    """Scores in document order from (index, score): every document exactly once, each score finite."""
    return tuple(_finite(score, "a relevance score") for score in in_order(items, count))


def _finite(value: object, what: str) -> float:
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value):
            return float(value)
    except OverflowError:  # a whole number beyond every float
        pass
    raise invalid_result(f"{what} is not a finite number")


def check_count_of_tokens(value: object) -> int:
    """A token count of a provider. Raises: ContractError: no integer, negative, or larger than any integer of JSON."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise invalid_result("a token count is not a whole number")
    return value


def check_decisions(answers: Any, questions: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """A decision model's answers: each question exactly once, with its type's members, all numbers finite.

    `questions` as in the request: type, instructions, criteria. Raises: ContractError.
    """
    if not isinstance(answers, dict) or set(answers) != set(questions):
        raise invalid_result("the answers do not answer exactly the questions")
    return {name: _check_answer(answers[name], questions[name], name[:64]) for name in questions}


def _check_answer(answer: Any, question: Mapping[str, Any], name: str) -> dict[str, Any]:
    kind = question["type"]
    if not isinstance(answer, dict) or answer.get("type", kind) != kind:
        raise invalid_result(f"the answer to {name!r} is not of type {kind}")
    fields: tuple[str, ...] = {
        "choice": ("choice", "probabilities", "confidence"),
        "score": ("score", "legend", "probabilities", "confidence"),
        "noul": ("noul",),
    }[kind]
    if missing := [field for field in fields if field not in answer]:
        raise invalid_result(f"the answer to {name!r} lacks {', '.join(missing)}")
    if kind == "choice" and (not isinstance(answer["choice"], str) or answer["choice"] not in question["criteria"]):
        raise invalid_result(f"the answer to {name!r} is not one of its options")
    if kind == "score" and not 0 <= _finite(answer["score"], "a score") <= len(question["criteria"]) - 1:
        raise invalid_result(f"the score of {name!r} is outside its levels")
    if kind == "noul":
        _probability(answer["noul"], name)
    else:
        _check_probabilities(answer["probabilities"], question["criteria"], name)
        _probability(answer["confidence"], name)
    return {"type": kind} | {field: answer[field] for field in fields}


def _check_probabilities(given: Any, criteria: Any, name: str) -> None:
    """One probability for each option or level: an object by option, or a list in order."""
    named = isinstance(given, dict)
    if not isinstance(given, dict | list) or len(given) != len(criteria):
        raise invalid_result(f"the answer to {name!r} does not give one probability for each option")
    if named and isinstance(criteria, dict) and set(given) != set(criteria):
        raise invalid_result(f"the answer to {name!r} names other options")
    total = 0.0
    for value in given.values() if isinstance(given, dict) else given:
        total += _probability(value, name)
    if abs(total - 1) > PROBABILITY_TOLERANCE:
        raise invalid_result(f"the probabilities of {name!r} sum to {total:.6g}, not to 1")


def _probability(value: object, name: str) -> float:
    probability = _finite(value, f"a probability of {name!r}")
    if not -1e-6 <= probability <= 1 + 1e-6:
        raise invalid_result(f"a probability of {name!r} is outside [0, 1]")
    return probability
