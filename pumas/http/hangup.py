"""Seeing a client leave although bytes of its are still unread."""

from __future__ import annotations

import select
import sys

import trio

WATCHES = 64
"""Each takes a descriptor; beyond them, connections wait for their turn to be watched."""


class HangUps:
    """Watches for the ends of connections that must not be read on now."""

    def __init__(self) -> None:
        self._slots = trio.Semaphore(WATCHES)

    if sys.platform == "linux":

        async def wait(self, sock: trio.socket.SocketType) -> None:
            """Return when the peer has closed, half-closed or reset, whatever lies unread before that.

            A readable socket says nothing about its end, so a second, nested epoll asks for that alone.
            Blocks: until then. Cancel: nothing stays.
            """
            async with self._slots:
                with select.epoll() as watch:
                    watch.register(sock.fileno(), select.EPOLLRDHUP)
                    await trio.lowlevel.wait_readable(watch.fileno())

    else:

        async def wait(self, sock: trio.socket.SocketType) -> None:
            """Elsewhere the end is seen when the bytes before it are read (they are bounded), or by the next write."""
            await trio.sleep_forever()
