"""llama.cpp's C library through llama-cpp-python's low-level API, with a log callback of our own.

The binding is untyped; everything that touches it directly stands in `library`, `batch`, `model` and `context`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import sys
import types
from collections import deque
from importlib.metadata import version
from typing import Any, Final

from synapse.wire.messages import EngineInfo

_WARN, _ERROR, _CONTINUED = 3, 4, 5
_ERRORS: Final[deque[str]] = deque(maxlen=4)
_kept: list[Any] = []
"""Callback objects that C holds a pointer to: collected, they would crash the process."""


def import_lean() -> None:
    """Make `llama_cpp` a bare package, so that importing its low-level module leaves the rest of it out.

    Its `__init__` imports the high-level API with Jinja2, diskcache and multiprocessing: 20 MB and 0.2 s that a worker
    has no use for. Call before anything imports llama_cpp; meant for the worker program only.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.submodule_search_locations is None or "llama_cpp" in sys.modules:
        return
    package = types.ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations)
    package.__spec__ = spec
    sys.modules["llama_cpp"] = package


def library() -> Any:
    """The low-level module, its log callback installed. The first call imports it (0.1 s)."""
    lib = importlib.import_module("llama_cpp.llama_cpp")
    if not _kept:
        callback = lib.llama_log_callback(_log)
        _kept.append(callback)
        lib.llama_log_set(callback, ctypes.c_void_p(0))
        lib.llama_backend_init()
    return lib


def engine_info() -> EngineInfo:
    """Name, version and build flags of the engine, for HELLO."""
    flags: dict[str, str] = {}
    for part in library().llama_print_system_info().decode(errors="replace").split("|"):
        name, _, value = part.partition("=")
        if value:
            flags[name.split(":")[-1].strip()] = value.strip()
    return EngineInfo(name="llama.cpp", version=f"llama-cpp-python {version('llama-cpp-python')}", build_flags=flags)


def last_errors() -> str:
    """What the engine logged as errors since the last call, in one line."""
    text = "; ".join(_ERRORS)
    _ERRORS.clear()
    return text[:500]


_level = 0


def _log(level: int, text: bytes, _user: Any) -> None:
    """Warnings and errors go to stderr, which the module keeps (C's levels: 3 warning, 4 error, 5 continued line)."""
    global _level
    if level != _CONTINUED:
        _level = level
    if _level in (_WARN, _ERROR):
        line = text.decode(errors="replace")
        if _level == _ERROR and line.strip():
            _ERRORS.append(line.strip())
        with contextlib.suppress(OSError, ValueError):  # a log that cannot be written must not break the engine's call
            sys.stderr.write(line)
