"""The tokens of one engine call, in memory that numpy fills and the engine reads: no copy, no call per token."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Batch:
    """A reusable llama_batch of up to `capacity` tokens, each in one sequence.

    Fill by slices: `token`, `pos`, `seq` and `output` (1: logits or an embedding are wanted) are arrays over the
    batch's own memory; then hand `take(n)` to the engine.
    """

    def __init__(self, lib: Any, capacity: int) -> None:
        self.capacity = capacity
        self.token: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.pos: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.seq: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.output: NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._n_seq_id: NDArray[np.int32] = np.ones(capacity, np.int32)  # 0 would be a crash
        self._seq_ptr = self.seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)
        fields = dict(lib.llama_batch._fields_)

        def pointer(name: str, array: NDArray[Any]) -> Any:
            return ctypes.cast(array.ctypes.data, fields[name])

        self._struct = lib.llama_batch(
            n_tokens=0,
            token=pointer("token", self.token),
            pos=pointer("pos", self.pos),
            n_seq_id=pointer("n_seq_id", self._n_seq_id),
            seq_id=pointer("seq_id", self._seq_ptr),
            logits=pointer("logits", self.output),
        )

    def take(self, n: int) -> Any:
        """The struct for the first `n` tokens."""
        assert 0 < n <= self.capacity
        self._struct.n_tokens = n
        return self._struct
