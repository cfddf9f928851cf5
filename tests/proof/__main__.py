"""`python -m tests.proof [P1 P11 ...]`: measure the full figures and write them into docs/PROMISES.md.

Each promise runs by itself; one that fails or takes too long is reported at the end and keeps its old figure. With
`--gate` the gate's counts are measured instead; `--page` only writes the page anew.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tests.proof.table import PROMISES, Promise, read_measured, renew_page, write_measured

ROOT = Path(__file__).parents[2]
BOUND_S = 3600.0
"""Of one promise."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description=__doc__)
    parser.add_argument("promises", nargs="*", metavar="P", help="all of them where none is named")
    parser.add_argument("--gate", action="store_true", help="the counts of `make test`")
    parser.add_argument("--page", action="store_true", help="only write docs/PROMISES.md anew")
    options = parser.parse_args()
    unknown = set(options.promises) - {promise.name for promise in PROMISES}
    if unknown:
        parser.error(f"no such promise: {', '.join(sorted(unknown))}")
    chosen = [promise for promise in PROMISES if promise.name in options.promises or not options.promises]
    failed = [] if options.page else _measure(chosen, "gate" if options.gate else "full")
    renew_page()
    if failed:
        print("failed:", *failed)
    return bool(failed)


def _measure(chosen: list[Promise], kind: str) -> list[str]:
    """Run what the promises need, each test once. Returns the names of the promises that do not hold."""
    done: dict[tuple[str, ...], tuple[bool, dict[str, list[str]]]] = {}
    failed = []
    for promise in chosen:
        nodes = (promise.proofs if kind == "full" else ()) or promise.tests
        began = time.monotonic()
        if nodes not in done:
            print(f"{promise.name}: {promise.says}", flush=True)
            done[nodes] = _run(nodes, full=kind == "full")
        good, figures = done[nodes]
        took = time.monotonic() - began
        if not good:
            failed.append(promise.name)
            print(f"{promise.name}: FAILED", flush=True)
            continue
        figure = "; ".join(figures.get(promise.name, [])) or "holds"
        today = datetime.date.today().isoformat()
        measured = read_measured()
        measured.setdefault(promise.name, {})[kind] = f"{figure} ({today})"
        write_measured(measured)
        print(f"{promise.name}: {figure} ({took:.0f} s)", flush=True)
    return failed


def _run(nodes: tuple[str, ...], *, full: bool) -> tuple[bool, dict[str, list[str]]]:
    """One pytest run in a process of its own: whether all passed, and what they wrote down."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "figures"
        env = os.environ | {"SYNAPSE_PROOF_LOG": str(log)} | ({"SYNAPSE_PROOF": "1"} if full else {})
        marked = "" if full else "not proof"
        command = [sys.executable, "-m", "pytest", "-q", "-o", "faulthandler_timeout=0", "-m", marked, *nodes]
        try:
            status = subprocess.run(command, cwd=ROOT, env=env, timeout=BOUND_S, check=False).returncode
        except subprocess.TimeoutExpired:
            print(f"not done within {BOUND_S:g} s")
            status = 1
        figures: dict[str, list[str]] = {}
        for line in log.read_bytes().splitlines() if log.exists() else []:
            promise, figure = msgspec.json.decode(line, type=tuple[str, str])
            figures.setdefault(promise, []).append(figure)
        return status == 0, figures


if __name__ == "__main__":
    sys.exit(main())
