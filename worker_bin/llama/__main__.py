"""The llama.cpp worker. Hardened before anything else is imported."""

from __future__ import annotations

from worker_bin import harden  # isort: skip

import faulthandler
import sys


def main() -> None:
    """Serve until the module ends it; exits with the serve loop's status."""
    faulthandler.enable()  # a crash of the engine leaves the Python stack in the log's tail
    from worker_bin.llama.cpu import watch_illegal_instructions
    from worker_bin.llama.library import import_lean

    watch_illegal_instructions()
    import_lean()
    from worker_bin.llama.engine import LlamaEngine
    from worker_bin.serve import serve

    sys.exit(serve(LlamaEngine(harden.report)))


if __name__ == "__main__":
    main()
