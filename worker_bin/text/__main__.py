"""A text process: `python -m worker_bin.text --socket PATH --nonce HEX`. Hardened before anything else is imported."""

from __future__ import annotations

from worker_bin import harden  # noqa: F401  # isort: skip

import sys

from worker_bin.serve import serve
from worker_bin.text.service import TextEngine


def main() -> int:
    """Serve until the module ends it; the serve loop's status."""
    return serve(TextEngine())


if __name__ == "__main__":
    sys.exit(main())
