"""The misbehaviours as switches: `what[=value][@place][#n]`, several separated by commas.

`place` is where it happens, `n` lets only the n-th time at that place count (1 is the first). They come from the
environment variable SYNAPSE_FAULTS, so that they hold for every boot, and from LOAD's runtime_config key `faults`.
"""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import re
import signal
import sys
import time
from dataclasses import dataclass

from worker_bin.engine import Refused

ENVIRONMENT = "SYNAPSE_FAULTS"

ACTS = {
    "exit": "leave with this exit status (default 0)",
    "abort": "abort(), as GGML_ASSERT does",
    "segv": "SIGSEGV",
    "illegal": "SIGILL: an engine built for another CPU",
    "kill": "SIGKILL to itself",
    "stop": "SIGSTOP to itself",
    "hang": "sleep for ever",
    "spin": "spin in Python",
    "spin_c": "spin in C, holding the GIL",
    "slow": "take this many seconds more",
    "flood": "print this many bytes",
    "print": "print this text",
    "grandchild": "fork a child that lives this many seconds and holds output and socket",
    "daemon": "the same, in a session of its own",
    "ignore_sigterm": "ignore SIGTERM from now on",
    "raise": "raise an exception that the engine should not raise",
    "refuse": "answer ERR engine_failed",
}
"""What happens at a place, before what would happen there anyway. With `.after` behind the place: after the reply."""

LIES = {
    "drip": "send byte by byte, this many seconds apart",
    "half": "send half of the bytes, then exit 0",
    "cut": "close the connection between header and raw frame, and stay",
    "garbage": "send bytes that are no frame first",
    "wrong_nonce": "HELLO with another nonce",
    "wrong_pid": "HELLO with another pid",
    "wrong_version": "HELLO with v 2",
    "version_string": 'HELLO with v "1"',
    "twice": "send the message twice",
    "wrong_req_id": "answer another request",
    "wrong_type": "answer with PONG's type (LOADED's for PING)",
    "nan": "NaN as first float of the raw frame",
    "dims_lie": "one dimension more than the raw frame has",
    "short_raw": "four bytes less than the header says",
    "unsolicited": "a second reply, to nobody",
    "huge_length": "a frame that claims 2**32 - 1 bytes",
    "empty_frame": "a frame of no bytes",
    "bad_utf8": "a control frame that is no UTF-8",
    "deep": "a control frame nested 100,000 deep",
    "duplicate_key": "a control frame with a key given twice",
}
"""What becomes of a message on its way out. The place is HELLO or the request's type."""

PLACES = (
    "boot (before connecting), connect (before HELLO), HELLO, ready (after HELLO_ACK), a request's type such as LOAD "
    "or EMBED_BATCH, SHUTDOWN, any (every request; the default)"
)

_FAULT = re.compile(r"(?P<what>\w+)(=(?P<value>[^@#,]*))?(@(?P<place>[\w.]+))?(#(?P<nth>\d+))?")


class EngineBug(Exception):
    """What the switch `raise` raises."""


@dataclass(frozen=True)
class Fault:
    what: str
    value: str
    place: str
    nth: int | None


def parse(text: str) -> list[Fault]:
    """The faults of a switch text. Raises ValueError that names what is wrong."""
    faults = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        match = _FAULT.fullmatch(part)
        if match is None or match["what"] not in ACTS | LIES:
            raise ValueError(f"no such fault: {part!r}; --help lists them")
        nth = int(match["nth"]) if match["nth"] else None
        faults.append(Fault(match["what"], match["value"] or "", match["place"] or "any", nth))
    return faults


class Plan:
    """Which faults are active, and how often each place was passed."""

    def __init__(self, text: str) -> None:
        self._faults = parse(text)
        self._passed: collections.Counter[str] = collections.Counter()

    def add(self, text: str) -> None:
        self._faults += parse(text)

    def act(self, place: str) -> None:
        """Pass this place: what should happen here, happens. May not return."""
        for fault in self._due(place, ACTS):
            _act(fault)

    def lies(self, place: str) -> list[Fault]:
        """What becomes of the message that is sent at this place."""
        return self._due(place + "/send", LIES)

    def _due(self, passed: str, kinds: dict[str, str]) -> list[Fault]:
        place = passed.removesuffix("/send")
        request = place.isupper() and place != "HELLO"
        names = {place: passed} | ({"any": "any" + passed.removeprefix(place)} if request else {})
        if place.endswith(".after"):
            names["any.after"] = "any.after"
        for counter in names.values():
            self._passed[counter] += 1
        return [
            fault
            for fault in self._faults
            if fault.what in kinds and fault.place in names and fault.nth in (None, self._passed[names[fault.place]])
        ]


def _act(fault: Fault) -> None:
    match fault.what:
        case "exit":
            sys.stdout.flush()
            os._exit(int(fault.value or 0))
        case "abort":
            print("faulty: GGML_ASSERT(n_tokens > 0) failed", file=sys.stderr, flush=True)
            os.abort()
        case "segv":
            ctypes.string_at(0)
        case "illegal":
            os.kill(os.getpid(), signal.SIGILL)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "hang":
            while True:
                time.sleep(3600)
        case "spin":
            while True:
                pass
        case "spin_c":
            collections.deque(itertools.repeat(0), maxlen=0)
        case "slow":
            time.sleep(float(fault.value or 0.1))
        case "flood":
            _flood(int(fault.value or 1_000_000))
        case "print":
            print(fault.value, flush=True)
        case "grandchild" | "daemon":
            _fork(float(fault.value or 1), detached=fault.what == "daemon")
        case "ignore_sigterm":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        case "refuse":
            raise Refused("engine_failed", "as switched on")
        case _:
            raise EngineBug("as switched on")


def _flood(count: int) -> None:
    line = b"0123456789abcdef" * 4096
    sys.stdout.flush()
    while count > 0:
        count -= os.write(1, line[:count])


def _fork(seconds: float, *, detached: bool) -> None:
    child = os.fork()
    if child == 0:
        if detached:
            os.setsid()
        time.sleep(seconds)
        os._exit(0)
    print(f"grandchild {child}", flush=True)
