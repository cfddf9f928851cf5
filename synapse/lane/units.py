"""Units as requests on the wire, and replies as checked results.

The wire has checked a reply's type, sizes and finiteness; what is checked here needs the unit or the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synapse.errors import InvalidEngineResult
from synapse.policy.scheduler import BatchUnit, DecodeUnit, GenerateUnit, Ids
from synapse.policy.scheduler.batches import texts_of
from synapse.wire.messages import (
    Candidate,
    Decode,
    Decoded,
    DecodeStart,
    EmbedBatch,
    EmbedItem,
    Generate,
    Pooling,
    Request,
    Rerank,
    SequenceProgress,
    Text,
    Vectors,
)

FINISH_REASONS = ("stop", "length")


def raw_of(ids: Sequence[Ids]) -> list[memoryview]:
    """Token ids as one raw frame, little-endian, one text behind the other."""
    joined = np.concatenate([np.zeros(0, dtype="<i4"), *ids]).astype("<i4", copy=False)
    return [joined.data.cast("B")]


def request_for(
    unit: BatchUnit | DecodeUnit | GenerateUnit, req_id: str, model_ref: str, pooling: Pooling
) -> tuple[Request, list[memoryview]]:
    """The request that does this unit, and its raw frame."""
    if isinstance(unit, BatchUnit):
        texts = texts_of(unit)
        if unit.query is not None:
            candidates = [Candidate(n_tokens=len(ids)) for ids in texts]
            request: Request = Rerank(
                req_id=req_id, model_ref=model_ref, query_n_tokens=len(unit.query), candidates=candidates
            )
            return request, raw_of([unit.query, *texts])
        items = [EmbedItem(id=str(at), n_tokens=len(ids)) for at, ids in enumerate(texts)]
        return EmbedBatch(req_id=req_id, model_ref=model_ref, pooling=pooling, normalize=True, items=items), raw_of(
            texts
        )
    if isinstance(unit, GenerateUnit):
        work = unit.work
        request = Generate(req_id=req_id, model_ref=model_ref, max_tokens=work.max_tokens, grammar=work.grammar)
        return request, raw_of([work.prompt])
    starts = [
        DecodeStart(
            seq=start.seat,
            n_tokens=len(start.work.prompt),
            max_tokens=start.work.max_tokens,
            sampling=start.work.sampling,
            stop=list(start.work.stop),
            grammar=start.work.grammar,
            json_schema=start.work.json_schema,
            logprobs=start.work.logprobs,
            reuse=start.reuse,
        )
        for start in unit.start
    ]
    decode = Decode(
        req_id=req_id,
        model_ref=model_ref,
        max_steps=unit.max_steps,
        target_ms=unit.target_ms,
        threads=unit.threads,
        start=starts,
        continue_=list(unit.continue_),
        drop=list(unit.drop),
        park=list(unit.park),
    )
    return decode, raw_of([start.work.prompt for start in unit.start])


def vectors_of(reply: Vectors, raw: memoryview, dims: int) -> NDArray[np.float32]:
    """f32[n, dims] of an embedding unit. Raises InvalidEngineResult for other dimensions than LOADED said."""
    if reply.dims != dims:
        raise InvalidEngineResult(f"vectors of {reply.dims} dimensions from a model of {dims}")
    return np.frombuffer(raw, dtype="<f4").reshape(reply.n, dims)


def scores_of(raw: memoryview) -> NDArray[np.float32]:
    """f32[n] of a rerank unit."""
    return np.frombuffer(raw, dtype="<f4")


def progress_of(unit: DecodeUnit, reply: Decoded) -> list[SequenceProgress]:
    """What the quantum's sequences did. Raises InvalidEngineResult for a sequence that was not in it or stands twice,
    an unknown finish reason, counts that cannot be, or a quantum in which nobody moved."""
    asked = {*unit.continue_, *(start.seat for start in unit.start)}
    seen: set[int] = set()
    for one in reply.sequences:
        if one.seq not in asked or one.seq in seen:
            raise InvalidEngineResult(f"sequence {one.seq} was not in the quantum, or stands twice in the reply")
        seen.add(one.seq)
        if one.finish_reason is not None and one.finish_reason not in FINISH_REASONS:
            raise InvalidEngineResult(f"finish reason {one.finish_reason!r}")
        if one.n_gen < len(one.ids) or min(one.n_prompt_done, one.n_reused) < 0:
            raise InvalidEngineResult(f"sequence {one.seq}: {len(one.ids)} new tokens, {one.n_gen} in all")
    if asked and not seen:
        raise InvalidEngineResult("a quantum in which no sequence moved")
    return reply.sequences


def text_of(reply: Text) -> SequenceProgress:
    """A whole answer, as one piece of progress. Raises InvalidEngineResult."""
    if reply.finish_reason not in FINISH_REASONS:
        raise InvalidEngineResult(f"finish reason {reply.finish_reason!r}")
    return SequenceProgress(
        seq=0, text=reply.text, n_prompt_done=reply.n_prompt, n_gen=reply.n_gen, finish_reason=reply.finish_reason
    )
