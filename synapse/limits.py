"""Every number of supervision in one place (decision D15). All times are seconds, all sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Deadlines, budgets and sizes. The defaults are the project's; a test or a user may replace any of them."""

    boot_s: float = 10.0
    """Spawn to HELLO_ACK (W6)."""
    load_base_s: float = 60.0
    """Deadline of LOAD, and on top of it one for the file's size."""
    load_s_per_100_mb: float = 1.0
    """Added to load_base_s for each 100 MB of the file."""
    unit_min_s: float = 5.0
    """Smallest deadline of a unit of work."""
    unit_factor: float = 20.0
    """A unit's deadline as a multiple of what the lane measured for its size."""
    ping_every_s: float = 10.0
    """Between two PINGs of an idle worker."""
    ping_s: float = 5.0
    """Deadline of a PING."""
    crashes_per_key: int = 3
    """N: so many crashes of one key within the window quarantine it (W9)."""
    crashes_overall: int = 10
    """M: so many crashes over all keys within the window degrade the engine kind."""
    crash_window_s: float = 300.0
    """The window that crashes are counted in."""
    backoff_first_s: float = 0.5
    """Before the first restart; doubled for each further one."""
    backoff_max_s: float = 30.0
    """The longest wait before a restart."""
    backoff_jitter: float = 0.2
    """Part of the wait that is random: 0.2 is 20 % either way."""
    shutdown_grace_s: float = 3.0
    """After SHUTDOWN, before SIGTERM."""
    terminate_grace_s: float = 2.0
    """After SIGTERM, before SIGKILL."""
    reap_s: float = 30.0
    """After SIGKILL; a process that is not gone by then hangs in the kernel and is reported without a status."""
    quantum_ms: float = 50.0
    """Target of one DECODE quantum."""
    unit_ms: float = 250.0
    """Target of any other unit."""
    log_ring_bytes: int = 256 * 1024
    """What is kept of a worker's output."""
    log_tail_bytes: int = 8 * 1024
    """What of it is attached to a crash."""
    max_frame_bytes: int = 64 * 1024 * 1024
    """Bound of a raw frame that the module offers in the handshake."""
    lane_requests: int = 4096
    """Requests that may be queued in one lane."""
    lane_bytes: int = 64 * 1024 * 1024
    """Bytes that may be queued in one lane."""
    max_queue_s: float = 10.0
    """How long a request waits for its turn unless it says otherwise (D11)."""
    grammar_bytes: int = 256 * 1024
    """The longest grammar or JSON Schema."""
    text_s: float = 15.0
    """Deadline of a request to a text process, opening the model included; CPU time has tighter bounds of its own."""
    text_s_per_mb: float = 10.0
    """... and for each megabyte of text."""
    ingest_base_s: float = 120.0
    """Deadline of reading a model file for the first time, and on top of it one for its size."""
    ingest_s_per_100_mb: float = 2.0
    """Added to ingest_base_s for each 100 MB of the file."""

    def load_s(self, size_bytes: int) -> float:
        """The deadline of LOAD for an artifact of this size, in seconds."""
        return self.load_base_s + self.load_s_per_100_mb * size_bytes / 100e6

    def ingest_s(self, size_bytes: int) -> float:
        """The deadline of INGEST for a file of this size, in seconds."""
        return self.ingest_base_s + self.ingest_s_per_100_mb * size_bytes / 100e6
