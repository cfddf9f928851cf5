"""A session that lies as its plan says: the right bytes first, then what becomes of them."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Sequence

import msgspec

from synapse.wire import messages as m
from synapse.wire.connection import AckReceived, Buffer, Event, ShutdownReceived
from synapse.wire.frames import prefix
from worker_bin.engine import Refused
from worker_bin.faulty.faults import Fault, Plan
from worker_bin.serve import Session, SocketTransport

_NAN = struct.pack("<f", float("nan"))


def name_of(message: type[msgspec.Struct]) -> str:
    """The message's name on the wire."""
    return str(message.__struct_config__.tag)


class FaultySession(Session):
    """`serve.Session` with a plan of faults."""

    def __init__(self, transport: SocketTransport, engine: object, nonce: str, plan: Plan) -> None:
        super().__init__(transport, engine, nonce)  # type: ignore[arg-type]
        self._socket = transport
        self._plan = plan
        self._place = "HELLO"
        plan.act("connect")

    def _next_event(self) -> Event:
        event = super()._next_event()
        if isinstance(event, AckReceived):
            self._plan.act("ready")
        elif isinstance(event, ShutdownReceived):
            self._plan.act("SHUTDOWN")
        return event

    def _answer(self, request: m.Request, raws: Sequence[memoryview]) -> None:
        self._place = name_of(type(request))
        try:
            self._plan.act(self._place)
        except Refused as refused:
            self._send(m.Err(req_id=request.req_id, code=refused.code, msg=refused.message))
            return
        super()._answer(request, raws)
        self._plan.act(self._place + ".after")

    def _transmit(self, message: m.Hello | m.Reply, buffers: Sequence[Buffer]) -> None:
        lies = self._plan.lies(self._place)
        pieces = [bytes(buffer) for buffer in buffers]
        for lie in lies:
            pieces = _distort(lie, message, pieces)
        if any(lie.what == "cut" for lie in lies):
            self._socket.send_all(pieces[:1])
            self._socket.hang_up()
            time.sleep(3600)
        for lie in lies:
            if lie.what == "half":
                whole = b"".join(pieces)
                self._socket.send_all([whole[: len(whole) // 2]])
                sys.stdout.flush()
                os._exit(0)
            if lie.what == "drip":
                for byte in b"".join(pieces):
                    self._socket.send_all([bytes([byte])])
                    time.sleep(float(lie.value or 0.05))
                return
        self._socket.send_all(pieces)


def _distort(lie: Fault, message: m.Hello | m.Reply, pieces: list[bytes]) -> list[bytes]:
    """The message's pieces (header with its prefix, then prefix and payload of each raw frame) as the lie has them."""
    header = msgspec.json.decode(pieces[0][4:])
    match lie.what:
        case "garbage":
            return [b"\x07\x00\x00\x00garbage", *pieces]
        case "wrong_nonce":
            header["nonce"] = "f" * 16 if header["nonce"] != "f" * 16 else "0" * 16
        case "wrong_pid":
            header["pid"] += 1
        case "wrong_version":
            header["v"] = 2
        case "version_string":
            header["v"] = "1"
        case "twice":
            return pieces * 2
        case "wrong_req_id":
            header["req_id"] += "?"
        case "wrong_type":
            other = m.Loaded if isinstance(message, m.Pong) else m.Pong
            header = {"type": name_of(other), "req_id": header["req_id"]} | _OTHER_FIELDS[other]
        case "nan":
            return [*pieces[:2], _NAN + pieces[2][4:]]
        case "dims_lie":
            header["dims"] += 1
        case "short_raw":
            return [pieces[0], prefix(len(pieces[2]) - 4), pieces[2][:-4]]
        case "unsolicited":
            return [*pieces, _frame(msgspec.json.encode(m.Pong(req_id="nobody", rss_mb=1.0, models_loaded=0)))]
        case "huge_length":
            return [b"\xff\xff\xff\xff"]
        case "empty_frame":
            return [b"\0\0\0\0"]
        case "bad_utf8":
            return [_frame(b'{"type":"\xff\xfe"}')]
        case "deep":
            return [_frame(b'{"a":' * 100_000)]
        case "duplicate_key":
            return [_frame(pieces[0][4:-1] + b',"req_id":"twice"}'), *pieces[1:]]
    return [_frame(msgspec.json.encode(header)), *pieces[1:]]


_OTHER_FIELDS: dict[type[m.Reply], dict[str, object]] = {
    m.Pong: {"rss_mb": 1.0, "models_loaded": 0},
    m.Loaded: {"model_ref": "m", "dims": 1, "cold_load_ms": 1.0},
}


def _frame(payload: bytes) -> bytes:
    return prefix(len(payload)) + payload
