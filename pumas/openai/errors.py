"""Errors in OpenAI's shape, with the contract's code and outcome beside it (decision C9)."""

from __future__ import annotations

from typing import Any

from pumas.contract.errors import ContractError, retry_after_header

_TYPES = {401: "authentication_error", 403: "permission_error", 503: "service_unavailable_error", 502: "api_error"}


def status_of(error: ContractError) -> int:
    """The HTTP status: the contract's, but 400 for what does not fit the context (decision D9)."""
    return 400 if error.kind == "context_length" else error.status


def error_body(error: ContractError, message: str) -> dict[str, Any]:
    """`{"error": {...}}`; `message` is the redacted text."""
    code = "context_length_exceeded" if error.kind == "context_length" else error.code
    return {
        "error": {
            "message": message,
            "type": _TYPES.get(status_of(error), "invalid_request_error"),
            "param": error.field,
            "code": code,
            "contract_code": error.code,
            "outcome": error.outcome,
        }
    }


def error_headers(error: ContractError) -> list[tuple[str, str]]:
    """`x-pumas-outcome`; `retry-after`; and what keeps OpenAI's client from sending again what must not be replayed
    or cannot succeed (it retries 409 and every 5xx by itself)."""
    headers: list[tuple[str, str]] = [("x-pumas-outcome", error.outcome)]
    retry_after = retry_after_header(error)
    if retry_after is not None:
        headers.append(("retry-after", retry_after))
    if error.outcome == "unknown" or error.retry_after is None:
        headers.append(("x-should-retry", "false"))
    return headers
