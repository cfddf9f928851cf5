"""The one table from synapse's errors to the contract's (decisions C3, C4, D4, D9, D12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pumas.contract.errors import ContractError, Outcome
from synapse import errors as synapse_errors


def _overloaded(error: synapse_errors.Overloaded) -> ContractError:
    return ContractError("capability_unavailable", f"the queue is full: {error}", retry_after=error.retry_after or 1.0)


def _invalid_input(error: synapse_errors.InvalidInput) -> ContractError:
    return ContractError("invalid_request", str(error), field=error.field)


def _too_large(error: synapse_errors.InputTooLarge) -> ContractError:
    kind = "context_length" if "token" in error.what else None
    return ContractError("request_limit", str(error), kind=kind)


def _unavailable(error: synapse_errors.LaneUnavailable) -> ContractError:
    return ContractError("capability_unavailable", f"{error.reason}: {error}", retry_after=error.retry_after)


def _not_admitted(error: synapse_errors.SynapseError) -> ContractError:
    return ContractError("capability_unavailable", str(error))


def _refused(error: synapse_errors.EngineRefused) -> ContractError:
    return _unknown("provider_failure", f"the engine refused: {error}")


def _crashed(error: synapse_errors.EngineCrashed) -> ContractError:
    return _unknown("provider_failure", str(error))


def _bad_result(error: synapse_errors.SynapseError) -> ContractError:
    return _unknown("invalid_provider_result", str(error))


def _failed(error: synapse_errors.SynapseError) -> ContractError:
    return _unknown("provider_failure", str(error))


def _unknown(code: str, message: str) -> ContractError:
    outcome: Outcome = "unknown"
    return ContractError(code, message, outcome=outcome)


TABLE: dict[type[synapse_errors.SynapseError], Callable[..., ContractError]] = {
    synapse_errors.Overloaded: _overloaded,
    synapse_errors.InvalidInput: _invalid_input,
    synapse_errors.InputTooLarge: _too_large,
    synapse_errors.LaneUnavailable: _unavailable,
    synapse_errors.Quarantined: _unavailable,
    synapse_errors.NotAdmitted: _not_admitted,
    synapse_errors.SetupError: _not_admitted,
    synapse_errors.EngineCrashed: _crashed,
    synapse_errors.EngineRefused: _refused,
    synapse_errors.InvalidEngineResult: _bad_result,
    synapse_errors.OutcomeUnknown: _failed,
    synapse_errors.LocalProtocolError: _failed,
    synapse_errors.RemoteProtocolError: _failed,
    synapse_errors.ProtocolError: _failed,
    synapse_errors.SynapseError: _failed,
}
"""Exact types; a test demands a row for each class of synapse.errors."""


def contract_error(error: synapse_errors.SynapseError) -> ContractError:
    """What the client is told: never a log tail (D12)."""
    for kind in type(error).__mro__:
        row = TABLE.get(kind)
        if row is not None:
            return row(error)
    raise TypeError(f"{type(error).__name__} is no error of synapse")


@contextmanager
def translated(model: str, content: str | None = None) -> Iterator[None]:
    """Turn synapse's errors into the contract's. What a lane logs by itself (crashes) is marked so.

    Args:
        content: the request's field that holds what is measured in tokens.
    """
    try:
        yield
    except synapse_errors.SynapseError as error:
        translation = contract_error(error)
        if translation.kind == "context_length" and translation.field is None:
            translation.field = content
        if isinstance(error, synapse_errors.Quarantined):
            translation.message += f"; to try again: pumas probe {model}"
        translation.logged = isinstance(error, synapse_errors.EngineCrashed)
        raise translation from error
