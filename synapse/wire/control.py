"""Control frames: JSON to structs and back. Whatever is wrong with them is a `Malformed`, nothing else is raised."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from synapse.wire import messages as m
from synapse.wire.rules import MAX_RAW_FRAMES, REQUEST_TYPES, REQUESTS

Payload = bytes | bytearray | memoryview
T = TypeVar("T")

_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Malformed(Exception):
    """Not a control frame of the expected kind. `__str__` says why."""


class Unreadable(msgspec.Struct):
    """A request that cannot be served but keeps its place: its raw frames are read, then it is answered ERR."""

    req_id: str
    raws: int
    code: str
    msg: str


class _Envelope(msgspec.Struct):
    type: str
    req_id: str
    raw: Annotated[int, Meta(ge=0, le=MAX_RAW_FRAMES)] = 0


_ENCODER = msgspec.json.Encoder()
_HELLO = msgspec.json.Decoder(m.Hello)
_ACK = msgspec.json.Decoder(m.HelloAck)
_REQUEST: msgspec.json.Decoder[m.AnyRequest | m.Shutdown] = msgspec.json.Decoder(m.AnyRequest | m.Shutdown)
_REPLY: msgspec.json.Decoder[m.AnyReply] = msgspec.json.Decoder(m.AnyReply)
_ENVELOPE = msgspec.json.Decoder(_Envelope)

_BAD_JSON = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)
"""What msgspec raises for bytes that are not what the decoder wants (ValidationError is a DecodeError)."""


def decode_hello(payload: Payload) -> m.Hello:
    return _decode(_HELLO.decode, payload)


def decode_ack(payload: Payload) -> m.HelloAck:
    return _decode(_ACK.decode, payload)


def decode_reply(payload: Payload) -> m.AnyReply:
    return _decode(_REPLY.decode, payload)


def decode_request(payload: Payload) -> m.AnyRequest | m.Shutdown | Unreadable:
    """A request, or what is left to do with one that cannot be served (W1, W4).

    Raises Malformed where not even its place in the conversation can be told: no JSON object, no type or req_id.
    """
    try:
        return _decode(_REQUEST.decode, payload)
    except Malformed as error:
        envelope = _decode(_ENVELOPE.decode, payload)
        known = REQUEST_TYPES.get(envelope.type)
        if known is None:
            return Unreadable(envelope.req_id, envelope.raw, "unknown_type", f"unknown type {envelope.type[:80]!r}")
        rule = REQUESTS[known]
        raws = rule.raws if rule.v1 or envelope.raw == 0 else envelope.raw
        return Unreadable(envelope.req_id, raws, "invalid_request", str(error))


def encode(message: msgspec.Struct) -> bytes:
    """The frame's payload. Raises Malformed for what the other side would refuse (a NaN, a negative count): we never
    send what we would not accept."""
    try:
        payload = _ENCODER.encode(message)
    except (UnicodeEncodeError, TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"{type(message).__name__} cannot be encoded: {error}") from None
    if isinstance(message, m.Hello):
        decode_hello(payload)
    elif isinstance(message, m.HelloAck):
        decode_ack(payload)
    elif isinstance(message, m.Reply):
        decode_reply(payload)
    elif isinstance(decoded := decode_request(payload), Unreadable):
        raise Malformed(decoded.msg)
    return payload


def _decode(decode: Callable[[Payload], T], payload: Payload) -> T:
    try:
        message = decode(payload)
        # What we would have written ourselves has no key twice; anything else is looked at.
        if _ENCODER.encode(message) != payload and _keys(payload) != _keys(
            _ENCODER.encode(msgspec.json.decode(payload))
        ):
            raise Malformed("a key is given twice")
    except _BAD_JSON as error:
        raise Malformed(str(error)) from None
    return message


def _keys(payload: Payload) -> int:
    """How many keys the objects of this valid JSON text have: outside strings, a colon stands behind each key only."""
    text = bytes(payload)
    if b"\\" in text:
        return _STRINGS.sub(b"", text).count(b":")
    return b"".join(text.split(b'"')[::2]).count(b":")  # the same, several times faster: no quote is escaped
