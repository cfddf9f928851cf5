"""`python -m worker_bin.faulty`: a worker that misbehaves as it is told."""

from worker_bin import harden  # noqa: F401, I001 - arms the process before any other import

import os
import sys

from worker_bin.faulty.engine import FaultyEngine
from worker_bin.faulty.faults import ACTS, ENVIRONMENT, LIES, PLACES, Plan
from worker_bin.faulty.session import FaultySession
from worker_bin.serve import SocketTransport, arguments, run


def _description() -> str:
    def listed(kinds: dict[str, str]) -> str:
        return "\n".join(f"  {name:15} {text}" for name, text in kinds.items())

    return (
        "A deterministic engine with every misbehaviour as a switch.\n\n"
        f"Switches are given in {ENVIRONMENT} and in LOAD's runtime_config (key: faults), separated by commas:\n"
        "  what[=value][@place][#n]    n: only the n-th time at that place\n\n"
        f"places: {PLACES}\n\n"
        f"what happens there (with .after behind the place: after the reply):\n{listed(ACTS)}\n\n"
        f"what becomes of the message sent there:\n{listed(LIES)}\n"
    )


def main() -> int:
    options = arguments(_description()).parse_args()
    try:
        plan = Plan(os.environ.get(ENVIRONMENT, ""))
    except ValueError as error:
        print(f"{ENVIRONMENT}: {error}", file=sys.stderr)
        return 2
    plan.act("boot")
    engine = FaultyEngine(plan)
    return run(lambda: FaultySession(SocketTransport(options.socket), engine, options.nonce, plan))


if __name__ == "__main__":
    sys.exit(main())
