"""Seeing a client leave although bytes of its are still unread."""

from __future__ import annotations

import select
import sys

import trio

if sys.platform == "linux":

    async def wait_hang_up(sock: trio.socket.SocketType) -> None:
        """Return when the peer has closed, half-closed or reset, whatever lies unread before that.

        A readable socket says nothing about its end, so a second, nested epoll asks for that alone.
        Blocks: until then. Cancel: nothing stays.
        """
        with select.epoll() as watch:
            watch.register(sock.fileno(), select.EPOLLRDHUP)
            await trio.lowlevel.wait_readable(watch.fileno())

else:

    async def wait_hang_up(sock: trio.socket.SocketType) -> None:
        """Elsewhere the end is seen when the bytes before it are read (they are bounded), or by the next write."""
        await trio.sleep_forever()
