"""`python -m fuzz --target NAME --minutes 5 --seed 1`: look for an input that breaks a target's invariant.

Exit status: 0 none was found, 1 one was (its file is printed), 2 the arguments are wrong. docs/fuzzing.md explains it.
"""

from __future__ import annotations

import argparse
import json
import logging
import platform
import sys
import time
from pathlib import Path

from fuzz import coverage
from fuzz.hunt import hunt, keep, outcome
from fuzz.targets import NAMES, load
from fuzz.watch import Notes, watched

LEDGER = Path(__file__).parent / "ledger.jsonl"


def main(argv: list[str] | None = None) -> int:
    options = _arguments().parse_args(argv)
    before = logging.root.manager.disable
    logging.disable()  # what parsers say of bad input is not what is looked for
    try:
        return _main(options)
    finally:
        logging.disable(before)


def _main(options: argparse.Namespace) -> int:
    if options.list:
        for name in NAMES:
            print(f"{name:20}{load(name).invariant}")
        return 0
    if options.reproduce is not None:
        return _reproduce(options.target, options.reproduce)
    if options.notes is not None:
        return _search(options)
    names = NAMES if options.all else (options.target,)
    failed = 0
    for name in names:
        failed |= _run(name, options, options.minutes / len(names))
    _print_totals()
    return failed


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--target", choices=NAMES, help="one parser")
    what.add_argument("--all", action="store_true", help="all of them, one after the other; they share the minutes")
    what.add_argument("--list", action="store_true", help="print the targets and their invariants")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to search")
    parser.add_argument("--examples", type=int, help="how many inputs to try instead, for each target")
    parser.add_argument("--seed", type=int, default=1, help="of the inputs")
    parser.add_argument("--coverage", action="store_true", help="guided by coverage; needs atheris")
    parser.add_argument("--reproduce", type=Path, metavar="FILE", help="try this one input and show what comes of it")
    parser.add_argument("--notes", type=Path, help=argparse.SUPPRESS)
    return parser


def _reproduce(name: str | None, path: Path) -> int:
    if name is None:
        print("--reproduce needs --target", file=sys.stderr)
        return 2
    target = load(name)
    try:
        error = outcome(target, path.read_bytes())
    finally:
        target.close()
    if error is None:
        print(f"{name}: the invariant holds: {target.invariant}")
        return 0
    sys.excepthook(type(error), error, error.__traceback__)
    return 1


def _run(name: str, options: argparse.Namespace, minutes: float) -> int:
    """One target in a watched child; its line in the ledger."""
    arguments = ["--target", name, "--minutes", str(minutes), "--seed", str(options.seed)]
    if options.examples is not None:
        arguments += ["--examples", str(options.examples)]
    if options.coverage:
        arguments += ["--coverage"]
    started = time.monotonic()
    status, count, data, said = watched(arguments)
    if said:
        print(f"{name}: {said}: python -m fuzz --target {name} --reproduce {keep(load(name), data)}", flush=True)
    seconds = time.monotonic() - started
    failed = int(status != 0)
    print(f"{name}: {count} inputs in {seconds:.0f} s, seed {options.seed}: {'FAILED' if failed else 'ok'}", flush=True)
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "target": name,
        "seed": options.seed,
        "inputs": count,
        "seconds": round(seconds, 1),
        "failed": bool(failed),
        "coverage": bool(options.coverage),
        "python": platform.python_version(),
    }
    with open(LEDGER, "a") as file:
        file.write(json.dumps(line) + "\n")
    return failed


def _search(options: argparse.Namespace) -> int:
    """In the child: search until the time is over or something is found."""
    notes = Notes(options.notes)
    if options.coverage:
        return coverage.search(options.target, options.minutes * 60, options.seed, notes.write)
    target = load(options.target)
    deadline = time.monotonic() + options.minutes * 60

    def more(number: int) -> bool:
        return number < options.examples if options.examples is not None else time.monotonic() < deadline

    try:
        _, failure = hunt(target, options.seed, more, notes.write)
    finally:
        target.close()
    if failure is None:
        return 0
    path = keep(target, failure.data)
    print(
        f"{target.name}: input {failure.number} of seed {options.seed} breaks the invariant\n  {target.invariant}\n"
        f"{failure.what}\npython -m fuzz --target {target.name} --reproduce {path}",
        flush=True,
    )
    return 1


def _print_totals() -> None:
    totals: dict[str, tuple[int, float]] = {}
    for line in LEDGER.read_text().splitlines():
        run = json.loads(line)
        inputs, seconds = totals.get(run["target"], (0, 0.0))
        totals[run["target"]] = inputs + run["inputs"], seconds + run["seconds"]
    print("in all runs of this ledger:")
    for name, (inputs, seconds) in totals.items():
        print(f"  {name:20}{inputs:>12,} inputs {seconds / 3600:>8.2f} h")


if __name__ == "__main__":
    sys.exit(main())
