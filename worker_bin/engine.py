"""The seam between the serve loop and an engine: what a worker program has to bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from synapse.wire.messages import EngineInfo

Buffer = bytes | bytearray | memoryview
Handler = Callable[[Any, memoryview], tuple[Any, Buffer | None]]
"""(request, its raw frame or an empty view) → (reply without req_id checked, its raw frame or None)."""


class Refused(Exception):
    """Answer ERR with this code (decision W11) and message; the worker lives on."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Engine(Protocol):
    """One engine in one worker. All calls come from one thread, one at a time.

    A request type that `handlers` lacks is answered ERR unknown_type by the serve loop, which also answers SHUTDOWN. An
    exception other than Refused is a bug of the engine: the worker prints it and exits 70.
    """

    info: EngineInfo
    handlers: Mapping[type, Handler]
