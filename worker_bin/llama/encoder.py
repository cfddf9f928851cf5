"""EMBED_BATCH and RERANK: many texts in one engine call, one vector or score each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from worker_bin.engine import Refused
from worker_bin.llama.config import Role, Shape
from worker_bin.llama.context import embedding_context
from worker_bin.llama.model import Model

Ids = NDArray[np.int32]


class Encoder:
    """The contexts of an embedding model or a reranker.

    llama.cpp fixes the pooling with the context: another pooling than the model's own makes another context, which
    replaces the former one (about 0.1 s).
    """

    def __init__(self, lib: Any, model: Model, shape: Shape, threads: int, pooling: str, role: Role) -> None:
        self._lib, self._model, self._threads = lib, model, threads
        self.shape, self.pooling, self.role = shape, pooling, role
        self.context = embedding_context(lib, model, shape, threads, pooling)

    @property
    def dims(self) -> int:
        return 1 if self.role == "rerank" else self._model.n_embd

    def embed(self, texts: Sequence[Ids], pooling: str, *, normalize: bool) -> NDArray[np.float32]:
        """One vector for each text: f32[n, dims].

        Raises: Refused for a reranker, a pooling that the model cannot do, a text that is empty, too long or holds ids
        out of range, and for vectors that are not finite.
        """
        if self.role == "rerank":
            raise Refused("unsupported", "the model is a reranker: its vectors mean nothing")
        self._use_pooling(pooling)
        self.check(texts)
        vectors = self.run(texts)
        if not np.isfinite(vectors).all():
            raise Refused("engine_failed", "the engine's vectors are not finite")
        if normalize:
            norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64))
            if not norms.all():
                raise Refused("engine_failed", "the engine's vector is zero: it has no direction")
            vectors /= norms[:, None].astype(np.float32)
        return vectors

    def rerank(self, query: Ids, documents: Sequence[Ids]) -> NDArray[np.float32]:
        """One raw score (the ranking head's logit) for each document: f32[n].

        Raises: Refused for a model that is no reranker, an empty text, a pair that is too long, ids out of range, and
        for scores that are not finite.
        """
        if self.role != "rerank":
            raise Refused("unsupported", "the model has no ranking head: it cannot rerank")
        if not len(query) or not all(map(len, documents)):
            raise Refused("invalid_request", "the query or a document is empty")
        pairs = [self.pair(query, document) for document in documents]
        self.check(pairs)
        scores = self.run(pairs)[:, 0]
        if not np.isfinite(scores).all():
            raise Refused("engine_failed", "the engine's scores are not finite")
        return np.ascontiguousarray(scores)

    def pair(self, query: Ids, document: Ids) -> Ids:
        """A query and a document as one input (D10): BERT's `[CLS] q [SEP] d [SEP]`; for other vocabularies
        bos q eos sep d eos, each special token only where the vocabulary's flags ask for it."""
        model = self._model
        if model.word_piece:
            before, between, after = [model.bos], [model.sep], [model.sep]
        else:
            end = model.eos if model.eos >= 0 else model.sep
            before = [model.bos] if model.add_bos else []
            after = [end] if model.add_eos else []
            between = after + ([model.sep] if model.add_sep else [])
        parts = [before, query, between, document, after]
        return np.concatenate([np.asarray(part, np.int32) for part in parts])

    def check(self, texts: Sequence[Ids]) -> None:
        """Refuse what the engine would abort on. Raises: Refused(invalid_request) naming the text."""
        for index, ids in enumerate(texts):
            if not len(ids):
                raise Refused("invalid_request", f"text {index} has no tokens")
            if len(ids) > self.shape.context:
                raise Refused(
                    "invalid_request", f"text {index} has {len(ids)} tokens, over the limit of {self.shape.context}"
                )
            if int(ids.min()) < 0 or int(ids.max()) >= self._model.n_vocab:
                raise Refused("invalid_request", f"text {index} holds a token id outside the vocabulary")

    def run(self, texts: Sequence[Ids]) -> NDArray[np.float32]:
        """Encode checked texts, as few engine calls as the micro-batch allows: f32[n, dims]. Raises: Refused."""
        out = np.empty((len(texts), self.dims), np.float32)
        for first, last in self._calls(texts):
            self._run_call(texts[first:last], out[first:last])
        return out

    def _calls(self, texts: Sequence[Ids]) -> Iterator[tuple[int, int]]:
        first = tokens = 0
        for index, ids in enumerate(texts):
            if tokens + len(ids) > self.shape.micro_batch or index - first >= self.shape.sequences:
                yield first, index
                first, tokens = index, 0
            tokens += len(ids)
        if texts:
            yield first, len(texts)

    def _run_call(self, texts: Sequence[Ids], out: NDArray[np.float32]) -> None:
        batch, at = self.context.batch, 0
        for sequence, ids in enumerate(texts):
            here = slice(at, at + len(ids))
            batch.token[here] = ids
            batch.pos[here] = np.arange(len(ids))
            batch.seq[here] = sequence
            at = here.stop
        batch.output[:at] = 1
        self.context.clear()
        status = self.context.decode(at)
        if status != 0:
            raise Refused("engine_failed", f"the engine cannot encode {at} tokens (status {status})")
        for sequence in range(len(texts)):
            out[sequence] = self.context.pooled(sequence, self.dims)

    def _use_pooling(self, pooling: str) -> None:
        if pooling == self.pooling:
            return
        context = embedding_context(self._lib, self._model, self.shape, self._threads, pooling)
        self.context.close()
        self.context, self.pooling = context, pooling

    def close(self) -> None:
        self.context.close()
