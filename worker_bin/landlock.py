"""Landlock through ctypes: from then on this process reads what it was given, writes nothing else, runs nothing, opens
no TCP.

The restriction holds for this thread and whatever it starts, so it must come before any other thread. What the kernel
does not know yet is left out; the kernel's own ABI number says what it knows.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_VERSION_FLAG = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_ALL_V1 = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_READ = _READ_FILE | _READ_DIR
"""Nowhere _EXECUTE: no program is run. (To map a library is to read it.)"""
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_NET_BIND_AND_CONNECT = 3
_SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS = 3

_SYSTEM = [
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/cuda", "/opt/rocm", "/usr/share"),
    *("/etc/ld.so.cache", "/etc/localtime", "/etc/OpenCL", "/etc/vulkan", "/etc/nvidia"),
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems", "/proc/modules"),
    *("/proc/devices", "/proc/driver", "/proc/sys", "/sys"),
]
"""Libraries, and what engines ask about the machine: read only."""
_PROCESS = "/proc/self"
"""Not all of /proc: the environments of other processes hold secrets, which root could read."""
_DEVICES = "/dev"
"""GPU nodes are read and written; no node can be made there."""


class _RulesetAttr(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


def restrict(libc: ctypes.CDLL, readable: list[str] | None, writable: list[str] | None) -> str:
    """Restrict this process for good. "on", or why it could not be done.

    Args:
        readable: directories beside the program's own; None: everything may be read, but of other processes nothing.
        writable: directories that may be written; None: none.
    """
    libc.syscall.restype = ctypes.c_long
    abi = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if abi < 1:
        return f"not in this kernel ({os.strerror(ctypes.get_errno())})"
    handled = _ALL_V1 | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL_DEV if abi >= 5 else 0)
    attr = _RulesetAttr(
        handled,
        _NET_BIND_AND_CONNECT if abi >= 4 else 0,
        _SCOPE_ABSTRACT_SOCKETS_AND_SIGNALS if abi >= 6 else 0,
    )
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = libc.syscall(_CREATE_RULESET, ctypes.byref(attr), size, 0)
    if ruleset < 0:
        return os.strerror(ctypes.get_errno())
    try:
        for path in [*_SYSTEM, *(_everything() if readable is None else [*_own_directories(), *readable])]:
            _allow(libc, ruleset, path, _READ & handled)
        _allow(libc, ruleset, _PROCESS, _READ & handled)
        os.open(_PROCESS, os.O_PATH | os.O_CLOEXEC)  # kept: the rule holds as long as the kernel keeps this entry
        _allow(libc, ruleset, _DEVICES, (_READ | _WRITE_FILE | _IOCTL_DEV) & handled)
        for path in writable or []:
            _allow(libc, ruleset, path, handled & ~_EXECUTE)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            return os.strerror(ctypes.get_errno())
    except OSError as error:
        return str(error)
    finally:
        os.close(ruleset)
    return "on"


def _everything() -> list[str]:
    """All that the root directory holds, but not other processes."""
    return [f"/{name}" for name in os.listdir("/") if name != "proc"]


def _own_directories() -> list[str]:
    """Where this program and its modules live."""
    found = {sys.prefix, sys.base_prefix, sys.exec_prefix, sysconfig.get_paths()["stdlib"], *sys.path}
    return sorted(path for path in found if path)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, access: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # what is not there need not be allowed
    try:
        if not os.path.isdir(path):
            access &= _FILE_ONLY
        rule = _PathBeneathAttr(access, descriptor)
        if libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(descriptor)
