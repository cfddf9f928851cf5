"""Promises over whole lives in virtual time, with every fault that can be simulated (docs/PROMISES.md)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from synapse.testing import SITES, FaultPlan
from tests.promises.lives import judge_times, life
from tests.promises.scale import FULL, measured, scaled

AT_LEAST = scaled(3, 100)
"""So often each fault has to strike (B3)."""
RARE = {"unkillable": 1.0, "spawn_fails": 0.7, "slow_load": 0.5, "ignore_shutdown": 1.0}
HELPERS = {
    "unkillable": {"hang": 0.05},
    "spawn_fails": {"crash_in_request": 0.1},
    "exit_at_boot": {"crash_in_request": 0.1},
    "mute_at_boot": {"crash_in_request": 0.1},
    "mute_in_handshake": {"crash_in_request": 0.1},
    "wrong_nonce": {"crash_in_request": 0.1},
    "wrong_version": {"crash_in_request": 0.1},
    "hello_twice": {"crash_in_request": 0.1},
    "crash_in_load": {"crash_in_request": 0.1},
    "slow_load": {"crash_in_request": 0.1},
}
"""Faults of a boot or of a death need deaths."""
UNITS = {"EMBED_BATCH", "RERANK", "DECODE"}
EVERYWHERE = UNITS | {"LOAD", "PING"}
PLACES = {
    "spawn_fails": {"spawn"},
    "exit_at_boot": {"boot"},
    "mute_at_boot": {"boot"},
    "mute_in_handshake": {"HELLO"},
    "wrong_nonce": {"HELLO"},
    "wrong_version": {"HELLO"},
    "hello_twice": {"HELLO"},
    "slow_load": {"LOAD"},
    "crash_in_load": {"LOAD"},
    "crash_in_request": UNITS | {"PING"},
    "ignore_shutdown": {"SHUTDOWN"},
    "unkillable": UNITS,
    "cut_in_reply": {"EMBED_BATCH", "RERANK"},
    "raw_lie": {"EMBED_BATCH", "RERANK"},
    "nan": {"EMBED_BATCH", "RERANK"},
    "dims_lie": {"EMBED_BATCH"},
    "unknown_sequence": {"DECODE"},
    "err": UNITS,
    "err_flood": UNITS,
}
"""Where each fault can strike; the full run sees it at every one of them."""


@pytest.mark.parametrize("site", SITES)
async def test_a_fault_strikes_often_enough_and_everything_heals(
    tmp_path: Path, autojump_clock: MockClock, site: str
) -> None:
    """P29: one fault at a time, at every place where it can strike, until it struck often enough; then it ends, all
    workers are ready again within 60 virtual seconds, what is asked is served, and the stop is orderly."""
    fired: Counter[str] = Counter()
    places: Counter[str] = Counter()
    seed = 0
    while fired[site] < AT_LEAST:
        assert seed < 20 * AT_LEAST, f"{site} struck {fired[site]} times in {seed} lives"
        sites = {site: RARE.get(site, 0.15)} | HELPERS.get(site, {})
        plan = FaultPlan(seed, sites=sites)
        pipe_bytes = 64 if site == "reset" else 65536
        async with life(tmp_path, plan, seed=seed, pipe_bytes=pipe_bytes) as lived:
            await lived.traffic().run(25, 12)
            await trio.sleep(25.0)  # for PINGs
            if site != "ignore_shutdown":  # which strikes while everything is stopped
                await lived.heal()
        judge_times(lived, slack_s=60.0 if site == "unkillable" else 1e-6)
        fired.update(plan.fired)
        places.update({place: count for (name, place), count in plan.fired_at.items() if name == site})
        seed += 1
    if FULL:
        assert PLACES.get(site, EVERYWHERE) <= set(places), f"{site} struck only at {set(places)}"
    measured("B3", f"{site}: {fired[site]} times in {seed} lives, at {dict(sorted(places.items()))}")
