"""The ONNX worker. Hardened before anything else is imported."""

from __future__ import annotations

from worker_bin import harden  # isort: skip

import faulthandler
import os
import sys


def main() -> None:
    """Serve until the module ends it; exits with the serve loop's status."""
    faulthandler.enable()
    # The library's published builds keep a device ID on disk and report usage to its maker, unless this is set before
    # it is imported.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    from worker_bin.onnx.engine import OnnxEngine
    from worker_bin.serve import serve

    sys.exit(serve(OnnxEngine(harden.report)))


if __name__ == "__main__":
    main()
