"""The server: listen, accept within the connection limit, shut down within a grace."""

from __future__ import annotations

import errno
import logging

import trio
from hypercorn.trio.worker_context import WorkerContext

from pumas.http.config import HttpConfig
from pumas.http.connection import Connection
from pumas.http.exchange import AsgiApp
from pumas.http.hangup import HangUps
from pumas.http.listen import Listening, connection_limit, open_listeners, tls_context
from pumas.http.protocol import hypercorn_config

log = logging.getLogger(__name__)

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS)
RETRY_S = 0.1
"""Between two attempts to accept while the system has no descriptor for us."""
YOUNG_S = 1.0
"""For how long an idle connection is not asked to make way: it has hardly had time to ask for anything."""


async def serve(
    app: AsgiApp,
    config: HttpConfig,
    *,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[Listening] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI application over HTTP/1.1 until `shutdown` is set.

    A client that leaves cancels its request: the application sees `trio.Cancelled`, and `send` raises `ClientGone`.
    No lifespan messages are sent. On shutdown the listeners close, idle connections close at once, running requests
    have `config.grace_s`; then their sockets are closed and they are cancelled, whatever their clients do.

    Args:
        task_status: started with where the server listens, once it does.
    Raises: HttpSetupError.
    Blocks: until the shutdown is complete. Cancel: closes everything at once.
    """
    tls = tls_context(config)
    theirs = hypercorn_config(config)
    context = WorkerContext(None)
    hang_ups = HangUps()
    slots = trio.Semaphore(connection_limit(config.max_connections))
    connections: set[Connection] = set()
    empty = trio.Event()

    async def run(connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            connections.discard(connection)
            slots.release()
            if not connections:
                empty.set()

    async def accept(listener: trio.SocketListener) -> None:
        while True:
            await trio.lowlevel.wait_readable(listener.socket)
            await _take_slot(slots, connections)
            try:
                transport = await listener.accept()
            except OSError as error:
                slots.release()
                if error.errno not in EXHAUSTED:
                    raise
                log.error("cannot accept a connection: %s", error)
                await trio.sleep(RETRY_S)
                continue
            except BaseException:
                slots.release()
                raise
            connection = Connection(app, config, theirs, context, hang_ups, tls, transport)
            connections.add(connection)
            clients.start_soon(run, connection)

    async with open_listeners(config) as (listeners, listening), trio.open_nursery() as clients:
        async with trio.open_nursery() as accepting:
            for listener in listeners:
                accepting.start_soon(accept, listener)
            task_status.started(listening)
            await shutdown.wait()
            accepting.cancel_scope.cancel()
        for listener in listeners:
            await listener.aclose()
        await context.terminated.set()
        for connection in list(connections):
            connection.drain()
        if connections:
            empty = trio.Event()
            with trio.move_on_after(config.grace_s):
                await empty.wait()
        if connections:
            log.warning("connections still busy when the shutdown grace ended: %d", len(connections))
        for connection in list(connections):
            connection.cut()
        clients.cancel_scope.cancel()


async def _take_slot(slots: trio.Semaphore, connections: set[Connection]) -> None:
    """Wait for a free place for a client that is there. Idle connections make way, so that silent clients, however
    many, cannot keep the others out; running requests never do."""
    while True:
        if slots.value == 0:
            idlest = max(connections, key=Connection.idle_s)
            if idlest.idle_s() >= YOUNG_S:
                idlest.drop_idle()
        with trio.move_on_after(YOUNG_S):
            await slots.acquire()
            return
