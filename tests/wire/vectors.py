"""One conversation whose bytes are written down in vectors.txt: frames that another implementation can be held to."""

from __future__ import annotations

from pathlib import Path

from synapse.wire import messages as m
from synapse.wire.connection import Buffer
from synapse.wire.state import Role
from tests.wire.pair import HELLO

_MODULE, _WORKER = Role.MODULE, Role.WORKER
_IDS = b"\x01\0\0\0\x02\0\0\0\x03\0\0\0"
_FLOATS = b"\0\0\x80\x3f\0\0\0\xc0"

CASES: dict[str, tuple[Role, object, list[Buffer]]] = {
    "HELLO": (_WORKER, HELLO, []),
    "HELLO_ACK": (_MODULE, m.HelloAck(v=1, accept=True, max_frame=2**20), []),
    "LOAD": (
        _MODULE,
        m.Load(
            req_id="1",
            artifact_path="/m.gguf",
            artifact_digest="sha256:" + "0" * 64,
            format="gguf",
            runtime_config={"context": "512"},
        ),
        [],
    ),
    "ERR": (_WORKER, m.Err(req_id="1", code="artifact_invalid", msg="déjà vu"), []),
    "EMBED_BATCH": (
        _MODULE,
        m.EmbedBatch(
            req_id="2",
            model_ref="m",
            pooling="mean",
            normalize=True,
            items=[m.EmbedItem("a", 2), m.EmbedItem("b", 1)],
        ),
        [_IDS],
    ),
    "VECTORS": (_WORKER, m.Vectors(req_id="2", dims=1, n=2), [_FLOATS]),
    "RERANK": (
        _MODULE,
        m.Rerank(req_id="3", model_ref="m", query_n_tokens=1, candidates=[m.Candidate(1), m.Candidate(1)]),
        [_IDS],
    ),
    "SCORES": (_WORKER, m.Scores(req_id="3"), [_FLOATS]),
    "GENERATE": (_MODULE, m.Generate(req_id="4", model_ref="m", max_tokens=8), [_IDS]),
    "TEXT": (_WORKER, m.Text(req_id="4", text="ok", n_prompt=3, n_gen=1, finish_reason="stop"), []),
    "DECODE": (
        _MODULE,
        m.Decode(
            req_id="5",
            model_ref="m",
            max_steps=4,
            target_ms=50.0,
            start=[m.DecodeStart(seq=0, n_tokens=3, max_tokens=9, sampling=m.Sampling())],
            continue_=[1],
        ),
        [_IDS],
    ),
    "DECODED": (_WORKER, m.Decoded(req_id="5", sequences=[m.SequenceProgress(seq=0, text="a", n_gen=1)]), []),
    "UNLOAD": (_MODULE, m.Unload(req_id="6", model_ref="m"), []),
    "UNLOADED": (_WORKER, m.Unloaded(req_id="6"), []),
    "PING": (_MODULE, m.Ping(req_id="7"), []),
    "PONG": (_WORKER, m.Pong(req_id="7", rss_mb=1.5, models_loaded=0), []),
    "SHUTDOWN": (_MODULE, m.Shutdown(), []),
}
"""name → (sender, message, raw frames), in the order of one conversation."""

BYTES = {
    name: bytes.fromhex(data)
    for name, data in (line.split() for line in (Path(__file__).parent / "vectors.txt").read_text().splitlines())
}
"""name → the bytes of the message with its raw frames."""
