"""`python -m pumas` is the `pumas` command."""

import sys

from pumas.cli import main

sys.exit(main())
