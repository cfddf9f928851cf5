"""Which faults strike, drawn from a seed: the same seed and the same questions give the same answers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

SITES: dict[str, str] = {
    "exit_at_boot": "ends before it connects",
    "mute_at_boot": "never connects",
    "mute_in_handshake": "connects and says nothing",
    "wrong_nonce": "says HELLO with another nonce",
    "crash_in_load": "ends while it loads",
    "crash_in_request": "ends before it answers",
    "crash_in_reply": "ends in the middle of its answer",
    "crash_after_reply": "ends right after its answer, idle",
    "hang": "never answers, and ignores SIGTERM",
    "slow": "takes much longer, but within its deadline",
    "deaf": "stops reading",
    "garbage": "answers with bytes that are no frame",
    "other_request": "answers another request",
    "err": "answers ERR engine_failed",
    "drip": "sends its answer in many small pieces with pauses",
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
        self._healed = False
        if sites is not None:
            self._sites = dict(sites)
        else:
            self._sites = {site: probability for site in SITES if self.random.random() < armed}

    @property
    def sites(self) -> Mapping[str, float]:
        """The armed sites and how likely each strikes."""
        return self._sites

    def strikes(self, site: str) -> bool:
        """Does it happen now? Counts it if so."""
        probability = self._sites.get(site, 0.0)
        if self._healed or not probability or self.random.random() >= probability:
            return False
        self.fired[site] += 1
        return True

    def heal(self) -> None:
        """No faults from now on."""
        self._healed = True
