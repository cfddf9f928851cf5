"""The conversation as it should be: golden bytes, sizes, turns, and payloads that nobody copies."""

from __future__ import annotations

import mmap
import tracemalloc

import numpy as np
import pytest

from synapse.errors import LocalProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import (
    NEED_DATA,
    AckReceived,
    Closed,
    Connection,
    HelloReceived,
    ReplyReceived,
    RequestReceived,
    RequestUnreadable,
    ShutdownReceived,
)
from synapse.wire.frames import prefix
from synapse.wire.rules import REQUESTS
from synapse.wire.state import SENDER, TABLE, Role, Signal, State
from tests.wire.pair import HELLO, Pair, connection, feed, greeted
from tests.wire.vectors import BYTES, CASES

ADDITIVE = {"DECODE", "DECODED"}


def test_golden_bytes() -> None:
    """v1 is written exactly like this, and every vector means what it says."""
    pair = Pair()
    ends = {Role.MODULE: pair.module, Role.WORKER: pair.worker}
    for name, (sender, message, raws) in CASES.items():
        written = b"".join(bytes(buffer) for buffer in ends[sender].send(message, raws))  # type: ignore[arg-type]
        if name not in ADDITIVE:  # those may grow keys with defaults
            assert written == BYTES[name], name
        (event,) = feed(ends[sender.peer], BYTES[name])
        match event:
            case HelloReceived(hello):
                assert hello == message
            case AckReceived(ack):
                assert ack == message
            case RequestReceived(request, got):
                assert (request, [bytes(raw) for raw in got]) == (message, raws)
            case ReplyReceived(reply, got):
                assert (reply, [bytes(raw) for raw in got]) == (message, raws)
            case _:
                assert (event, message) == (ShutdownReceived(), m.Shutdown())
    assert pair.module.state is pair.worker.state is State.CLOSING


def test_both_sides_use_the_smaller_max_frame() -> None:
    pair = Pair(max_frame=2**20).greet()
    assert pair.module.max_frame == pair.worker.max_frame == 2**20
    request = m.Generate(req_id="1", model_ref="m", max_tokens=1)
    with pytest.raises(LocalProtocolError, match="limit"):
        pair.module.send(request, [bytes(2**20 + 4)])
    assert isinstance(pair.say(Role.MODULE, request, bytes(2**20)), RequestReceived)


def test_every_cell_of_the_table_is_reached_and_no_other() -> None:
    """Exactly one end may speak at any time, every state but the last ones is left again."""
    assert set(TABLE) == set(State)
    for state, cells in TABLE.items():
        assert {sender for sender, _ in cells} in (set(), {SENDER[state]})
    reached = {State.HELLO} | {following for cells in TABLE.values() for following in cells.values()}
    assert reached == set(State) - {State.CLOSED, State.FAILED}
    used = {signal for cells in TABLE.values() for _, signal in cells}
    assert used == set(Signal)


