"""One end of a connection: handshake and conversation with a peer that may say anything."""

from __future__ import annotations

import random

from fuzz.mutate import damaged, pieces
from synapse.errors import RemoteProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import NEED_DATA, Closed, RequestReceived, RequestUnreadable
from synapse.wire.frames import prefix
from synapse.wire.state import SENDER, Role, State
from tests.wire.pair import HELLO, connection, describe
from tests.wire.vectors import BYTES, CASES

INVARIANT = (
    "Whatever the peer sends gives events or one RemoteProtocolError, the same however it is cut, and nothing is "
    "allocated for what was only announced."
)
_ROLES = (Role.MODULE, Role.WORKER)
_REQUESTS = [(message, raws) for sender, message, raws in CASES.values() if sender is Role.MODULE]
_MESSAGES = {role: [BYTES[name] for name, (sender, _, _) in CASES.items() if sender is role] for role in _ROLES}
_FRAGMENTS = (
    *(b"\xff\xff\xff\xff", b"\0\0\0\0", prefix(2**26), prefix(2**26 + 4), prefix(8 << 20), prefix(64 << 10)),
    *(b'"req_id":"1"', b'"req_id":"2"', b'"type":"PING"', b'"type":"PONG"', b"\0\0\xc0\x7f", b"\0\0\x80\x7f"),
)


def check(data: bytes) -> None:
    """The first byte says which end this is and seeds the cuts, the rest is what its peer sends."""
    chosen, stream = (data[0], data[1:]) if data else (0, b"")
    role = _ROLES[chosen % 2]
    whole = _outcome(role, [stream])
    cut = pieces(random.Random(chosen), stream) if chosen % 4 < 2 else [stream[i : i + 1] for i in range(len(stream))]
    parts = _outcome(role, cut)
    assert parts == whole, (whole, parts)


def _outcome(role: Role, parts: list[bytes]) -> list[str]:
    """What the bytes make of a fresh end that speaks whenever it is its turn: its events and its violation, if any."""
    end, seen, waiting = connection(role), list[str](), list(_REQUESTS)
    request: RequestReceived | RequestUnreadable | None = None
    violation = ""

    def speak() -> None:
        if SENDER[end.state] is not role:
            return
        if role is Role.MODULE:
            if waiting:
                end.send(*waiting.pop(0))
        elif end.state is State.HELLO:
            end.send(HELLO)
        elif request is not None:
            req_id = request.req_id if isinstance(request, RequestUnreadable) else request.request.req_id
            end.send(m.Err(req_id=req_id, code="unsupported", msg="no"))

    speak()
    for part in parts:
        view = memoryview(part)
        while len(view) and not violation:
            room = end.get_buffer()
            count = min(len(room), len(view))
            room[:count] = view[:count]
            view = view[count:]
            end.buffer_filled(count)
            try:
                while (event := end.next_event()) is not NEED_DATA:
                    seen.append(describe(event))
                    if isinstance(event, RequestReceived | RequestUnreadable):
                        request = event
                    speak()
            except RemoteProtocolError as error:
                violation = str(error)
    if not violation:
        end.buffer_filled(0)
        last = end.next_event()
        assert isinstance(last, Closed)
        return [*seen, describe(last)]
    return [*seen, violation]


def generate(rng: random.Random) -> bytes:
    chosen = rng.randrange(256)
    said = _MESSAGES[_ROLES[chosen % 2].peer]
    order = list(said)
    if rng.random() < 0.3:
        at = rng.randrange(len(order))
        order[at : at + 1] = rng.choice(([], [order[at]] * 2, [rng.choice(said)]))
    stream = b"".join(order)
    return bytes([chosen]) + (damaged(rng, stream, _FRAGMENTS, said) if rng.random() < 0.9 else stream)
