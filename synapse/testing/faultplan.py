"""Which faults strike, drawn from a seed: the same seed and the same questions give the same answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

SITES: dict[str, str] = {
    "spawn_fails": "the system refuses to start it",
    "exit_at_boot": "ends before it connects",
    "mute_at_boot": "never connects",
    "mute_in_handshake": "connects and says nothing",
    "wrong_nonce": "says HELLO with another nonce",
    "wrong_version": "says HELLO for version 2",
    "hello_twice": "says HELLO twice",
    "slow_load": "loads for longer than a boot may take",
    "crash_in_load": "ends while it loads",
    "crash_in_request": "ends before it answers",
    "exit_in_request": "ends with status 0 before it answers",
    "crash_in_reply": "ends in the middle of its answer",
    "cut_in_reply": "ends between its answer's header and the raw frame",
    "crash_after_reply": "ends right after its answer, idle",
    "half_close": "closes its side of the connection instead of answering, and lives on",
    "reset": "breaks the connection while it is written to",
    "hang": "never answers, and ignores SIGTERM",
    "pause": "stops in the middle of its answer and goes on later",
    "slow": "takes much longer, but within its deadline",
    "deaf": "stops reading, idle",
    "ignore_shutdown": "neither SHUTDOWN nor SIGTERM ends it",
    "unkillable": "SIGKILL ends it after a long time only, as one that hangs in a driver",
    "fragment": "sends its answer byte by byte",
    "drip": "sends its answer in many small pieces with pauses",
    "garbage": "answers with a frame that claims 2**32 - 1 bytes",
    "empty_frame": "answers with an empty frame",
    "malformed": "answers with what is no JSON of ours",
    "unknown_reply": "answers with a type that nobody knows",
    "wrong_kind": "answers with another request's type",
    "other_request": "answers another request",
    "unsolicited": "answers twice",
    "raw_lie": "sends a raw frame of another length than its header says",
    "dims_lie": "says one dimension more than it sends",
    "nan": "sends a NaN",
    "unknown_sequence": "reports on a sequence that nobody started",
    "err": "answers ERR engine_failed",
    "err_flood": "answers ERR with a megabyte of text full of control characters",
}
"""Everything that a virtual worker may do wrong, and what it means."""


class FaultPlan:
    """Two coins: at first each site is armed or not, then an armed site strikes with its probability each time.

    So one run sees few kinds of faults often, instead of every kind everywhere. `heal()` ends all faults; what is asked
    afterwards must succeed.

    Args:
        seed: of both coins.
        probability: of an armed site, each time that it is asked.
        armed: how likely a site is to be armed.
        sites: probabilities of single sites instead; a site that is missing is not armed then.

    Attributes:
        fired: how often each site struck.
        fired_at: how often each site struck at each place (`boot`, `HELLO`, a request's type).
    """

    def __init__(
        self,
        seed: int,
        *,
        probability: float = 0.01,
        armed: float = 0.5,
        sites: Mapping[str, float] | None = None,
    ) -> None:
        unknown = set(sites or ()) - set(SITES)
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")
        self.random = random.Random(seed)
        self.fired: Counter[str] = Counter()
        self.fired_at: Counter[tuple[str, str]] = Counter()
        self._healed = False
        if sites is not None:
            self._sites = dict(sites)
        else:
            self._sites = {site: probability for site in SITES if self.random.random() < armed}

    @property
    def sites(self) -> Mapping[str, float]:
        """The armed sites and how likely each strikes."""
        return self._sites

    def strikes(self, site: str, place: str = "") -> bool:
        """Does it happen now? Counts it if so."""
        probability = self._sites.get(site, 0.0)
        if self._healed or not probability or self.random.random() >= probability:
            return False
        self.fired[site] += 1
        self.fired_at[site, place] += 1
        return True

    def heal(self) -> None:
        """No faults from now on."""
        self._healed = True
