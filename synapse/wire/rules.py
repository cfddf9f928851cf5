"""What belongs together on the wire: which reply answers which request, how many raw frames follow, how long they are.

A v1 type fixes its raw frames; a type added later says their number in `"raw"` (W4). Sizes are in bytes and follow from
the header alone, or for a reply from header and request (W5).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from synapse.wire import messages as m

MAX_RAW_FRAMES = 16
"""How many raw frames a header of an unknown type may announce."""
ITEM_BYTES = 4
"""An i32 token id or an f32."""
_FEW_BYTES = 8192


@dataclass(frozen=True)
class RequestRule:
    """One request type.

    Attributes:
        reply: the type that answers it (besides ERR).
        raws: raw frames behind the request.
        size: its raw frame's exact bytes; None as result: any whole number of items.
        reply_raws: raw frames behind the reply.
        reply_size: (request, reply) → its raw frame's exact bytes; None as result: the two contradict each other.
        floats: the reply's raw frame is f32 and every value must be finite.
        v1: the type is fixed by v1; later ones carry "raw".
    """

    reply: type[m.Reply]
    raws: int = 0
    size: Callable[[Any], int | None] | None = None
    reply_raws: int = 0
    reply_size: Callable[[Any, Any], int | None] | None = None
    floats: bool = False
    v1: bool = True


def _embed_size(request: m.EmbedBatch) -> int:
    return ITEM_BYTES * sum(item.n_tokens for item in request.items)


def _rerank_size(request: m.Rerank) -> int:
    return ITEM_BYTES * (request.query_n_tokens + sum(candidate.n_tokens for candidate in request.candidates))


def _decode_size(request: m.Decode) -> int:
    return ITEM_BYTES * sum(start.n_tokens for start in request.start)


def _vectors_size(request: m.EmbedBatch, reply: m.Vectors) -> int | None:
    return ITEM_BYTES * reply.dims * reply.n if reply.n == len(request.items) else None


def _scores_size(request: m.Rerank, reply: m.Scores) -> int:
    return ITEM_BYTES * len(request.candidates)


def _tokenized_size(request: m.Tokenize, reply: m.Tokenized) -> int | None:
    if len(reply.counts) != len(request.lengths) or any(count < 0 for count in reply.counts):
        return None
    return ITEM_BYTES * sum(reply.counts)


def _rendered_size(request: m.Render, reply: m.Rendered) -> int | None:
    return ITEM_BYTES * reply.n_tokens if reply.n_tokens >= 0 else None


REQUESTS: dict[type[m.Request], RequestRule] = {
    m.Load: RequestRule(m.Loaded),
    m.EmbedBatch: RequestRule(m.Vectors, raws=1, size=_embed_size, reply_raws=1, reply_size=_vectors_size, floats=True),
    m.Rerank: RequestRule(m.Scores, raws=1, size=_rerank_size, reply_raws=1, reply_size=_scores_size, floats=True),
    m.Generate: RequestRule(m.Text, raws=1, size=lambda request: None),
    m.Unload: RequestRule(m.Unloaded),
    m.Ping: RequestRule(m.Pong),
    m.Decode: RequestRule(m.Decoded, raws=1, size=_decode_size, v1=False),
    m.Ingest: RequestRule(m.Ingested, v1=False),
    m.Tokenize: RequestRule(
        m.Tokenized,
        raws=1,
        size=lambda request: sum(request.lengths),
        reply_raws=1,
        reply_size=_tokenized_size,
        v1=False,
    ),
    m.Render: RequestRule(
        m.Rendered,
        raws=1,
        size=lambda request: int(request.n_bytes),
        reply_raws=1,
        reply_size=_rendered_size,
        v1=False,
    ),
    m.CheckGrammar: RequestRule(m.GrammarChecked, raws=1, size=lambda request: int(request.n_bytes), v1=False),
}
"""Every request but SHUTDOWN, which has no reply."""

REQUEST_TYPES: dict[str, type[m.Request]] = {str(kind.__struct_config__.tag): kind for kind in REQUESTS}


def all_finite(raw: memoryview) -> bool:
    """Whether every little-endian f32 in `raw` is finite. A worker's start-up never pays for numpy here."""
    if len(raw) <= _FEW_BYTES and sys.byteorder == "little":
        return all(map(math.isfinite, raw.cast("B").cast("f")))
    import numpy as np

    return bool(np.isfinite(np.frombuffer(raw, dtype="<f4")).all())


def as_markdown() -> str:
    """The table of pairs as docs/protocol.md shows it."""
    lines = ["| request | its raw frames | reply | its raw frames |", "|---|---|---|---|"]
    for kind, rule in REQUESTS.items():
        request, reply = (str(message.__struct_config__.tag) for message in (kind, rule.reply))
        lines.append(f"| {request} | {rule.raws or ''} | {reply} | {_kind_of_reply(rule)} |")
    return "\n".join(lines) + "\n"


def _kind_of_reply(rule: RequestRule) -> str:
    return (
        "" if not rule.reply_raws else f"{rule.reply_raws} (finite f32)" if rule.floats else f"{rule.reply_raws} (i32)"
    )
