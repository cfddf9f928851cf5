"""Synapse: engines that may abort, hang or leak, in supervised worker processes, as plain async calls.

    async with synapse.open_supervisor() as supervisor:
        lane = await supervisor.load("model.gguf")

Names are loaded when they are used (PEP 562): a worker that imports `synapse.wire` gets neither trio nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from synapse.errors import (
        EngineCrashed,
        EngineRefused,
        InputTooLarge,
        InvalidEngineResult,
        InvalidInput,
        LaneUnavailable,
        NotAdmitted,
        OutcomeUnknown,
        Overloaded,
        Quarantined,
        SetupError,
        SynapseError,
    )
    from synapse.host import ManagedProcess, managed_process
    from synapse.lane import Delta, Generation, GenerationStream, Lane, Profile
    from synapse.limits import Limits
    from synapse.policy.health import Health, LaneHealth, LaneState, LoadState, WorkerHealth
    from synapse.supervisor import Supervisor, SupervisorConfig, open_supervisor
    from synapse.text import RenderedPrompt, TextService
    from synapse.wire.messages import Measured, ModelFile, ModelInfo, Sampling, TokenLogprob

_HOMES = {
    "synapse.errors": (
        "EngineCrashed",
        "EngineRefused",
        "InputTooLarge",
        "InvalidEngineResult",
        "InvalidInput",
        "LaneUnavailable",
        "NotAdmitted",
        "OutcomeUnknown",
        "Overloaded",
        "Quarantined",
        "SetupError",
        "SynapseError",
    ),
    "synapse.host": ("ManagedProcess", "managed_process"),
    "synapse.lane": ("Delta", "Generation", "GenerationStream", "Lane", "Profile"),
    "synapse.limits": ("Limits",),
    "synapse.policy.health": ("Health", "LaneHealth", "LaneState", "LoadState", "WorkerHealth"),
    "synapse.supervisor": ("Supervisor", "SupervisorConfig", "open_supervisor"),
    "synapse.text": ("RenderedPrompt", "TextService"),
    "synapse.wire.messages": ("Measured", "ModelFile", "ModelInfo", "Sampling", "TokenLogprob"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Delta",
    "EngineCrashed",
    "EngineRefused",
    "Generation",
    "GenerationStream",
    "Health",
    "InputTooLarge",
    "InvalidEngineResult",
    "InvalidInput",
    "Lane",
    "LaneHealth",
    "LaneState",
    "LaneUnavailable",
    "Limits",
    "LoadState",
    "ManagedProcess",
    "Measured",
    "ModelFile",
    "ModelInfo",
    "NotAdmitted",
    "OutcomeUnknown",
    "Overloaded",
    "Profile",
    "Quarantined",
    "RenderedPrompt",
    "Sampling",
    "SetupError",
    "Supervisor",
    "SupervisorConfig",
    "SynapseError",
    "TextService",
    "TokenLogprob",
    "WorkerHealth",
    "managed_process",
    "open_supervisor",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'synapse' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
