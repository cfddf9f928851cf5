"""Damaged connections against a running server, any number: `python -m fuzz.http --connections 6000 --seed 1`.

A bystander's stream must go on all the time, and afterwards nothing may be left: no task, no descriptor.
"""

from __future__ import annotations

import argparse
import logging
import time
from functools import partial

import trio

from tests.http.test_many import fuzz

BATCH = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    logging.disable()  # faults of the test application are what is asked for
    for done in range(0, options.connections, BATCH):
        seed = options.seed + done
        print(f"seed {seed}", flush=True)
        trio.run(partial(fuzz, seed, min(BATCH, options.connections - done), websocket=bool(done // BATCH % 2)))


if __name__ == "__main__":
    main()
