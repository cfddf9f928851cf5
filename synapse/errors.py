"""The errors of synapse, split by what the caller may conclude from them.

`NotAdmitted` means that no byte of the request reached a worker; `OutcomeUnknown` means that it was handed over and
its result cannot be established (decision C3). Attributes are data; no message is ever parsed.
"""

from __future__ import annotations

from typing import Literal

Stage = Literal["spawn", "handshake", "load", "request", "timeout", "protocol", "idle"]
"""Where a worker died (decision W7)."""

ErrCode = Literal[
    "artifact_invalid",
    "oom",
    "config_invalid",
    "invalid_request",
    "model_not_loaded",
    "unsupported",
    "unknown_type",
    "engine_failed",
]
"""What a worker's ERR may say (decision W11)."""


class SynapseError(Exception):
    """Base of every error that synapse raises on purpose."""


class NotAdmitted(SynapseError):
    """No provider effect happened: nothing of the request reached a worker."""


class Overloaded(NotAdmitted):
    """A queue or budget is full, or a place in it was not reached in time.

    Attributes:
        budget: which one ("requests", "bytes", "tokens", "max_queue").
        value, limit: what the request would have made it, and what it may be. Units are the budget's.
        retry_after: seconds after which trying again makes sense, or None.
    """

    def __init__(self, budget: str, value: float, limit: float, retry_after: float | None = 1.0) -> None:
        super().__init__(f"{budget}: {value:g} is over the limit of {limit:g}")
        self.budget, self.value, self.limit, self.retry_after = budget, value, limit, retry_after


class InvalidInput(NotAdmitted):
    """The input cannot be served as it is: a bad grammar, a template that raises, an id out of range."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InputTooLarge(NotAdmitted):
    """The input is over a measured bound. `index` names the item of a batch, where there is one."""

    def __init__(self, what: str, value: int, limit: int, *, index: int | None = None, detail: str = "") -> None:
        at = "" if index is None else f" of item {index}"
        super().__init__(f"{what}{at} is {value}, over the limit of {limit}{detail}")
        self.what, self.value, self.limit, self.index = what, value, limit, index


class LaneUnavailable(NotAdmitted):
    """The lane cannot take work now. `reason` is one of the contract's availability reasons (decision C4)."""

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


class Quarantined(LaneUnavailable):
    """The (artifact, runtime_config) spent its crash budget; only a probe lifts it (decision W9)."""

    def __init__(self, message: str, crashes: int) -> None:
        super().__init__("quarantined", message)
        self.crashes = crashes


class OutcomeUnknown(SynapseError):
    """The request was handed to a worker and its result cannot be established."""


class EngineCrashed(OutcomeUnknown):
    """The worker died or had to be killed.

    Attributes:
        stage: where (decision W7).
        exit_status: its exit status, negative for a signal, None where it is not known.
        log_tail: the last 8 KiB of its output. For library users and logs, never for HTTP clients (decision D12).
    """

    def __init__(self, stage: Stage, message: str, *, exit_status: int | None = None, log_tail: str = "") -> None:
        super().__init__(f"engine_crashed at stage {stage}: {message}")
        self.stage, self.exit_status, self.log_tail = stage, exit_status, log_tail


class EngineRefused(OutcomeUnknown):
    """The worker answered ERR."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class InvalidEngineResult(OutcomeUnknown):
    """The worker's reply is not what the request asked for (shape, count, finiteness)."""


class SetupError(SynapseError):
    """The surroundings do not fit: runtime directory, socket path, configuration, a missing program."""


class ProtocolError(SynapseError):
    """Base of the wire's two errors."""


class LocalProtocolError(ProtocolError):
    """Our side did what the protocol forbids: a bug of ours."""


class RemoteProtocolError(ProtocolError):
    """The peer did what the protocol forbids. The only exception that a peer's bytes may cause."""
