"""Which of our environment a child sees: an allow-list, never the whole (W2)."""

from __future__ import annotations

from collections.abc import Mapping

_NAMES = {"PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "TEMP", "TMP"}
_PREFIXES = ("LC_", "CUDA_", "HIP_", "GGML_", "OMP_")
_DEFAULTS = {
    # A waiting OpenMP thread spins for some 100 µs, then it sleeps. The engine joins its threads hundreds of times a
    # token: without any spinning two threads are five times slower, with endless spinning they starve other lanes.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "5000",
    # ggml would start a debugger on its own abort, inside the worker.
    "GGML_NO_BACKTRACE": "1",
}


def child_environment(own: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: what is allowed of `own`, the defaults, and over both what the profile names."""
    allowed = {name: value for name, value in own.items() if name in _NAMES or name.startswith(_PREFIXES)}
    return {**allowed, **_DEFAULTS, **extra}
