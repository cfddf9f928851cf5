"""Tools for tests of what is built on synapse: a host without processes, and faults from a seed (docs/scheduler.md)."""

from __future__ import annotations

from synapse.testing.faultplan import SITES, FaultPlan
from synapse.testing.simhost import Entry, SimEngine, SimHost

__all__ = ["SITES", "Entry", "FaultPlan", "SimEngine", "SimHost"]
