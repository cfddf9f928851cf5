"""Streams of events: whatever way the bytes are cut the events are the same, and a stream cut short is never whole."""

from __future__ import annotations

import random

import msgspec
import pytest

from pumas.contract import events
from pumas.contract.errors import ContractError
from pumas.contract.events import Event, EventReader
from pumas.contract.limits import MAX_EVENT_BYTES, MAX_RESPONSE_BYTES

TRICKY = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b"event: delta\r\ndata: one\r\ndata:two\r\ndata:  three\r\n\r\n"
    b"data: caf\xc3\xa9 \xf0\x9f\x8e\xb5\n\n"
    b"id: 7\nretry: 10\nunknown\ndata\n\n"
    b"event: named\r\rdata: cr only\r\r"
    b"event: without data\n\n"
    b"data: {\"a\": 1}\nevent: late\n\n\n\n"
    b": keep-alive\n\ndata: [DONE]\r\n\r\n"
)  # fmt: skip
EXPECTED = [
    Event("delta", "one\ntwo\n three"),
    Event("message", "caf\u00e9 \U0001f3b5"),
    Event("message", ""),
    Event("message", "cr only"),
    Event("late", '{"a": 1}'),
    Event("message", "[DONE]"),
]


def read(pieces: list[bytes]) -> list[Event]:
    reader = EventReader()
    found = [event for piece in pieces for event in reader.feed(piece)]
    reader.finish()
    return found


def test_whole_and_byte_by_byte_are_the_same() -> None:
    assert read([TRICKY]) == EXPECTED
    assert read([TRICKY[at : at + 1] for at in range(len(TRICKY))]) == EXPECTED


def test_any_two_and_three_pieces_are_the_same() -> None:
    for at in range(len(TRICKY) + 1):
        assert read([TRICKY[:at], TRICKY[at:]]) == EXPECTED
    rng = random.Random(3)
    for _ in range(500):
        first, second = sorted(rng.randrange(len(TRICKY) + 1) for _ in range(2))
        assert read([TRICKY[:first], TRICKY[first:second], b"", TRICKY[second:]]) == EXPECTED


def recorded() -> bytes:
    """A stream as ours are."""
    return b"".join(
        (
            events.started("example:1", "chat_generation", "m\u00f6del", "default"),
            events.KEEP_ALIVE,
            events.delta("example:1", "Hello \U0001f3b5\n"),
            events.delta("example:1", ""),
            events.delta("example:1", "\u2028 there"),
            events.completed("example:1", "stop", seed=5),
        )
    )


def outcome(stream: bytes) -> str:
    """What a client may conclude: "completed" after a completed event and a clean end, else "failed"."""
    reader, kinds = EventReader(), list[str]()
    try:
        for event in reader.feed(stream):
            data = msgspec.json.decode(event.data)
            assert data["kind"] == event.name
            assert data["request_id"] == "example:1"
            kinds.append(event.name)
        reader.finish()
    except ContractError as error:
        return "failed" if error.outcome == "unknown" else error.outcome
    return "completed" if kinds and kinds[0] == "started" and kinds[-1] == "completed" else "failed"


def test_a_stream_cut_at_any_byte_never_looks_complete() -> None:
    stream = recorded()
    assert outcome(stream) == "completed"
    for at in range(len(stream)):
        assert outcome(stream[:at]) == "failed", at


def test_events_are_what_the_contract_says() -> None:
    found = [(event.name, msgspec.json.decode(event.data)) for event in read([recorded()])]
    assert found[0] == (
        "started",
        {"kind": "started", "contract_version": 1, "request_id": "example:1", "capability": "chat_generation",
         "model": "m\u00f6del", "profile": "default"},
    )  # fmt: skip
    texts = [data["text"] for name, data in found if name == "delta"]
    assert "".join(texts) == "Hello \U0001f3b5\n\u2028 there"
    assert found[-1][1] == {"kind": "completed", "request_id": "example:1", "finish_reason": "stop", "seed": 5}
    error = ContractError("provider_failure", "password: hunter2", outcome="unknown")
    (failed,) = read([events.failed("example:1", error)])
    assert msgspec.json.decode(failed.data) == {
        "kind": "failed",
        "request_id": "example:1",
        "error": {"code": "provider_failure", "outcome": "unknown", "message": "password: [redacted]"},
    }


def test_an_unrecognised_finish_reason_cannot_complete() -> None:
    with pytest.raises(ContractError) as caught:
        events.completed("example:1", "tool_calls")
    assert caught.value.code == "invalid_provider_result"


@pytest.mark.parametrize("character", ["a", "\x00", '"', "\u00e9", "\U0001f3b5", "\u2028"])
def test_long_text_is_split_below_the_event_bound(character: str) -> None:
    text = character * 300_000
    stream = events.delta("r" * 128, text)
    assert max(map(len, stream.split(b"\n\n"))) < MAX_EVENT_BYTES
    reader = EventReader(max_total=10 * MAX_RESPONSE_BYTES)
    assert "".join(msgspec.json.decode(event.data)["text"] for event in reader.feed(stream)) == text


@pytest.mark.parametrize("step", [1, 7, 4096, 10**9])
def test_event_bound(step: int) -> None:
    def feed(size: int) -> list[Event]:
        stream = b"data: " + b"x" * (size - 6) + b"\n\n"
        reader = EventReader()
        return [event for at in range(0, len(stream), step) for event in reader.feed(stream[at : at + step])]

    assert len(feed(MAX_EVENT_BYTES)) == 1
    with pytest.raises(ContractError) as caught:
        feed(MAX_EVENT_BYTES + 1)
    assert (caught.value.code, caught.value.outcome) == ("invalid_provider_result", "unknown")


def test_comments_count_for_the_event_bound() -> None:
    reader = EventReader()
    line = b":" + b"x" * 98 + b"\n"
    for _ in range(MAX_EVENT_BYTES // 100):
        reader.feed(line)
    with pytest.raises(ContractError):
        reader.feed(line)


def test_cumulative_bound() -> None:
    reader = EventReader()
    piece = b":" + b"x" * 1021 + b"\n\n"
    for _ in range(MAX_RESPONSE_BYTES // 1024):
        reader.feed(piece)
    with pytest.raises(ContractError) as caught:
        reader.feed(b"\n")
    assert caught.value.code == "response_limit"


@pytest.mark.parametrize("stream", [b"data: \xff\n\n", b"data: \xed\xa0\x80\n\n", b"data: \xc3\n\n"])
def test_bad_utf8_is_an_invalid_result(stream: bytes) -> None:
    with pytest.raises(ContractError) as caught:
        EventReader().feed(stream)
    assert caught.value.code == "invalid_provider_result"


@pytest.mark.parametrize("stream", [b"data: x", b"data: x\n", b"data: \xc3", b"event: x\n", b": half a comment"])
def test_an_end_in_the_middle_is_a_lost_transport(stream: bytes) -> None:
    reader = EventReader()
    assert reader.feed(stream) == []
    with pytest.raises(ContractError) as caught:
        reader.finish()
    assert (caught.value.code, caught.value.outcome) == ("transport_lost", "unknown")


def test_our_own_streams_are_bounded() -> None:
    bound = events.StreamBound(100)
    bound.count(100)
    with pytest.raises(ContractError) as caught:
        bound.count(1)
    assert (caught.value.code, caught.value.outcome) == ("response_limit", "unknown")
