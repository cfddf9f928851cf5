"""What goes into the next unit of work: a pure function of events (docs/scheduler.md)."""

from __future__ import annotations

from synapse.policy.scheduler.admission import Budgets
from synapse.policy.scheduler.core import Counts, Scheduler
from synapse.policy.scheduler.work import (
    Admitted,
    AnyUnit,
    BatchUnit,
    BatchWork,
    Completed,
    ControlUnit,
    DecodeUnit,
    Effect,
    Failed,
    GenerateUnit,
    GenerateWork,
    Ids,
    Progressed,
    Rejected,
    Start,
    StartUnit,
    State,
    Work,
)
from synapse.policy.scheduler.workers import SchedulerConfig

__all__ = [
    "Admitted",
    "AnyUnit",
    "BatchUnit",
    "BatchWork",
    "Budgets",
    "Completed",
    "ControlUnit",
    "Counts",
    "DecodeUnit",
    "Effect",
    "Failed",
    "GenerateUnit",
    "GenerateWork",
    "Ids",
    "Progressed",
    "Rejected",
    "Scheduler",
    "SchedulerConfig",
    "Start",
    "StartUnit",
    "State",
    "Work",
]
