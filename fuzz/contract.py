"""Broken requests against the pure contract, any number: `python -m fuzz.contract --examples 1000000 --seed 1`.

Prints the first mutant whose answer is not what it must be, and the seed that makes it again.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time

from pumas.contract.errors import ContractError
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from pumas.translate import to_operation
from tests.contract.mutate import Mutant, echoed_id, mutate
from tests.contract.samples import SERVED


def complaint(mutant: Mutant) -> str | None:
    """What is wrong with the answer to a mutant, or None."""
    try:
        to_operation(resolve(decode_operation(mutant.body), SERVED))
    except ContractError as error:
        if mutant.code not in (None, error.code):
            return f"code {error.code}: {error.message}"
        if error.request_id != echoed_id(mutant.body):
            return f"request_id {error.request_id!r} instead of {echoed_id(mutant.body)!r}"
        return None
    return None if mutant.code is None else "accepted"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    rng, seen = random.Random(options.seed), collections.Counter[str]()
    for number in range(options.examples):
        mutant = mutate(rng)
        seen[mutant.kind] += 1
        if (wrong := complaint(mutant)) is not None:
            print(f"seed {options.seed}, example {number}: {wrong}\n{mutant}", file=sys.stderr)
            return 1
    print(f"seed {options.seed}: {options.examples} examples, {dict(seen)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
