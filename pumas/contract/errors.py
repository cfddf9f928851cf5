"""The contract's errors: a fixed code, an outcome, a message; and the one table of codes and statuses."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from pumas.contract.limits import CONTRACT_VERSION
from pumas.contract.redact import redact

Outcome = Literal["not_admitted", "unknown"]

STATUS: dict[str, int] = {
    "invalid_request": 400,
    "unsupported_contract": 400,
    "unauthenticated": 401,  # additive
    "forbidden": 403,  # additive
    "not_found": 404,  # additive: an unknown route
    "model_not_found": 404,
    "method_not_allowed": 405,  # additive
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
"""HTTP status by code (contract, Errors)."""


class ContractError(Exception):
    """A refusal or failure as the consumer sees it.

    Attributes:
        code: a key of STATUS.
        outcome: whether a provider can have seen the operation (decision C3).
        message: names field, limit and value, or the provider's reason; redacted before it leaves.
        retry_after: seconds, where waiting helps (decision C4).
        field: the request field it is about, where there is one (OpenAI's `param`).
        kind: a finer reason that other routes need, such as "context_length" (decision D9).
        logged: the log knows what happened already: nothing needs to repeat it.
        request_id: the caller's, where the body was JSON with a valid one; set by whoever decodes the body.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        outcome: Outcome = "not_admitted",
        retry_after: float | None = None,
        field: str | None = None,
        kind: str | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.outcome, self.message = code, outcome, message
        self.retry_after, self.field, self.kind = retry_after, field, kind
        self.request_id = request_id
        self.logged = False

    @property
    def status(self) -> int:
        return STATUS[self.code]


def over_limit(name: str, value: float, limit: float, unit: str = "", *, field: str | None = None) -> ContractError:
    """The refusal of something over a bound: names the bound and the request's value."""
    behind = f" {unit}" if unit else ""
    return ContractError(
        "request_limit", f"{name} is {value:.15g}, over the limit of {limit:.15g}{behind}", field=field
    )


def invalid(message: str, field: str | None = None) -> ContractError:
    return ContractError("invalid_request", message, field=field)


class ErrorRecord(msgspec.Struct, frozen=True):
    """What `error` holds in an error body and in a `failed` event."""

    code: str
    outcome: str
    message: str


class _ErrorBody(msgspec.Struct, frozen=True):
    contract_version: int
    request_id: str | None
    error: ErrorRecord


def error_record(error: ContractError) -> ErrorRecord:
    """The record that leaves: its message bounded and redacted."""
    return ErrorRecord(error.code, error.outcome, redact(error.message))


def encode_error(error: ContractError, request_id: str | None = None) -> bytes:
    """The body of an error response. `request_id` where the caller knows it, else the error's own."""
    chosen = error.request_id if request_id is None else request_id
    return msgspec.json.encode(_ErrorBody(CONTRACT_VERSION, chosen, error_record(error)))


def retry_after_header(error: ContractError) -> str | None:
    """`Retry-After` in whole seconds, at least 1; None where waiting does not help."""
    return None if error.retry_after is None else str(max(1, math.ceil(error.retry_after)))
