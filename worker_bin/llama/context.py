"""A context: the engine's working memory for one model, and the calls that work on it."""

from __future__ import annotations

import ctypes
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from worker_bin.engine import Refused
from worker_bin.llama.batch import Batch
from worker_bin.llama.config import Shape
from worker_bin.llama.library import last_errors
from worker_bin.llama.model import Model

POOLING: Final = {"none": 0, "mean": 1, "cls": 2, "last": 3, "rank": 4}
_F16, _Q8_0 = 1, 8
_FLASH_AUTO, _FLASH_ON = -1, 1


class Context:
    """One llama_context. Not for two threads. Close it before its model."""

    def __init__(self, lib: Any, model: Model, shape: Shape, parameters: Any, threads: int) -> None:
        last_errors()
        self._lib, self.model, self.shape = lib, model, shape
        self.pointer = lib.llama_init_from_model(model.pointer, parameters)
        if not self.pointer:
            raise Refused("oom", f"llama.cpp gives no context: {last_errors() or 'not enough memory'}")
        self.memory = lib.llama_get_memory(self.pointer)
        self.batch = Batch(lib, shape.micro_batch)
        self.threads = threads
        self._default_threads = threads
        raw = lib._lib
        self._logits_at = _address_function(raw, "llama_get_logits_ith")
        self._pooled_at = _address_function(raw, "llama_get_embeddings_seq")

    def use_threads(self, threads: int) -> None:
        """Use so many threads from the next decode on; 0: as many as the profile says."""
        wanted = threads or self._default_threads
        if wanted != self.threads:
            self._lib.llama_set_n_threads(self.pointer, wanted, wanted)
            self.threads = wanted

    def decode(self, n: int) -> int:
        """Run the first `n` tokens of `batch`. Returns 0, or llama_decode's code: 1 is no KV cells, nothing done."""
        return int(self._lib.llama_decode(self.pointer, self.batch.take(n)))

    def logits(self, index: int) -> NDArray[np.float32]:
        """The logits of the batch's token `index`: a view, f32[n_vocab], writable, good until the next decode."""
        return self._view(self._logits_at(self.pointer, index), self.model.n_vocab)

    def pooled(self, sequence: int, n: int) -> NDArray[np.float32]:
        """A sequence's pooled embedding or its score: a view, f32[n], good until the next decode."""
        return self._view(self._pooled_at(self.pointer, sequence), n)

    @staticmethod
    def _view(address: int | None, n: int) -> NDArray[np.float32]:
        if not address:
            raise RuntimeError("llama.cpp has no output where one was asked for")
        view: NDArray[np.float32] = np.frombuffer(memoryview((ctypes.c_float * n).from_address(address)), np.float32)
        return view

    # --- the KV cache. `sequence` must be below shape.sequences, or the engine aborts --------------------------------

    def forget(self, sequence: int, start: int = -1) -> bool:
        """Free a sequence's cells from position `start` on (-1: all). False: it cannot be done (a part, recurrent)."""
        return bool(self._lib.llama_memory_seq_rm(self.memory, sequence, start, -1))

    def holds(self, sequence: int) -> bool:
        """It has cells."""
        return bool(self._lib.llama_memory_seq_pos_max(self.memory, sequence) >= 0)

    def save(self, sequence: int) -> NDArray[np.uint8]:
        """A sequence's cells, bit for bit. Only those in use: cheaper than the engine's copy of all there could be."""
        state = np.empty(self._lib.llama_state_seq_get_size(self.pointer, sequence), np.uint8)
        n = self._lib.llama_state_seq_get_data(self.pointer, _bytes(state), state.size, sequence)
        return state[:n]

    def restore(self, sequence: int, state: NDArray[np.uint8]) -> bool:
        """Put saved cells into a sequence, in order, instead of what it had. False: the engine does not take them."""
        return bool(self._lib.llama_state_seq_set_data(self.pointer, _bytes(state), state.size, sequence))

    def clear(self) -> None:
        """Free every cell."""
        if self.memory:
            self._lib.llama_memory_clear(self.memory, False)

    def close(self) -> None:
        """Free it. Idempotent."""
        if self.pointer:
            self._lib.llama_free(self.pointer)
            self.pointer = None


def _bytes(array: NDArray[np.uint8]) -> Any:
    return array.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


def _address_function(raw: Any, name: str) -> Any:
    """A C function (context, i32) → pointer, whose result is a plain address: a view costs 1 µs so."""
    prototype = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)
    return prototype((name, raw))


def generation_context(lib: Any, model: Model, shape: Shape, threads: int, *, quantized_kv: bool) -> Context:
    """A context to generate with: KV cells for each sequence, outputs for each of them.

    Args:
        quantized_kv: a Q8_0 cache with flash attention on, the way that results do not depend on the batch.

    Raises: Refused(oom) where the engine gives none.
    """
    p = lib.llama_context_default_params()
    p.n_ctx, p.n_seq_max = shape.cells, shape.sequences
    p.n_batch = p.n_ubatch = shape.micro_batch
    p.n_outputs_max = shape.sequences
    p.n_threads = p.n_threads_batch = threads
    # Cells of its own for each sequence, filled in the order of positions. In a unified cache a sequence takes whatever
    # cell is free: attention then adds up in another order than alone, and the last bits differ.
    p.kv_unified = False
    p.swa_full = True  # a sliding window must not throw away what a prefix is reused from
    p.no_perf = True
    if quantized_kv:
        p.flash_attn_type, p.type_k, p.type_v = _FLASH_ON, _Q8_0, _Q8_0
    else:
        p.flash_attn_type, p.type_k, p.type_v = _FLASH_AUTO, _F16, _F16
    return Context(lib, model, shape, p, threads)


def embedding_context(lib: Any, model: Model, shape: Shape, threads: int, pooling: str) -> Context:
    """A context whose output is one pooled vector (or score, for "rank") a sequence. Raises: Refused(oom)."""
    p = lib.llama_context_default_params()
    p.n_ctx, p.n_seq_max = shape.cells, shape.sequences
    p.n_batch = p.n_ubatch = shape.micro_batch  # an encoder takes all tokens of a call in one micro-batch, or aborts
    p.n_threads = p.n_threads_batch = threads
    p.embeddings, p.pooling_type = True, POOLING[pooling]
    p.kv_unified = True
    p.no_perf = True
    return Context(lib, model, shape, p, threads)
