"""The ingest cache: what was read from a model file, by digest, so that a second start does not parse again.

An entry is a line that names the format, a checksum and msgpack. Only this module writes it, with a rename, and what
does not read back exactly (cut short, altered, of another version, owned by somebody else) counts as not there: it is
made anew and never trusted. A second index remembers digests by the file system's stamp of a file; a worker verifies
the digest all the same before it maps anything.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from synapse.artifacts.digest import Stamp
from synapse.wire.messages import ModelInfo

VERSION: Final = 3
"""Of the entries' content: raised whenever what is stored, or how it is found, changes."""
_MAGIC: Final = b"synapse ingest %d\n" % VERSION
_MAX_ENTRY_BYTES: Final = 512 << 20
_SETTLED_NS: Final = 2_000_000_000
"""A file that changed more recently could change again without a new stamp: its digest is not remembered."""

T = TypeVar("T", bound=msgspec.Struct)


class Traits(msgspec.Struct, frozen=True):
    """How a chat template wants its messages (`synapse.artifacts.template_traits`)."""

    typed_content: bool = False
    """Contents as lists of parts."""
    object_arguments: bool = False
    """Tool calls' arguments as objects, not as JSON text."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """All that is kept of one model file."""

    info: ModelInfo
    tokenizer: bytes
    """The tokenizer as `synapse.artifacts.tokenizer` stores it; empty where the engine's own has to be used."""
    vocabulary: bytes
    """The vocabulary, msgpack; empty where the tokenizer holds it."""
    templates: dict[str, str] = {}
    """The chat templates' sources: the model's own under "", and the one for chats with tools, where it has one."""
    traits: dict[str, Traits] = {}
    """How they want their messages, by the same names."""


class IngestCache:
    """The entries below one directory. All methods block on the disk; none of them ever raises for a bad entry."""

    def __init__(self, directory: str) -> None:
        self._directory = Path(directory)

    def load(self, digest: str) -> Entry | None:
        """The entry of this digest, None if there is none that can be trusted."""
        entry = _read(self._entry_path(digest), Entry)
        return entry if entry is not None and entry.info.digest == digest else None

    def store(self, entry: Entry) -> None:
        """Keep an entry. Raises: OSError if the directory cannot be written."""
        _write(self._entry_path(entry.info.digest), entry)

    def digest(self, stamp: Stamp) -> str | None:
        """The digest of a file with this stamp, None if it is not known."""
        known = _read(self._stamp_path(stamp), _Stamped)
        return known.digest if known is not None and known.stamp == stamp else None

    def remember(self, stamp: Stamp, digest: str) -> None:
        """Keep the digest of a file with this stamp, unless the file changed just now. Raises: OSError."""
        if time.time_ns() - max(stamp.ctime_ns, stamp.mtime_ns) > _SETTLED_NS:
            _write(self._stamp_path(stamp), _Stamped(stamp, digest))

    def _entry_path(self, digest: str) -> Path:
        kind, _, digits = digest.partition(":")
        if kind != "sha256" or len(digits) != 64 or not digits.isalnum():
            raise ValueError(f"not a digest: {digest!r}")
        return self._directory / "models" / f"{digits}.synapse"

    def _stamp_path(self, stamp: Stamp) -> Path:
        return self._directory / "digests" / f"{stamp.dev:x}-{stamp.ino:x}.synapse"


class _Stamped(msgspec.Struct, frozen=True):
    stamp: Stamp
    digest: str


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not ours or status.st_size > _MAX_ENTRY_BYTES or file.read(len(_MAGIC)) != _MAGIC:
            return None
        checksum, payload = file.read(32), file.read()
    if hashlib.sha256(payload).digest() != checksum:
        return None
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.DecodeError, RecursionError):
        return None


def _write(path: Path, entry: msgspec.Struct) -> None:
    """Atomic and durable: a reader sees the old entry, the new one, or none."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    payload = msgspec.msgpack.encode(entry)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(payload).digest())
            file.write(payload)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
