"""The contract's errors: a fixed code, an outcome, a message; and the one table of codes and statuses."""

from __future__ import annotations

from typing import Literal

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
    ) -> None:
        super().__init__(message)
        self.code, self.outcome, self.message = code, outcome, message
        self.retry_after, self.field, self.kind = retry_after, field, kind

    @property
    def status(self) -> int:
        return STATUS[self.code]
