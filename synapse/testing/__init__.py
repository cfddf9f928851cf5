"""Tools to try what is built on synapse, and workers and hosts of your own (docs/testing.md): a host without processes,
faults from a seed, a journal of what happened, checkers of the promises, callers of all kinds, conformance suites."""

from __future__ import annotations

from synapse.testing.checkers import (
    SAFETY,
    healed,
    left_is_gone,
    no_hang,
    not_admitted_is_true,
    nothing_left,
    nothing_replayed,
    one_outcome,
    outcomes,
    single_lane,
    verdict,
)
from synapse.testing.faultplan import SITES, FaultPlan
from synapse.testing.hosts import BEHAVIOURS, HOST_CHECKS, HostUnderTest, check_host
from synapse.testing.journal import (
    Asked,
    Broke,
    Ended,
    Event,
    Exited,
    Greeted,
    Healed,
    Journal,
    Replied,
    Requested,
    Spawned,
)
from synapse.testing.marks import marked, operation_of, operations_in
from synapse.testing.recorder import Recorder
from synapse.testing.simhost import Entry, SimEngine, SimHost
from synapse.testing.simstream import SimStream, stream_pair
from synapse.testing.streams import STREAM_CHECKS, NonConformance, check_stream, check_streams
from synapse.testing.traffic import Oracle, Traffic
from synapse.testing.workers import WORKER_CHECKS, WorkerUnderTest, check_worker

__all__ = [
    "BEHAVIOURS",
    "HOST_CHECKS",
    "HostUnderTest",
    "NonConformance",
    "STREAM_CHECKS",
    "WORKER_CHECKS",
    "WorkerUnderTest",
    "check_host",
    "check_stream",
    "check_streams",
    "check_worker",
    "SAFETY",
    "SITES",
    "Asked",
    "Broke",
    "Ended",
    "Entry",
    "Event",
    "Exited",
    "FaultPlan",
    "Greeted",
    "Healed",
    "Journal",
    "Oracle",
    "Recorder",
    "Replied",
    "Requested",
    "SimEngine",
    "SimHost",
    "SimStream",
    "Spawned",
    "Traffic",
    "healed",
    "left_is_gone",
    "marked",
    "no_hang",
    "not_admitted_is_true",
    "nothing_left",
    "nothing_replayed",
    "one_outcome",
    "operation_of",
    "operations_in",
    "outcomes",
    "single_lane",
    "stream_pair",
    "verdict",
]
