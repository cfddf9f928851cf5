"""Strict reader of GGUF headers: what a model file says about itself, with bounded memory and time.

Read with pread, never through a mapping (a file that shrinks would be SIGBUS). It refuses what llama.cpp refuses, what
would abort it, and what no honest file holds; every refusal is ArtifactInvalid and names what and where. What a header
says is metadata from a stranger: a value of an unexpected type is an error where it is asked for, not a surprise later.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from synapse.artifacts.header import TENSOR_TYPES, ArtifactInvalid, Header, Numbers, Tensor, Value

__all__ = ["ArtifactInvalid", "Header", "Tensor", "parse_header", "read_header"]

MAX_HEADER_BYTES: Final = 256 << 20
"""A vocabulary of 256 k tokens with 580 k merges takes 30 MB."""
MAX_KEYS: Final = 1 << 16
MAX_TENSORS: Final = 1 << 16
MAX_STRINGS: Final = 1 << 22
"""Elements of one array of strings."""
MAX_ALIGNMENT: Final = 1 << 16
MAX_KEY_BYTES: Final = 1 << 16
MAX_TENSOR_NAME_BYTES: Final = 63
_DEFAULT_ALIGNMENT: Final = 32
_CHUNK: Final = 1 << 18

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_COUNTS = struct.Struct("<QQ")
_SCALARS: Final = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_DTYPES: Final[dict[int, np.dtype[Any]]] = {
    0: np.dtype("u1"),
    1: np.dtype("i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}


def read_header(file: str | os.PathLike[str] | int) -> Header:
    """Read the header of a GGUF file, given by its path or by a descriptor (which stays open, its position untouched).

    Raises: ArtifactInvalid; OSError if the file cannot be opened or read.
    Blocks: on the disk. Memory: about five times the header's bytes, which are capped (MAX_HEADER_BYTES).
    """
    if isinstance(file, int):
        return _read_descriptor(file)
    # O_NONBLOCK: a FIFO must not keep us waiting for a writer; it has no effect on a regular file.
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return _read_descriptor(descriptor)
    finally:
        os.close(descriptor)


def parse_header(data: bytes, size: int | None = None) -> Header:
    """Read a header from memory; `size` is the size of the whole file where `data` is only its beginning.

    Raises: ArtifactInvalid.
    """
    return _Reader(lambda at, n: data[at : at + n], len(data) if size is None else size).header()


def _read_descriptor(descriptor: int) -> Header:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ArtifactInvalid("not a regular file")
    return _Reader(lambda at, n: os.pread(descriptor, n, at), status.st_size).header()


class _Reader:
    """A cursor over the file's beginning: a buffer of immutable bytes, fetched in chunks and dropped once read."""

    def __init__(self, fetch: Callable[[int, int], bytes], size: int) -> None:
        self._fetch, self._size = fetch, size
        self._limit = min(size, MAX_HEADER_BYTES)
        self._buffer = b""
        self._base = 0  # where the buffer begins in the file
        self._at = 0  # the cursor, inside the buffer

    def header(self) -> Header:
        if self._size < 24 or self._take(4) != b"GGUF":
            raise ArtifactInvalid("not a GGUF file")
        version = self._u32("the version")
        if version & 0xFFFF == 0:
            raise ArtifactInvalid("a big-endian GGUF file")
        if version not in (2, 3):
            raise ArtifactInvalid(f"GGUF version {version}; known are 2 and 3")
        n_tensors, n_keys = _COUNTS.unpack(self._take(16, "the counts"))
        # The smallest key takes 13 bytes, the smallest tensor 32: no count can make us allocate more than the file has.
        if n_keys > MAX_KEYS or n_keys * 13 > self._size:
            raise ArtifactInvalid(f"{n_keys} keys in a file of {self._size} bytes")
        if n_tensors > MAX_TENSORS or n_tensors * 24 > self._size:
            raise ArtifactInvalid(f"{n_tensors} tensors in a file of {self._size} bytes")
        metadata = self._metadata(n_keys)
        alignment = _alignment(metadata)
        tensors, data_offset = self._tensors(n_tensors, alignment)
        return Header(version=version, metadata=metadata, tensors=tensors, data_offset=data_offset, size=self._size)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def _metadata(self, count: int) -> dict[str, Value]:
        metadata: dict[str, Value] = {}
        for index in range(count):
            raw = self._string(f"key {index}", MAX_KEY_BYTES)
            try:
                key = raw.decode()
            except UnicodeDecodeError:
                raise ArtifactInvalid(f"key {index} is no UTF-8") from None
            if not key or key in metadata:
                raise ArtifactInvalid(f"key {index} is {'given twice: ' + repr(key) if key else 'empty'}")
            metadata[key] = self._value(key)
        return metadata

    def _value(self, key: str) -> Value:
        what = f"key {key!r}"
        kind = self._u32(what)
        if kind == _STRING:
            return self._string(what, self._limit).decode(errors="replace")
        if kind == _ARRAY:
            kind, count = self._u32(what), self._u64(what)
            return self._strings(what, count) if kind == _STRING else self._numbers(what, kind, count)
        scalar = _SCALARS.get(kind)
        if scalar is None:
            raise ArtifactInvalid(f"{what} has the unknown type {kind}")
        value: int | float = scalar.unpack(self._take(scalar.size, what))[0]
        if kind == _BOOL:
            if value > 1:
                raise ArtifactInvalid(f"{what} is a bool of value {value}")
            return bool(value)
        return value

    def _strings(self, what: str, count: int) -> list[bytes]:
        if count > MAX_STRINGS or count * 8 > self._remaining():
            raise ArtifactInvalid(f"{what} claims {count} strings, more than the file can hold")
        out: list[bytes] = []
        at, buffer, have, unpack = self._at, self._buffer, len(self._buffer), _U64.unpack_from
        for _ in range(count):  # the hot loop: 300,000 strings in a tenth of a second
            if have - at < 8:
                at, buffer, have = self._more(at, 8, what)
            (length,) = unpack(buffer, at)
            at += 8
            if length > have - at:
                at, buffer, have = self._more(at, length, what)
            out.append(buffer[at : at + length])
            at += length
        self._at = at
        return out

    def _numbers(self, what: str, kind: int, count: int) -> Numbers:
        dtype = _DTYPES.get(kind)
        if dtype is None:
            raise ArtifactInvalid(f"{what} is an array of the {'nested' if kind == _ARRAY else 'unknown'} type {kind}")
        if count > self._remaining() // dtype.itemsize:
            raise ArtifactInvalid(f"{what} claims {count} numbers, more than the file can hold")
        data = self._take(count * dtype.itemsize, what)
        if kind == _BOOL and count and max(data) > 1:
            raise ArtifactInvalid(f"{what} holds a bool that is neither 0 nor 1")
        return np.frombuffer(data, dtype=dtype)

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _tensors(self, count: int, alignment: int) -> tuple[dict[str, Tensor], int]:
        tensors: dict[str, Tensor] = {}
        expected = 0  # llama.cpp takes tensors in order, without gaps but padding: nothing overlaps
        for index in range(count):
            tensor = self._tensor(index, tensors)
            if tensor.offset != expected:
                raise ArtifactInvalid(f"tensor {tensor.name!r} begins at {tensor.offset}, expected is {expected}")
            tensors[tensor.name] = tensor
            expected += _pad(tensor.nbytes, alignment)
        end_of_header = self._base + self._at
        data_offset = _pad(end_of_header, alignment) if count else end_of_header
        for tensor in reversed(tensors.values()):
            end = data_offset + tensor.offset + tensor.nbytes
            if end > self._size:
                raise ArtifactInvalid(
                    f"the file is cut short: tensor {tensor.name!r} ends at {end}, the file has {self._size} bytes"
                )
            break
        return tensors, data_offset

    def _tensor(self, index: int, known: dict[str, Tensor]) -> Tensor:
        raw = self._string(f"the name of tensor {index}", MAX_TENSOR_NAME_BYTES)
        name = raw.decode(errors="replace")
        if name in known:
            raise ArtifactInvalid(f"tensor {name!r} is given twice")
        what = f"tensor {name!r}"
        n_dims = self._u32(what)
        if n_dims > 4:
            raise ArtifactInvalid(f"{what} has {n_dims} dimensions")
        dims = struct.unpack(f"<{n_dims}Q", self._take(8 * n_dims, what))
        elements = 1
        for dim in dims:
            if not 1 <= dim <= 1 << 40:
                raise ArtifactInvalid(f"{what} has a dimension of {dim}")
            elements *= dim
        if elements > 1 << 62:
            raise ArtifactInvalid(f"{what} has {elements} elements")
        kind, offset = self._u32(what), self._u64(what)
        if kind not in TENSOR_TYPES:
            raise ArtifactInvalid(f"{what} has the unknown type {kind}")
        type_name, block, block_bytes = TENSOR_TYPES[kind]
        if (dims[0] if dims else 1) % block:
            raise ArtifactInvalid(f"{what}: rows of {dims[0] if dims else 1} elements do not fit {type_name}'s blocks")
        return Tensor(name, dims, type_name, offset, elements // block * block_bytes)

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _remaining(self) -> int:
        return self._limit - self._base - self._at

    def _more(self, at: int, count: int, what: str) -> tuple[int, bytes, int]:
        """Fetch so that `count` bytes from `at` are in the buffer. Returns the new cursor, buffer and its length."""
        self._at = at
        if count > self._remaining():
            reason = "the header is over its limit" if self._limit < self._size else "the file is cut short"
            raise ArtifactInvalid(f"{reason}: {what} needs {count} bytes at {self._base + at}")
        parts = [self._buffer[at:]]
        self._base, self._at = self._base + at, 0
        have = len(parts[0])
        while have < count:
            chunk = self._fetch(self._base + have, min(max(_CHUNK, count - have), self._limit - self._base - have))
            if not chunk:
                raise ArtifactInvalid(f"the file became shorter while it was read: {what}")
            parts.append(chunk)
            have += len(chunk)
        self._buffer = b"".join(parts)
        return 0, self._buffer, have

    def _take(self, count: int, what: str = "the magic") -> bytes:
        if len(self._buffer) - self._at < count:
            self._more(self._at, count, what)
        data = self._buffer[self._at : self._at + count]
        self._at += count
        return data

    def _u32(self, what: str) -> int:
        return int(_U32.unpack(self._take(4, what))[0])

    def _u64(self, what: str) -> int:
        return int(_U64.unpack(self._take(8, what))[0])

    def _string(self, what: str, limit: int) -> bytes:
        length = self._u64(what)
        if length > limit:
            raise ArtifactInvalid(f"{what} is a string of {length} bytes, over the limit of {limit}")
        return self._take(length, what)


def _alignment(metadata: dict[str, Value]) -> int:
    value = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 1 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise ArtifactInvalid(f"general.alignment is {value!r}, not a power of two up to {MAX_ALIGNMENT}")
    return value


def _pad(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment
