"""What becomes of a virtual worker's answer on its way out, by the name of the fault.

Each function takes the reply and its buffers (header with prefix, then prefix and payload of a raw frame) and returns
other buffers. `APPLIES` says for which replies a lie exists at all.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import msgspec

from synapse.wire import messages as m
from synapse.wire.frames import prefix

Buffers = list[bytes]

_NAN = struct.pack("<f", float("nan"))


def frame(payload: bytes) -> bytes:
    return prefix(len(payload)) + payload


def _header(buffers: Buffers) -> dict[str, object]:
    header: dict[str, object] = msgspec.json.decode(buffers[0][4:])
    return header


def _again(header: dict[str, object], buffers: Buffers) -> Buffers:
    return [frame(msgspec.json.encode(header)), *buffers[1:]]


def _other_request(reply: m.Reply, buffers: Buffers) -> Buffers:
    return _again(_header(buffers) | {"req_id": "nobody"}, buffers)


def _wrong_kind(reply: m.Reply, buffers: Buffers) -> Buffers:
    other: m.Reply = m.Pong(req_id=reply.req_id, rss_mb=1.0, models_loaded=0)
    if isinstance(reply, m.Pong):
        other = m.Unloaded(req_id=reply.req_id)
    return [frame(msgspec.json.encode(other))]


def _dims_lie(reply: m.Reply, buffers: Buffers) -> Buffers:
    assert isinstance(reply, m.Vectors)
    return _again(_header(buffers) | {"dims": reply.dims + 1}, buffers)


def _unknown_sequence(reply: m.Reply, buffers: Buffers) -> Buffers:
    assert isinstance(reply, m.Decoded)
    told = msgspec.structs.replace(reply, sequences=[*reply.sequences, m.SequenceProgress(seq=999, text="boo")])
    return [frame(msgspec.json.encode(told))]


LIES: dict[str, Callable[[m.Reply, Buffers], Buffers]] = {
    "garbage": lambda reply, buffers: [b"\xff\xff\xff\xff"],
    "empty_frame": lambda reply, buffers: [b"\0\0\0\0"],
    "malformed": lambda reply, buffers: [frame(b'{"type":"PONG","req_id":"\xff","rss_mb":NaN}')],
    "unknown_reply": lambda reply, buffers: _again(_header(buffers) | {"type": "SUNG"}, buffers),
    "wrong_kind": _wrong_kind,
    "other_request": _other_request,
    "unsolicited": lambda reply, buffers: buffers * 2,
    "raw_lie": lambda reply, buffers: [buffers[0], prefix(len(buffers[2]) - 4), buffers[2][:-4]],
    "dims_lie": _dims_lie,
    "nan": lambda reply, buffers: [*buffers[:2], _NAN + buffers[2][4:]],
    "unknown_sequence": _unknown_sequence,
}

APPLIES: dict[str, Callable[[m.Reply], bool]] = {
    "raw_lie": lambda reply: isinstance(reply, m.Vectors | m.Scores),
    "nan": lambda reply: isinstance(reply, m.Vectors | m.Scores),
    "dims_lie": lambda reply: isinstance(reply, m.Vectors),
    "unknown_sequence": lambda reply: isinstance(reply, m.Decoded),
}
"""A lie that is missing here fits every reply."""
