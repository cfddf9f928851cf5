"""Server-sent events: what our own streams send, and an incremental reader for upstreams' streams and for clients.

Both keep to 256 KiB for one event and 32 MiB for a stream (contract, streams; decisions C7, C11).
"""

from __future__ import annotations

import codecs
from typing import Any, NamedTuple

import msgspec

from pumas.contract.errors import ContractError, error_record
from pumas.contract.limits import CONTRACT_VERSION, MAX_EVENT_BYTES, MAX_RESPONSE_BYTES
from pumas.contract.results import check_finish_reason

KEEP_ALIVE = b": \n\n"
"""A comment: shows a waiting client that the stream is alive, and means nothing (C7)."""

_DELTA_CHARACTERS = 40_000
"""In JSON a character takes at most 6 bytes, so a delta of so many stays below the event bound."""


def started(request_id: str, capability: str, model: str, profile: str) -> bytes:
    """Sent when the operation is admitted, before the first token."""
    return _event(
        {
            "kind": "started",
            "contract_version": CONTRACT_VERSION,
            "request_id": request_id,
            "capability": capability,
            "model": model,
            "profile": profile,
        }
    )


def delta(request_id: str, text: str) -> bytes:
    """New text: one event, or several where it would be over the event bound. Empty text sends nothing."""
    pieces = (text[at : at + _DELTA_CHARACTERS] for at in range(0, len(text), _DELTA_CHARACTERS))
    return b"".join(_event({"kind": "delta", "request_id": request_id, "text": piece}) for piece in pieces)


def completed(request_id: str, finish_reason: str, **additive: Any) -> bytes:
    """Sent only after the engine's own terminal. `additive`: further members, such as usage and seed."""
    reason = check_finish_reason(finish_reason)
    return _event({"kind": "completed", "request_id": request_id, "finish_reason": reason} | additive)


def failed(request_id: str, error: ContractError) -> bytes:
    """The last event after any fault."""
    return _event({"kind": "failed", "request_id": request_id, "error": error_record(error)})


def _event(data: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (data["kind"].encode(), msgspec.json.encode(data))


class StreamBound:
    """Counts what a stream of ours sent; the answer to a client that would get more is a `failed` event."""

    def __init__(self, limit: int = MAX_RESPONSE_BYTES) -> None:
        self.sent, self.limit = 0, limit

    def count(self, size: int) -> None:
        """Raises: ContractError: response_limit, before the bytes are sent; unknown: the work goes on."""
        if self.sent + size > self.limit:
            message = f"the stream is over the limit of {self.limit} bytes"
            raise ContractError("response_limit", message, outcome="unknown")
        self.sent += size


class Event(NamedTuple):
    """One dispatched event. `name` is "message" where the stream gives none."""

    name: str
    data: str


class EventReader:
    """Incremental SSE reader: UTF-8 in any pieces, LF, CR and CRLF, comments, data of several lines, a leading BOM.

    Feed it what arrives; it returns the events that became complete. After the last piece call `finish`. Linear in the
    bytes, however they are cut. Not usable after it raised.
    """

    def __init__(self, *, max_event: int = MAX_EVENT_BYTES, max_total: int = MAX_RESPONSE_BYTES) -> None:
        self._max_event, self._max_total = max_event, max_total
        self._total = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("strict")
        self._line: list[str] = []
        """Pieces of the line that has not ended yet."""
        self._after_cr = False
        self._at_start = True
        self._name, self._data = "", list[str]()
        self._event_bytes = 0
        """Bytes of the event so far, its comments, names and line ends included."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events that `piece` completes.

        Raises: ContractError: response_limit (cumulative bound), invalid_provider_result (event bound, UTF-8); unknown.
        """
        self._total += len(piece)
        if self._total > self._max_total:
            raise _fault("response_limit", f"the stream is over the limit of {self._max_total} bytes")
        text = self._decode(piece)
        if not text:
            return []
        if self._at_start:
            self._at_start = False
            text = text.removeprefix("\ufeff")
        if self._after_cr and text.startswith("\n"):
            text = text[1:]
        self._after_cr = text.endswith("\r") if text else False
        events: list[Event] = []
        *whole, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        for line in whole:
            self._take(line)
            self._end_line(events)
        self._take(rest)
        return events

    def finish(self) -> None:
        """The body ended. Raises: ContractError: transport_lost in the middle of an event or of a character."""
        self._decode(b"", final=True)
        if self._line or self._data or self._name:
            raise _fault("transport_lost", "the stream ended in the middle of an event")

    def _decode(self, piece: bytes, final: bool = False) -> str:
        try:
            return self._decoder.decode(piece, final)
        except UnicodeDecodeError:
            if final:
                raise _fault("transport_lost", "the stream ended in the middle of a character") from None
            raise _fault("invalid_provider_result", "the stream is not UTF-8") from None

    def _take(self, text: str) -> None:
        if text:
            self._line.append(text)
            self._event_bytes += len(text.encode())
            if self._event_bytes > self._max_event:
                raise _fault("invalid_provider_result", f"an event is over the limit of {self._max_event} bytes")

    def _end_line(self, events: list[Event]) -> None:
        line = "".join(self._line)
        self._line.clear()
        if not line:
            if self._data:
                events.append(Event(self._name or "message", "\n".join(self._data)))
            self._name, self._data, self._event_bytes = "", [], 0
            return
        self._event_bytes += 1
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        # A comment (no field name), `id`, `retry` and unknown fields mean nothing here.


def _fault(code: str, message: str) -> ContractError:
    return ContractError(code, message, outcome="unknown")