def test_every_request_has_a_rule() -> None:
    kinds = {kind for kind in m.AnyRequest.__args__ if kind is not m.Shutdown}
    assert kinds == set(REQUESTS)
    for kind, rule in REQUESTS.items():
        assert ("raw" in kind.__struct_fields__) == (not rule.v1)
        assert (rule.size is None) == (rule.raws == 0)
        assert (rule.reply_size is None) == (rule.reply_raws == 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_unknown_type_is_read_with_its_raw_frames(count: int) -> None:
    """A worker that does not know a later type stays in step (W4)."""
    worker = greeted(Role.WORKER)
    header = b'{"type":"SING","req_id":"9","raw":%d,"song":{"verses":[1,2]}}' % count
    frames = [header] + [b"abc" * index for index in range(count)]
    (event,) = feed(worker, b"".join(prefix(len(frame)) + frame for frame in frames))
    assert isinstance(event, RequestUnreadable)
    assert (event.req_id, event.code) == ("9", "unknown_type")
    worker.send(m.Err(req_id="9", code=event.code, msg=event.msg))
    assert worker.state is State.IDLE


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (
            b'{"type":"EMBED_BATCH","req_id":"1","model_ref":"m","pooling":"mean","normalize":true,"items":[],"x":1}',
            "x",
        ),
        (b'{"type":"EMBED_BATCH","req_id":"1","model_ref":"m","pooling":"max","normalize":true,"items":[]}', "max"),
        (b'{"type":"EMBED_BATCH","req_id":"1","model_ref":"m","pooling":"cls","normalize":1,"items":[]}', "bool"),
        (b'{"type":"EMBED_BATCH","req_id":"1"}', "model_ref"),
        (b'{"type":"GENERATE","req_id":"1","model_ref":"m","max_tokens":-1}', ">= 0"),
        (b'{"type":"DECODE","req_id":"1","raw":1,"model_ref":"m","max_steps":1,"target_ms":1,"start":[{}]}', "start"),
    ],
)
def test_a_known_request_that_does_not_fit_is_refused_in_step(header: bytes, says: str) -> None:
    """Its raw frame is read first; the connection goes on (W1, W4)."""
    worker = greeted(Role.WORKER)
    (event,) = feed(worker, prefix(len(header)) + header + prefix(5) + b"12345")
    assert isinstance(event, RequestUnreadable)
    assert event.code == "invalid_request"
    assert says in event.msg
    worker.send(m.Err(req_id="1", code=event.code, msg=event.msg))
    assert feed(worker, BYTES["PING"]) == [RequestReceived(m.Ping(req_id="7"), [])]


def test_err_answers_everything_and_has_no_raw_frame() -> None:
    pair = Pair().greet()
    for name, (sender, message, raws) in CASES.items():
        if not isinstance(message, m.Request):
            continue
        pair.say(sender, message, *raws)
        err = m.Err(req_id=message.req_id, code="oom", msg=name)
        with pytest.raises(LocalProtocolError):
            pair.worker.send(err, [b"1234"])
        assert pair.say(Role.WORKER, err) == ReplyReceived(err, [])
    assert pair.module.state is State.IDLE


def test_unknown_keys_of_a_reply_are_ignored() -> None:
    pair = Pair().greet()
    pair.say(Role.MODULE, m.Ping(req_id="1"))
    payload = b'{"type":"PONG","later":{"a":[1]},"req_id":"1","rss_mb":2,"models_loaded":0}'
    (event,) = feed(pair.module, prefix(len(payload)) + payload)
    assert event == ReplyReceived(m.Pong(req_id="1", rss_mb=2.0, models_loaded=0), [])


EMBED = m.EmbedBatch(req_id="1", model_ref="m", pooling="cls", normalize=False, items=[m.EmbedItem("a", 1)])


