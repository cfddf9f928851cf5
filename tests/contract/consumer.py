"""A strict consumer, written from *Model operations, contract version 1* alone: it imports nothing of what it checks.

The `read_*` functions check bytes, `Consumer` speaks HTTP with the standard library (blocking: call it in a thread).
Whatever the contract promises and an answer breaks is a `Violation`; what the contract lets grow is ignored.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

MIB = 1024 * 1024
STATUS = {
    "invalid_request": 400,
    "unsupported_contract": 400,
    "model_not_found": 404,
    "ambiguous_model": 409,
    "ambiguous_operation": 409,
    "request_limit": 413,
    "unsupported_modality": 422,
    "capability_unavailable": 503,
    "provider_failure": 502,
    "invalid_provider_result": 502,
    "response_limit": 502,
    "transport_lost": 502,
}
FINISH_REASONS = {"stop", "length", "content_filter"}
RESULT_KINDS = {
    "text": "text",
    "embeddings_float32": "embeddings",
    "png_base64": "image",
    "decisions": "decisions",
    "relevance_scores": "relevance_scores",
}
CAPABILITIES = {
    "chat_generation", "text_generation", "text_embedding", "image_generation", "image_to_text", "multimodal_embedding",
    "decision", "rerank", "audio_transcription", "audio_classification",
}  # fmt: skip


class Violation(AssertionError):
    """An answer is not what the contract promises."""


class Refused(Exception):
    """A correct error answer."""

    def __init__(self, status: int, error: dict[str, Any], retry_after: str | None = None) -> None:
        super().__init__(f"{status} {error['code']} {error['outcome']}: {error['message']}")
        self.status, self.retry_after = status, retry_after
        self.code: str = error["code"]
        self.outcome: str = error["outcome"]
        self.message: str = error["message"]


class Truncated(Exception):
    """A stream ended without its terminal: the outcome is unknown, and certainly no success."""


def need(condition: object, message: str) -> None:
    if not condition:
        raise Violation(message)


# --- JSON and members ------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> Any:
    """JSON with finite numbers, no key given twice, no lone surrogate."""

    def constant(word: str) -> None:
        raise Violation(f"{word} is no JSON")

    def number(text: str) -> float:
        value = float(text)
        need(math.isfinite(value), f"{text[:40]} is not finite")
        return value

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        need(len({key for key, _ in pairs}) == len(pairs), "a key is given twice")
        return dict(pairs)

    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=constant, parse_float=number, object_pairs_hook=members)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except ValueError as error:
        raise Violation(f"not JSON: {error}") from None
    return value


def member(holder: Any, name: str, kind: type | tuple[type, ...]) -> Any:
    """A required member of the right type; true and false are no numbers."""
    need(isinstance(holder, dict), f"{holder!r:.60} is no object")
    need(name in holder, f"`{name}` is missing")
    value = holder[name]
    wanted = kind if isinstance(kind, tuple) else (kind,)
    need(isinstance(value, kind), f"`{name}` is {value!r:.60}")
    need(not isinstance(value, bool) or bool in wanted, f"`{name}` is {value!r}")
    return value


def strings(holder: Any, name: str) -> list[str]:
    values: list[str] = member(holder, name, list)
    need(all(isinstance(value, str) for value in values), f"`{name}` holds something else than strings")
    need(len(set(values)) == len(values), f"`{name}` holds something twice")
    return values


def versions(holder: Any) -> None:
    supported = member(holder, "supported_contract_versions", list)
    need(1 in supported, "contract version 1 is not supported")


# --- errors ----------------------------------------------------------------------------------------------------------


def read_error(status: int, body: bytes, request_id: str | None) -> dict[str, Any]:
    """The fixed error shape; its status fits its code. Codes that are not known here were added, and may have any."""
    value = read_json(body)
    need(member(value, "contract_version", int) == 1, "an error of another contract version")
    need("request_id" in value, "`request_id` is missing")
    need(value["request_id"] == request_id, f"request_id {value['request_id']!r} instead of {request_id!r}")
    return check_error_record(member(value, "error", dict), status)


def check_error_record(error: dict[str, Any], status: int | None) -> dict[str, Any]:
    code, outcome = member(error, "code", str), member(error, "outcome", str)
    need(outcome in ("not_admitted", "unknown"), f"outcome {outcome!r}")
    need(member(error, "message", str).strip(), "an error without a message")
    if status is not None:
        need(400 <= status <= 599, f"an error with status {status}")
        need(STATUS.get(code, status) == status, f"{code} with status {status}")
    return error


# --- discovery -------------------------------------------------------------------------------------------------------


def read_bounds(value: Any) -> None:
    versions(value)
    need(member(value, "max_request_bytes", int) == 32 * MIB, "another request bound")
    need(member(value, "max_response_bytes", int) == 32 * MIB, "another response bound")
    need(member(value, "max_stream_event_bytes", int) == 256 * 1024, "another event bound")


def read_served_models(body: bytes) -> list[dict[str, Any]]:
    """The entries of GET /v1/served-models: one for each (model, profile)."""
    value = read_json(body)
    read_bounds(value)
    models: list[dict[str, Any]] = member(value, "models", list)
    pairs = [(member(entry, "model", str), member(entry, "profile", str)) for entry in models]
    need(len(set(pairs)) == len(pairs), "a (model, profile) is listed twice")
    aliases = [alias for alias, _ in pairs]
    for entry in models:
        check_identity(entry)
        for name in ("model_id", "provider", "load_state"):
            need(member(entry, name, str), f"`{name}` is empty")
        several = aliases.count(entry["model"]) > 1
        need(member(entry, "profile_required", bool) is several, "`profile_required` does not say what the list shows")
        check_model(entry)
    return models


def read_capabilities(body: bytes, model: str, profile: str | None = None) -> dict[str, Any]:
    """The answer of GET /v1/capabilities for one serving identity."""
    value: dict[str, Any] = read_json(body)
    read_bounds(value)
    check_identity(value)
    need(value["model"] == model, f"capabilities of {value['model']!r} instead of {model!r}")
    need(profile in (None, value["profile"]), f"capabilities of profile {value['profile']!r}")
    check_model(value)
    return value


def check_identity(entry: dict[str, Any]) -> None:
    model, profile = member(entry, "model", str), member(entry, "profile", str)
    need(model and model == model.strip() and len(model.encode()) <= 256, f"alias {model!r}")
    need(not any(ord(letter) < 32 or ord(letter) == 127 for letter in model), f"alias {model!r}")
    need(re.fullmatch(r"[A-Za-z0-9_.-]{1,128}", profile), f"profile {profile!r}")


def check_model(entry: dict[str, Any]) -> None:
    if "context_tokens" in entry:
        need(member(entry, "context_tokens", int) > 0, "`context_tokens` is not positive")
    modalities = member(entry, "modalities", dict)
    takes, gives = set(strings(modalities, "input")), set(strings(modalities, "output"))
    descriptors = member(entry, "capabilities", list)
    names = [member(descriptor, "capability", str) for descriptor in descriptors]
    need(len(set(names)) == len(names), "a capability is listed twice")
    need(set(names) >= CAPABILITIES, f"not listed: {CAPABILITIES - set(names)}")
    for descriptor in descriptors:
        check_descriptor(descriptor, takes, gives)


def check_descriptor(descriptor: dict[str, Any], takes: set[str], gives: set[str]) -> None:
    name = descriptor["capability"]
    need(member(descriptor, "semantic_task", str), f"{name} without a semantic task")
    strings(descriptor, "input_formats")
    strings(descriptor, "output_formats")
    inputs, outputs = strings(descriptor, "input_modalities"), strings(descriptor, "output_modalities")
    streaming = member(descriptor, "streaming", bool)
    need(set(inputs) <= takes, f"{name} takes {inputs}, the model only {takes}")
    availability = member(descriptor, "availability", dict)
    state = member(availability, "state", str)
    need(state in ("available", "unavailable"), f"{name} is {state!r}")
    if state == "unavailable":
        need(member(availability, "reason", str), f"{name} is unavailable without a reason")
    else:
        need(takes and gives, f"{name} is available, but the runtime declared nothing")
        need(set(outputs) <= gives, f"{name} gives {outputs}, the model only {gives}")
        need(descriptor["input_formats"] and descriptor["output_formats"], f"{name} is available without formats")
        need(not name.startswith("audio_"), f"{name} is reserved")
        need(not streaming or "text" in descriptor["output_formats"], f"{name} streams, but gives no text")
    bounds = member(descriptor, "option_bounds", list)
    options = [member(bound, "option", str) for bound in bounds]
    need(len(set(options)) == len(options), f"{name} bounds an option twice")
    for bound in bounds:
        low, high = member(bound, "minimum", (int, float)), member(bound, "maximum", (int, float))
        need(low <= high, f"{name}: {bound['option']} from {low} to {high}")


# --- finite results --------------------------------------------------------------------------------------------------


def read_result(body: bytes, request: dict[str, Any]) -> dict[str, Any]:
    """The result of a finite success: it answers this request, of the kind that `output` asks for."""
    need(len(body) <= 32 * MIB, "over the response bound")
    value = read_json(body)
    need(member(value, "contract_version", int) == 1, "another contract version")
    need(member(value, "request_id", str) == request["request_id"], "another request's answer")
    result: dict[str, Any] = member(value, "result", dict)
    kind = member(result, "kind", str)
    need(kind == RESULT_KINDS.get(request["output"]), f"a result of kind {kind!r} for {request['output']!r}")
    _CHECKS[kind](result, request)
    return result


def _check_text(result: dict[str, Any], request: dict[str, Any]) -> None:
    member(result, "text", str)
    need(member(result, "finish_reason", str) in FINISH_REASONS, f"finish reason {result['finish_reason']!r}")


def _check_embeddings(result: dict[str, Any], request: dict[str, Any]) -> None:
    vectors = member(result, "vectors", list)
    content = request["input"]
    count = len(content.get("texts") or content.get("items") or [content])
    need(len(vectors) == count, f"{len(vectors)} vectors for {count} inputs")
    widths = {len(vector) for vector in vectors if isinstance(vector, list)}
    need(len(widths) == 1 and widths != {0}, f"vectors of widths {widths}")
    wanted = (request.get("options") or {}).get("dimensions")
    need(wanted in (None, *widths), f"{widths} dimensions instead of {wanted}")
    for vector in vectors:
        need(all(type(item) in (int, float) for item in vector), "a vector holds something else than numbers")
        for item in vector:
            need(abs(item) < 3.4028236e38, "a value is no float32")
        norm = math.sqrt(math.fsum(item * item for item in vector))
        need(abs(norm - 1) < 1e-5, f"a vector of length {norm}")


def _check_image(result: dict[str, Any], request: dict[str, Any]) -> None:
    member(result, "seed", int)
    png = base64.b64decode(member(result, "png_base64", str), validate=True)
    need(png.startswith(b"\x89PNG\r\n\x1a\n") and png[12:16] == b"IHDR", "the image is no PNG")
    sides = struct.unpack(">II", png[16:24])
    need(sides == (request["options"]["width"], request["options"]["height"]), f"an image of {sides}")


def _check_scores(result: dict[str, Any], request: dict[str, Any]) -> None:
    need(member(result, "input_tokens", int) >= 0, "a negative count")
    entries = member(result, "results", list)
    documents = len(request["input"]["documents"])
    top_n = (request.get("options") or {}).get("top_n") or documents
    need(len(entries) == min(top_n, documents), f"{len(entries)} results of {documents} documents, top_n {top_n}")
    order = [(-member(entry, "relevance_score", (int, float)), member(entry, "index", int)) for entry in entries]
    need(all(0 <= index < documents for _, index in order), "an index of no document")
    need(len({index for _, index in order}) == len(order), "a document twice")
    need(order == sorted(order), "not ordered by score, ties by document")


def _check_decisions(result: dict[str, Any], request: dict[str, Any]) -> None:
    need(member(result, "input_tokens", int) >= 0, "a negative count")
    answers = member(result, "answers", dict)
    questions = request["input"]["questions"]
    need(set(answers) == set(questions), f"answers to {set(answers)}")
    for name, question in questions.items():
        answer = answers[name]
        need(member(answer, "type", str) == question["type"], f"{name}: answer of type {answer['type']!r}")
        if question["type"] == "noul":
            need(0 <= member(answer, "noul", (int, float)) <= 1, f"{name}: {answer['noul']}")
            continue
        need(0 <= member(answer, "confidence", (int, float)) <= 1, f"{name}: confidence")
        need(len(member(answer, "probabilities", (dict, list))) == len(question["criteria"]), f"{name}: probabilities")
        if question["type"] == "choice":
            need(member(answer, "choice", str) in question["criteria"], f"{name}: {answer['choice']!r}")
        else:
            need(0 <= member(answer, "score", (int, float)) <= len(question["criteria"]) - 1, f"{name}: the score")
            need("legend" in answer, f"{name}: no legend")


_CHECKS = {
    "text": _check_text,
    "embeddings": _check_embeddings,
    "image": _check_image,
    "relevance_scores": _check_scores,
    "decisions": _check_decisions,
}


# --- streams ---------------------------------------------------------------------------------------------------------


@dataclass
class Stream:
    """A streamed operation read to its end."""

    started: dict[str, Any]
    text: str = ""
    deltas: list[str] = field(default_factory=list)
    finish_reason: str = ""


def parse_events(body: bytes) -> Iterator[tuple[str, str]]:
    """(name, data) of the complete events of an event stream; what is not ended by a blank line is dropped."""
    name, data = "", list[str]()
    lines = body.decode("utf-8", errors="strict").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if not line:
            if data:
                yield name, "\n".join(data)
            name, data = "", []
        elif not line.startswith(":"):
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if key == "event":
                name = value
            elif key == "data":
                data.append(value)


def read_stream(body: bytes, request: dict[str, Any], *, clean_end: bool) -> Stream:
    """A stream as it came; `clean_end`: the transport says that this was all.

    Raises: Refused: a correct `failed`. Truncated: no terminal, or no clean end. Violation.
    """
    need(len(body) <= 32 * MIB, "over the cumulative bound")
    try:
        events = list(parse_events(body))
    except UnicodeDecodeError:
        if clean_end:
            raise Violation("not UTF-8") from None
        raise Truncated from None
    stream: Stream | None = None
    ended = False
    for name, text in events:
        need(len(text.encode()) <= 256 * 1024, "over the event bound")
        data = read_json(text.encode())
        need(member(data, "kind", str) == name, f"event {name!r} of kind {data['kind']!r}")
        need(member(data, "request_id", str) == request["request_id"], "another request's event")
        need(not ended, f"{name!r} behind the terminal")
        if name == "failed":
            need(clean_end or stream is not None, "failed without a stream")
            raise Refused(200, check_error_record(member(data, "error", dict), None))
        if name == "started":
            need(stream is None, "started twice")
            need(member(data, "contract_version", int) == 1, "another contract version")
            need(member(data, "model", str) == request["model"], "another model's stream")
            need(request.get("profile") in (None, member(data, "profile", str)), "another profile's stream")
            need(request.get("capability") in (None, member(data, "capability", str)), "another capability")
            stream = Stream(data)
            continue
        need(stream is not None, f"{name!r} before started")
        assert stream is not None
        if name == "delta":
            stream.deltas.append(member(data, "text", str))
        elif name == "completed":
            stream.finish_reason = member(data, "finish_reason", str)
            need(stream.finish_reason in FINISH_REASONS, f"finish reason {stream.finish_reason!r}")
            ended = True
    if stream is None or not ended or not clean_end:
        raise Truncated
    stream.text = "".join(stream.deltas)
    return stream


# --- HTTP ------------------------------------------------------------------------------------------------------------


class Consumer:
    """The contract over HTTP, one connection for each call. Blocking; every wait ends after `timeout_s`."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 60.0) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._address = (parts.hostname, parts.port or 80)
        self._headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        self._timeout_s = timeout_s

    def served_models(self) -> list[dict[str, Any]]:
        status, headers, body, _ = self._call("GET", "/v1/served-models")
        if status != 200:
            raise Refused(status, read_error(status, body, None), headers.get("retry-after"))
        return read_served_models(body)

    def capabilities(self, model: str, profile: str | None = None) -> dict[str, Any]:
        query = f"?model={quote(model, safe='')}" + (f"&profile={quote(profile, safe='')}" if profile else "")
        status, headers, body, _ = self._call("GET", "/v1/capabilities" + query)
        if status != 200:
            raise Refused(status, read_error(status, body, None), headers.get("retry-after"))
        return read_capabilities(body, model, profile)

    def operate(self, request: dict[str, Any]) -> dict[str, Any]:
        """A finite operation's result. Raises: Refused."""
        status, headers, body, clean = self._call("POST", "/v1/model-operations", request)
        need(clean, "a finite answer was cut")
        need(headers.get("content-type", "").startswith("application/json"), f"type {headers.get('content-type')!r}")
        if status != 200:
            raise Refused(status, read_error(status, body, request.get("request_id")), headers.get("retry-after"))
        return read_result(body, request)

    def stream(self, request: dict[str, Any]) -> Stream:
        """A streamed operation, read to its end. Raises: Refused, Truncated."""
        status, headers, body, clean = self._call("POST", "/v1/model-operations", request | {"stream": True})
        if status != 200:
            raise Refused(status, read_error(status, body, request.get("request_id")), headers.get("retry-after"))
        need(headers.get("content-type", "").startswith("text/event-stream"), f"type {headers.get('content-type')!r}")
        return read_stream(body, request, clean_end=clean)

    def raw(self, body: bytes, request_id: str | None) -> dict[str, Any]:
        """Send a body as it is; it must be refused. Returns the error record."""
        status, _, answer, _ = self._call("POST", "/v1/model-operations", body)
        need(status != 200, "a broken body was served")
        return read_error(status, answer, request_id)

    def _call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], bytes, bool]:
        """Status, headers, body, and whether the transport ended it cleanly."""
        connection = http.client.HTTPConnection(*self._address, timeout=self._timeout_s)
        try:
            data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, data, self._headers)
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            try:
                return response.status, headers, response.read(), True
            except http.client.IncompleteRead as error:
                return response.status, headers, error.partial, False
            except (ConnectionError, http.client.HTTPException):
                return response.status, headers, b"", False
        finally:
            connection.close()
