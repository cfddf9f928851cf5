"""Whatever a peer sends leads to events or to one RemoteProtocolError, and memory follows what came."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from synapse.errors import LocalProtocolError, RemoteProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import MAX_HANDSHAKE_FRAME_BYTES, Connection
from synapse.wire.frames import prefix
from synapse.wire.state import Role, State
from tests.wire.pair import HELLO, NONCE, Pair, connection, feed, greeted, outcome
from tests.wire.vectors import BYTES, CASES

REPLIES = [name for name, (sender, _, _) in CASES.items() if sender is Role.WORKER]
REQUESTS = [name for name, (sender, _, _) in CASES.items() if sender is Role.MODULE]


def _answers(role: Role) -> list[tuple[object, list[bytes]]]:
    """What this end says in the conversation of the vectors."""
    return [(message, list(raws)) for sender, message, raws in CASES.values() if sender is role]  # type: ignore[misc]


def _stream(role: Role) -> bytes:
    """What this end says, as bytes."""
    return b"".join(BYTES[name] for name, (sender, _, _) in CASES.items() if sender is role)


def _pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    at = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(at, at[1:], strict=False)]


@pytest.mark.parametrize("role", list(Role))
def test_byte_by_byte_is_the_same(role: Role) -> None:
    data = _stream(role.peer)
    whole = outcome(connection(role), [data], _answers(role))
    assert outcome(connection(role), [bytes([byte]) for byte in data], _answers(role)) == whole
    assert len(whole) == len(_answers(role.peer)) + 1


@settings(
    max_examples=200, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    role=st.sampled_from(list(Role)),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.binary(max_size=6), st.integers(0, 6)), max_size=4),
    cuts=st.lists(st.integers(0, 4000), max_size=12),
)
def test_any_bytes_however_cut(role: Role, changes: list[tuple[int, bytes, int]], cuts: list[int]) -> None:
    """A conversation with bytes replaced, inserted and removed anywhere: the same events and the same violation."""
    data = bytearray(_stream(role.peer))
    for at, new, removed in changes:
        at %= len(data) + 1
        data[at : at + removed] = new
    whole = outcome(connection(role), [bytes(data)], _answers(role))
    assert outcome(connection(role), _pieces(bytes(data), cuts), _answers(role)) == whole


def test_a_thousand_mutated_control_frames() -> None:
    """Structured rubbish behind a right prefix: JSON that is nearly right."""
    chance = random.Random(7)
    words = [
        b'"req_id"',
        b'"type"',
        b"null",
        b"1e999",
        b"NaN",
        b"-1",
        b"[",
        b"{",
        b"}",
        b'"\\ud800"',
        b"9" * 400,
        b"\xff",
    ]
    for _ in range(1000):
        role = chance.choice(list(Role))
        name = chance.choice(REPLIES if role is Role.MODULE else REQUESTS)
        payload = bytearray(BYTES[name][4:])
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(payload))
            payload[at : at + chance.randrange(8)] = chance.choice(words)
        end = greeted(role)
        if role is Role.MODULE:
            end.send(m.Ping(req_id="7"))
        try:
            feed(end, prefix(len(payload)) + payload)
        except RemoteProtocolError:
            assert end.state is State.FAILED


HUGE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize("length", [0, MAX_HANDSHAKE_FRAME_BYTES + 1, m.MAX_JSON_FRAME_BYTES + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("role", list(Role))
def test_a_length_is_judged_before_anything_is_allocated(role: Role, length: int) -> None:
    fresh = connection(role)
    if role is Role.WORKER:
        fresh.send(HELLO)
    with pytest.raises(RemoteProtocolError, match="control frame"):
        feed(fresh, prefix(length))
    if length > m.MAX_JSON_FRAME_BYTES or length == 0:
        later = greeted(role)
        if role is Role.MODULE:
            later.send(m.Ping(req_id="1"))
        with pytest.raises(RemoteProtocolError, match="control frame"):
            feed(later, prefix(length))


def test_memory_follows_what_came() -> None:
    """64 ends whose peers claim 8 MiB or 64 MiB and send next to nothing."""
    request = m.EmbedBatch(req_id="1", model_ref="m", pooling="cls", normalize=False, items=[m.EmbedItem("a", 2**24)])
    payload = msgspec.json.encode(request)
    before = _rss_bytes()
    ends = []
    for _ in range(64):
        control = greeted(Role.WORKER)
        feed(control, prefix(m.MAX_JSON_FRAME_BYTES) + b"{")
        raw = greeted(Role.WORKER)
        feed(raw, prefix(len(payload)) + payload + prefix(2**26) + b"1234")
        ends += [control, raw]
    assert _rss_bytes() - before < 32 * 2**20
    assert len(ends) == 128


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "hello",
    [
        b'{"v":2,"nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}',
        b'{"v":"1","nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}',
        b'{"v":1,"nonce":"0123456789abcdee","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}',
        '{"v":1,"nonce":"0123456789abcdeé","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}'.encode(),
        b'{"v":1,"nonce":"","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}',
        b'{"v":1,"nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4712,"max_frame":65536}',
        b'{"v":1,"nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":0}',
        b'{"v":1,"nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":4294967296}',
        b'{"v":1,"nonce":"0123456789abcdef","pid":4711,"max_frame":65536}',
        b'{"type":"PONG","req_id":"1","rss_mb":1,"models_loaded":0}',
        b"[]",
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"v":1,"v":1,"nonce":"0123456789abcdef","engine":{"name":"a","version":"1"},"pid":4711,"max_frame":65536}',
    ],
)
def test_an_impostor_gets_nothing(hello: bytes) -> None:
    module = connection(Role.MODULE)
    with pytest.raises(RemoteProtocolError):
        feed(module, prefix(len(hello)) + hello)
    assert module.state is State.FAILED
    with pytest.raises(LocalProtocolError):
        module.send(m.HelloAck(v=1, accept=True, max_frame=2**20))


def test_the_first_violation_stays() -> None:
    module = connection(Role.MODULE)
    for _ in range(3):
        with pytest.raises(RemoteProtocolError, match="control frame of 4294967295"):
            module.next_event() if module.state is State.FAILED else feed(module, HUGE)


@pytest.mark.parametrize("name", REPLIES)
def test_an_idle_module_takes_nothing(name: str) -> None:
    """Unsolicited replies, HELLO a second time: already the length is too much."""
    with pytest.raises(RemoteProtocolError, match="out of turn"):
        feed(greeted(Role.MODULE), BYTES[name][:4])


def test_a_worker_takes_no_second_request_while_busy() -> None:
    worker = greeted(Role.WORKER)
    feed(worker, BYTES["PING"])
    with pytest.raises(RemoteProtocolError, match="out of turn"):
        feed(worker, BYTES["PING"])


def _vectors(dims: int, n: int, req_id: str = "1") -> bytes:
    payload = msgspec.json.encode(m.Vectors(req_id=req_id, dims=dims, n=n))
    return prefix(len(payload)) + payload


def _control(payload: bytes) -> bytes:
    return prefix(len(payload)) + payload


_FOUR = prefix(4) + b"\0\0\x80\x3f"


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (_vectors(1, 1, "2"), "in flight"),
        (BYTES["PONG"].replace(b'"7"', b'"1"'), "does not answer"),
        (_vectors(2, 1) + _FOUR, "announced 8"),
        (_vectors(1, 2), "does not fit"),
        (_vectors(2**30, 1) + HUGE, "limit"),
        (_vectors(1, 1) + prefix(4) + b"\0\0\xc0\x7f", "NaN"),
        (_vectors(1, 1) + prefix(4) + b"\0\0\x80\xff", "NaN"),
        (_vectors(1, 1) + prefix(0), "announced 4"),
        (_vectors(1, 1) + _FOUR + _FOUR, "out of turn"),
        (_control(b'{"type":"VECTORS","req_id":"1","dims":1,"n":1,"n":1}'), "twice"),
        (_control(b'{"type":"VECTORS","req_id":"1","dims":NaN,"n":1}'), "malformed"),
        (_control(b'{"type":"VECTORS","req_id":"1","dims":1e999,"n":1}'), "malformed"),
        (_control(b'{"type":"VECTORS","req_id":"1","dims":-1,"n":1}'), "malformed"),
        (_control(b'{"type":"VECTORS","req_id":"1","dims":1}'), "malformed"),
        (_control(b'{"type":"SING","req_id":"1"}'), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":"\xff"}'), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":"\\ud800"}'), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":' + b"[" * 10**6), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":"","x":' + b"[" * 10**6), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":"","x":' + b'{"a":' * 10**5), "malformed"),
        (_control(b'{"type":"ERR","req_id":"1","code":"oom","msg":""} x'), "malformed"),
        (_control(b"\x00"), "malformed"),
        (prefix(0), "control frame of 0"),
    ],
)
def test_a_wrong_reply_is_a_violation(sent: bytes, says: str) -> None:
    pair = Pair().greet()
    request = m.EmbedBatch(req_id="1", model_ref="m", pooling="cls", normalize=False, items=[m.EmbedItem("a", 1)])
    pair.say(Role.MODULE, request, b"1234")
    with pytest.raises(RemoteProtocolError, match=says):
        feed(pair.module, sent)
    assert pair.module.state is State.FAILED


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (BYTES["EMBED_BATCH"][:-16] + prefix(8) + b"12345678", "announced 12"),
        (BYTES["GENERATE"][:-16] + prefix(7) + b"1234567", "whole number"),
        (_control(b'{"req_id":"1"}'), "malformed"),
        (_control(b'{"type":"PING"}'), "malformed"),
        (_control(b'{"type":"PING","req_id":7}'), "malformed"),
        (_control(b'{"type":"PING","req_id":"7","req_id":"8"}'), "twice"),
        (_control(b'{"type":"SING","req_id":"1","raw":-1}'), "malformed"),
        (_control(b'{"type":"SING","req_id":"1","raw":1000000}'), "malformed"),
        (_control(b'{"type":"LOAD","req_id":"1","runtime_config":' + b'{"a":' * 10**5), "malformed"),
    ],
)
def test_a_module_that_breaks_step_is_a_violation(sent: bytes, says: str) -> None:
    with pytest.raises(RemoteProtocolError, match=says):
        feed(greeted(Role.WORKER), sent)


def test_a_string_may_look_like_keys() -> None:
    """The search for doubled keys is not taken in by colons, quotes and backslashes inside strings."""
    pair = Pair().greet()
    text = '":":\\":{"req_id":"1","req_id":"2"}\\\\'
    config = {text: text, "\\": ":", '"': '\\":'}
    load = m.Load(req_id=text, artifact_path=text, artifact_digest="", format="", runtime_config=config)
    event = pair.say(Role.MODULE, load)
    assert event.request == load  # type: ignore[union-attr]


def test_the_nonce_is_no_secret_but_must_be_equal() -> None:
    right = Connection(Role.MODULE, nonce=NONCE, pid=None)
    feed(right, BYTES["HELLO"])
    assert right.state is State.ACK