@pytest.mark.parametrize(
    ("role", "prepare", "message", "raws"),
    [
        (Role.WORKER, [], m.Pong(req_id="1", rss_mb=0, models_loaded=0), []),
        (Role.MODULE, [], m.HelloAck(v=1, accept=True, max_frame=2**20), []),
        (Role.MODULE, [], HELLO, []),
        (Role.MODULE, [], EMBED, []),
        (Role.MODULE, [], EMBED, [b"12345678"]),
        (Role.MODULE, [], EMBED, [b"1234", b"1234"]),
        (Role.MODULE, [], m.Ping(req_id="1"), [b"1234"]),
        (Role.MODULE, [], m.Shutdown(), [b"1234"]),
        (Role.MODULE, [], m.Generate(req_id="1", model_ref="m", max_tokens=-1), [b"1234"]),
        (Role.MODULE, [], m.Generate(req_id="\ud800", model_ref="m", max_tokens=1), [b"1234"]),
        (Role.MODULE, [], m.Load(req_id="1", artifact_path="x" * 2**23, artifact_digest="", format=""), []),
        (Role.WORKER, [EMBED], m.Vectors(req_id="2", dims=1, n=1), [b"1234"]),
        (Role.WORKER, [EMBED], m.Vectors(req_id="1", dims=2, n=1), [b"1234"]),
        (Role.WORKER, [EMBED], m.Vectors(req_id="1", dims=1, n=2), [b"12345678"]),
        (Role.WORKER, [EMBED], m.Vectors(req_id="1", dims=1, n=1), [np.array([np.nan], "<f4")]),
        (Role.WORKER, [EMBED], m.Vectors(req_id="1", dims=1, n=1), [np.array([-np.inf], "<f4")]),
        (Role.WORKER, [EMBED], m.Scores(req_id="1"), [b"1234"]),
        (Role.WORKER, [m.Ping(req_id="1")], m.Pong(req_id="1", rss_mb=float("nan"), models_loaded=0), []),
    ],
)
def test_our_own_mistakes_are_found_before_a_byte_is_sent(
    role: Role, prepare: list[m.Request], message: object, raws: list[bytes]
) -> None:
    """And the connection is as it was: the right message still goes out."""
    pair = Pair().greet()
    for request in prepare:
        pair.say(Role.MODULE, request, *([b"1234"] if request is EMBED else []))
    end = pair.module if role is Role.MODULE else pair.worker
    before = end.state
    with pytest.raises(LocalProtocolError):
        end.send(message, raws)  # type: ignore[arg-type]
    assert end.state is before
    if prepare:
        pair.say(Role.WORKER, m.Err(req_id="1", code="oom", msg=""))
    pair.say(Role.MODULE, m.Ping(req_id="2"))


def test_a_large_raw_frame_is_never_copied_by_us() -> None:
    """16 MiB: what `send` gives is the caller's memory, what an event carries is what the transport received into."""
    size = 16 * 2**20
    pair = Pair().greet()
    request = m.Generate(req_id="1", model_ref="m", max_tokens=1)
    ids = np.ones(size // 4, dtype="<i4")
    tracemalloc.start()
    header, _, payload = pair.module.send(request, [ids])
    assert np.shares_memory(np.frombuffer(payload, np.uint8), ids)
    feed(pair.worker, header)
    feed(pair.worker, prefix(size))
    lent = pair.worker.get_buffer()
    assert len(lent) == size
    lent[:] = payload
    pair.worker.buffer_filled(size)
    event = pair.worker.next_event()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(event, RequestReceived)
    assert np.shares_memory(np.frombuffer(event.raws[0], np.uint8), np.frombuffer(lent, np.uint8))
    assert peak < 2**20
    assert isinstance(event.raws[0].obj, mmap.mmap)


def test_a_small_message_comes_in_one_call_with_all_its_frames() -> None:
    pair = Pair().greet()
    request = m.Generate(req_id="1", model_ref="m", max_tokens=1)
    data = b"".join(bytes(buffer) for buffer in pair.module.send(request, [bytes(4000)]))
    lent = pair.worker.get_buffer()
    lent[: len(data)] = data
    pair.worker.buffer_filled(len(data))
    event = pair.worker.next_event()
    assert isinstance(event, RequestReceived)
    assert event.raws == [bytes(4000)]
    assert pair.worker.next_event() is NEED_DATA


@pytest.mark.parametrize("role", list(Role))
def test_the_end_of_the_stream_is_an_event(role: Role) -> None:
    end = greeted(role)
    end.buffer_filled(0)
    assert end.next_event() == Closed(mid_frame=False)
    assert end.state is State.CLOSED
    cut = connection(Role.MODULE)
    feed(cut, BYTES["HELLO"][:20])
    cut.buffer_filled(0)
    assert cut.next_event() == Closed(mid_frame=True)
    with pytest.raises(LocalProtocolError):
        cut.send(m.Ping(req_id="1"))


def test_an_end_does_not_mind_which_role_it_plays() -> None:
    """The table is the same object for both ends; only the turn differs."""
    ends: list[Connection] = [connection(role) for role in Role]
    assert {end.state for end in ends} == {State.HELLO}
