"""What the supervising path stamps and health serves: snapshots with ages, never asked of a worker on request (W10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

LoadState = Literal["loading", "loaded", "failed", "quarantined", "unloaded"]
"""As in the contract's `load_state` (C5)."""
LaneState = Literal["loading", "loaded", "restarting", "failed", "quarantined", "unloaded"]
"""What health shows: `restarting` is a loaded lane without a worker that lives. Requests wait for the next one (D4)."""


@dataclass(frozen=True)
class WorkerHealth:
    """One worker as it was last seen. `state`: `starting`, `idle`, `busy`, `waiting` (for its restart).

    Attributes:
        age_s: since it last showed that it works: a finished unit, a load or a PONG.
        pid, rss_mb, models_loaded, placement_share: of the process that lives; as its last PONG said, 0 before it.
    """

    number: int
    state: Literal["starting", "idle", "busy", "waiting"]
    age_s: float
    pid: int | None = None
    rss_mb: float = 0.0
    models_loaded: int = 0
    placement_share: float | None = None

    @property
    def live(self) -> bool:
        """It has the model and takes work, or does some (W7)."""
        return self.state in ("idle", "busy")


@dataclass(frozen=True)
class LaneHealth:
    """One lane. `age_s` is how old the youngest stamp in it is; `crashes` counts those in the budget's window."""

    path: str
    digest: str
    state: LaneState
    age_s: float
    error: str | None = None
    crashes: int = 0
    workers: tuple[WorkerHealth, ...] = ()
    queued: int = 0
    queued_bytes: int = 0
    units: int = 0
    sequences: int = 0
    parked: int = 0


@dataclass(frozen=True)
class Health:
    """The whole supervisor. `degraded`: M crashes over all keys within the window; it refuses nothing (W9)."""

    degraded: bool
    lanes: tuple[LaneHealth, ...]
    threads_granted: int = 0
    threads: int = 0
    detail: dict[str, str] = field(default_factory=dict)


@dataclass
class Stamps:
    """One worker's stamps, written by the task that runs it. Pure bookkeeping: `seen` is on the caller's clock."""

    number: int
    state: Literal["starting", "idle", "busy", "waiting"] = "starting"
    seen: float = 0.0
    pid: int | None = None
    rss_mb: float = 0.0
    models_loaded: int = 0
    placement_share: float | None = None

    @property
    def live(self) -> bool:
        """See WorkerHealth."""
        return self.state in ("idle", "busy")

    def died(self) -> None:
        """Nothing of a dead process is shown."""
        self.state, self.pid = "waiting", None
        self.rss_mb, self.models_loaded, self.placement_share = 0.0, 0, None

    def snapshot(self, now: float) -> WorkerHealth:
        return WorkerHealth(
            number=self.number,
            state=self.state,
            age_s=max(0.0, now - self.seen),
            pid=self.pid,
            rss_mb=self.rss_mb,
            models_loaded=self.models_loaded,
            placement_share=self.placement_share,
        )
