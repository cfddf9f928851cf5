"""Control frames and the frame reader."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import msgspec

from fuzz.mutate import damaged, pieces
from synapse.wire import control
from synapse.wire.frames import FrameReader, prefix
from tests.wire.vectors import BYTES

INVARIANT = (
    "A control frame is a message that encodes and decodes to itself again, or Malformed and nothing else; frames "
    "come out of a stream whole, however it is cut."
)
_DECODERS = (control.decode_hello, control.decode_ack, control.decode_request, control.decode_reply)
_FRAGMENTS = (
    *(b'"req_id"', b'"type"', b"null", b"1e999", b"NaN", b"-1", b"[", b"{", b"}", b"9" * 400, b"\xff", b'"\\ud800"'),
    *(b'"raw":16', b'"raw":17', b'"v":1,', b"1.5", b"true", b"[" * 2000, b'"a":1,"a":1'),
)
_MOST_BYTES = 1 << 16
_PAYLOADS = [data[4 : 4 + int.from_bytes(data[:4], "little")] for data in BYTES.values()]


def check(data: bytes) -> None:
    """The first byte chooses the decoder and seeds the cuts, the rest is one payload."""
    chosen, payload = (data[0], data[1:]) if data else (0, b"")
    _check_control(_DECODERS[chosen % 4], payload)
    _check_frames(payload, random.Random(chosen))


def _check_control(decode: object, payload: bytes) -> None:
    try:
        message = decode(payload)  # type: ignore[operator]
    except control.Malformed:
        return
    if isinstance(message, control.Unreadable):
        assert 0 <= message.raws <= 16
        assert message.code in ("unknown_type", "invalid_request")
        return
    again = decode(msgspec.json.encode(message))  # type: ignore[operator]
    assert again == message, (message, again)


def _check_frames(payload: bytes, rng: random.Random) -> None:
    """The payload as frames of its own bytes, in one stream, whole and cut."""
    frames = re.findall(rb".{1,300}", payload, re.DOTALL)
    stream = b"".join(prefix(len(frame)) + frame for frame in frames)
    assert _read([stream], rng) == frames
    assert _read(pieces(rng, stream), rng) == frames


def _read(parts: list[bytes], rng: random.Random) -> list[bytes]:
    reader, frames = FrameReader(), []
    for part in parts:
        view = memoryview(part)
        while len(view):
            room = reader.get_buffer()
            count = min(len(room), len(view))
            assert count > 0
            room[:count] = view[:count]
            view = view[count:]
            reader.buffer_filled(count)
            frames += _whole(reader, rng)
    assert not reader.started
    return frames


def _whole(reader: FrameReader, rng: random.Random) -> Iterator[bytes]:
    while True:
        if reader.length is not None:
            assert reader.length <= _MOST_BYTES
            rng.choice((reader.expect_control, reader.expect_raw))()
        if (frame := reader.take()) is None:
            return
        yield bytes(frame)


def generate(rng: random.Random) -> bytes:
    return bytes([rng.randrange(256)]) + damaged(rng, rng.choice(_PAYLOADS), _FRAGMENTS, _PAYLOADS)
