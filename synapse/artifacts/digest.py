"""Opening a model file once and naming it by its content."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from synapse.artifacts.gguf import ArtifactInvalid

_CHUNK_BYTES = 1 << 20


class Stamp(msgspec.Struct, frozen=True):
    """What the file system says of a file: while it stays, the content is taken to be the same."""

    dev: int
    ino: int
    size: int
    mtime_ns: int
    ctime_ns: int


@contextmanager
def open_artifact(path: str) -> Iterator[int]:
    """The model file as a descriptor that is closed afterwards. A link is followed once, before it is opened.

    Raises: ArtifactInvalid if there is no such file, it is no regular file (a FIFO or device is never waited for), or
    it cannot be read.
    """
    try:
        descriptor = os.open(os.path.realpath(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ArtifactInvalid(f"{path}: {reason}") from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ArtifactInvalid(f"{path}: not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def stamp_of(descriptor: int) -> Stamp:
    status = os.fstat(descriptor)
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def sha256_of(descriptor: int) -> str:
    """`sha256:` and 64 hex digits over the whole file.

    Blocks: on the disk, about a second for each gigabyte.
    Raises: ArtifactInvalid if the file changes meanwhile.
    """
    before = stamp_of(descriptor)
    digest = hashlib.sha256()
    buffer = bytearray(_CHUNK_BYTES)
    offset = 0
    while n := os.preadv(descriptor, [buffer], offset):
        digest.update(memoryview(buffer)[:n])
        offset += n
    if stamp_of(descriptor) != before or offset != before.size:
        raise ArtifactInvalid("the file changed while it was read")
    return f"sha256:{digest.hexdigest()}"
