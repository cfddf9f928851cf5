"""The event stream of an upstream server."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from fuzz.mutate import damaged, pieces
from pumas.contract.errors import STATUS, ContractError
from pumas.contract.events import Event, EventReader
from pumas.providers.upstream.stream import UpstreamTextStream

INVARIANT = (
    "A stream completes with one text and one finish reason, or fails with a ContractError of unknown outcome; "
    "which of both and what text does not depend on how it is cut; and no part of a stream completes."
)
_CHUNKS = (
    b'data: {"choices":[{"index":0,"delta":{"content":"Hel"},"finish_reason":null}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{"content":"lo \xc3\xa9\xf0\x9f\x8e\xb5"},"finish_reason":null}]}\r\n\r\n',
    b'data: {"choices":[{"index":0,"text":"x"}]}\r\r',
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n',
    b": keep-alive\n\n",
    b"data: [DONE]\n\n",
)
_WHOLE = b"\xef\xbb\xbf" + b"".join(_CHUNKS)
_FRAGMENTS = (
    *(b"\n", b"\r", b"\r\n\r\n", b"data:", b"event: x\n", b"id: 1\n", b"\xef\xbb\xbf", b"\xff", b"\xf0\x9f", b"[DONE]"),
    *(
        b'"delta":"x"',
        b'"delta":[1]',
        b'"message":7',
        b'"finish_reason":"length"',
        b'"finish_reason":[]',
        b"null",
        b"{}",
    ),
    *(b'{"error":{"message":"out of memory"}}', b'"usage":{"prompt_tokens":-1}', b'"usage":7', b"9" * 400, b"1e999"),
    *(b'"text":5,', b'"choices":[1]', b'"index":1', b"true"),
)


class _Response:
    """An answer's body in given pieces."""

    def __init__(self, parts: list[bytes]) -> None:
        self._parts = parts

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for part in self._parts:
            yield part


def check(data: bytes) -> None:
    """The first byte seeds the cuts, the rest is the body."""
    rng, body = random.Random(data[0] if data else 0), data[1:]
    whole = _outcome([body])
    assert _outcome(pieces(rng, body)) == whole
    assert _outcome([body[at : at + 1] for at in range(len(body))]) == whole
    if whole is not None:
        end = body.rindex(b"[DONE]")
        assert _outcome([body[: rng.randrange(end + 6)]]) is None
    _check_events(body, rng)


def _check_events(body: bytes, rng: random.Random) -> None:
    whole, cut = _events([body]), _events(pieces(rng, body))
    assert (whole is None) == (cut is None)
    if whole is not None:
        assert whole == cut
        assert all("\n" not in event.name and "\r" not in event.name + event.data for event in whole)


def _events(parts: list[bytes]) -> list[Event] | None:
    reader = EventReader()
    try:
        found = [event for part in parts for event in reader.feed(part)]
        reader.finish()
    except ContractError as error:
        assert error.outcome == "unknown"
        return None
    return found


def _outcome(parts: list[bytes]) -> tuple[str, str, Any] | None:
    """Text, finish reason and usage; None for a failure."""
    stream = UpstreamTextStream(_Response(parts), "upstream")  # type: ignore[arg-type]
    text: list[str] = []

    async def read() -> None:
        async for delta in stream:
            text.append(delta.text)

    try:
        finished(read())
    except ContractError as error:
        assert error.code in STATUS
        assert error.outcome == "unknown"
        return None
    return "".join(text), stream.finish_reason, stream.usage


def finished(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits for something")


def generate(rng: random.Random) -> bytes:
    if rng.random() < 0.3:
        body = b"".join(rng.choice(_CHUNKS) for _ in range(rng.randrange(8))) + rng.choice(
            (b"", _CHUNKS[3] + _CHUNKS[-1])
        )
    else:
        body = damaged(rng, _WHOLE, _FRAGMENTS, _CHUNKS)
    return bytes([rng.randrange(256)]) + body
