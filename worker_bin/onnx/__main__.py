"""The ONNX worker. Hardened before anything else is imported."""

from __future__ import annotations

from worker_bin import harden  # isort: skip

import faulthandler
import sys


def main() -> None:
    """Serve until the module ends it; exits with the serve loop's status."""
    faulthandler.enable()
    from worker_bin.onnx.engine import OnnxEngine
    from worker_bin.serve import serve

    sys.exit(serve(OnnxEngine(harden.report)))


if __name__ == "__main__":
    main()
