"""All tests. NumPy's threads are switched off before it is imported: they spin, and starve the engines under test."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
