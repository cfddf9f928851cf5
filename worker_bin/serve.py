"""The request loop of every worker: connect, HELLO, then one request after the other over a blocking socket.

Exit statuses: 0 after SHUTDOWN; 2 bad arguments; 70 a bug of the engine (the traceback is in the log); 71 the module
broke the protocol; 75 the module is gone; 77 the module refused us; 78 the required sandbox is missing.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from synapse.errors import LocalProtocolError, RemoteProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import (
    NEED_DATA,
    AckReceived,
    Buffer,
    Connection,
    Event,
    RequestReceived,
    RequestUnreadable,
    ShutdownReceived,
)
from synapse.wire.state import Role
from worker_bin.engine import Engine, Refused

EXIT_ENGINE_BUG = 70
EXIT_PROTOCOL = 71
EXIT_MODULE_GONE = 75
EXIT_REFUSED = 77

_MESSAGE_CHARS = 4096
_MOST_BUFFERS = 64


class Transport(Protocol):
    """A blocking connection to the module."""

    def send_all(self, buffers: Sequence[Buffer]) -> None: ...

    def receive_into(self, buffer: memoryview) -> int:
        """At least one byte; 0 at the end."""


class SocketTransport:
    """A Unix socket, watched by a thread: when the module goes, this process goes at once, whatever its main thread
    does in Python (one that holds the GIL in C is ended by the parent-death signal)."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(address)
        threading.Thread(target=self._watch, name="module-watch", daemon=True).start()

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._socket, getattr(select, "POLLRDHUP", 0))
        poller.poll()  # only a hang-up ends it
        os._exit(EXIT_MODULE_GONE)

    def hang_up(self) -> None:
        """Say the last word and stay alive. (A close alone would do nothing while the watch holds the socket.)"""
        self._socket.shutdown(socket.SHUT_WR)

    def send_all(self, buffers: Sequence[Buffer]) -> None:
        pending = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if len(view)]
        while pending:
            sent = self._socket.sendmsg(pending[:_MOST_BUFFERS])
            while pending and sent >= len(pending[0]):
                sent -= len(pending.pop(0))
            if pending:
                pending[0] = pending[0][sent:]

    def receive_into(self, buffer: memoryview) -> int:
        return self._socket.recv_into(buffer)


class Session:
    """One worker's conversation with the module."""

    def __init__(self, transport: Transport, engine: Engine, nonce: str) -> None:
        self._transport = transport
        self._engine = engine
        self._nonce = nonce
        self._wire = Connection(Role.WORKER)

    def run(self) -> int:
        """Until SHUTDOWN or the module's end; the exit status."""
        try:
            self._send(
                m.Hello(
                    v=m.PROTOCOL_VERSION,
                    nonce=self._nonce,
                    engine=self._engine.info,
                    pid=os.getpid(),
                    max_frame=m.DEFAULT_MAX_FRAME_BYTES,
                )
            )
            while True:
                match self._next_event():
                    case AckReceived(ack):
                        if not ack.accept:
                            return EXIT_REFUSED
                    case RequestReceived(request, raws):
                        self._answer(request, raws)
                    case RequestUnreadable(req_id, code, msg):
                        self._send(m.Err(req_id=req_id, code=code, msg=msg[:_MESSAGE_CHARS]))
                    case ShutdownReceived():
                        return 0
                    case _:
                        return EXIT_MODULE_GONE
        except RemoteProtocolError as error:
            print(f"the module broke the protocol: {error}", file=sys.stderr, flush=True)
            return EXIT_PROTOCOL
        except (BrokenPipeError, ConnectionResetError):
            return EXIT_MODULE_GONE

    def _next_event(self) -> Event:
        while (event := self._wire.next_event()) is NEED_DATA:
            self._wire.buffer_filled(self._transport.receive_into(self._wire.get_buffer()))
        return event

    def _send(self, message: m.Hello | m.Reply, raws: Sequence[Buffer] = ()) -> None:
        self._transmit(message, self._wire.send(message, raws))

    def _transmit(self, message: m.Hello | m.Reply, buffers: Sequence[Buffer]) -> None:
        """The last step of every message; worker_bin/faulty puts its lies here."""
        self._transport.send_all(buffers)

    def _answer(self, request: m.Request, raws: Sequence[memoryview]) -> None:
        def refuse(code: str, msg: str) -> None:
            self._send(m.Err(req_id=request.req_id, code=code, msg=msg[:_MESSAGE_CHARS]))

        handler = self._engine.handlers.get(type(request))
        if handler is None:
            return refuse("unknown_type", f"this worker does not serve {type(request).__name__}")
        try:
            reply, raw = handler(request, raws[0] if raws else memoryview(b""))
        except Refused as refusal:
            return refuse(refusal.code, refusal.message)
        reply.req_id = request.req_id
        try:
            buffers = self._wire.send(reply, [] if raw is None else [raw])
        except LocalProtocolError as error:
            # The engine's result is none: a NaN, a wrong size. Found here it costs no crash (W5).
            return refuse("engine_failed", str(error))
        return self._transmit(reply, buffers)


def serve(engine: Engine, argv: Sequence[str] | None = None) -> int:
    """Serve `engine` until the module ends it; the exit status for `sys.exit`. Blocks.

    Args:
        argv: the worker's arguments (default: the process's own). `--socket` and `--nonce` are ours (W2).
    """
    options = arguments().parse_args(argv)
    return run(lambda: Session(SocketTransport(options.socket), engine, options.nonce))


def arguments(description: str | None = None) -> argparse.ArgumentParser:
    """The arguments that every worker takes (W2)."""
    parser = argparse.ArgumentParser(
        description=description, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--socket", required=True, help="where the module listens")
    parser.add_argument("--nonce", required=True, help="16 hex digits that HELLO has to repeat")
    return parser


def run(connect: Callable[[], Session]) -> int:
    """Connect and serve; the exit status."""
    try:
        return connect().run()
    except Exception:  # noqa: BLE001 - the engine's bug, whatever it is, ends this process with its traceback
        traceback.print_exc()
        return EXIT_ENGINE_BUG
