"""The conformance suite of a transport: what every `ports.ByteStream` has to keep.

`STREAM_CHECKS` are async functions of a pair of connected streams, each a way of its own to break a transport. Run them
all with `check_streams`, or one by one from your own test framework.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import trio
import trio.testing

from synapse.ports import ByteStream

HANG_S = 60.0
"""Only a stream that hangs reaches it."""
LARGE = 4 * 1024 * 1024

Pair = tuple[ByteStream, ByteStream]


class NonConformance(AssertionError):
    """A check of a suite failed. `check` names it."""

    def __init__(self, check: str, problem: str) -> None:
        super().__init__(f"{check}: {problem}")
        self.check = check


async def bytes_keep_their_order(pair: Pair) -> None:
    """Many buffers, empty ones among them, of bytes and of views, arrive as one sequence."""
    one, other = pair
    buffers: list[bytes | memoryview] = [bytes([i % 256]) * (i % 7) for i in range(500)]
    buffers[3] = memoryview(b"view")
    whole = b"".join(bytes(buffer) for buffer in buffers)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(one.send_all, buffers)
        _expect(await _read(other, len(whole)) == whole, "the bytes came in another order")


async def large_buffers_arrive_whole(pair: Pair) -> None:
    """Far more than any buffer in between holds, in both directions at once."""
    one, other = pair
    data = bytes(range(256)) * (LARGE // 256)

    async def receive(stream: ByteStream) -> None:
        _expect(await _read(stream, len(data)) == data, "large data arrived damaged")

    async with trio.open_nursery() as nursery:
        for sender, receiver in ((one, other), (other, one)):
            nursery.start_soon(sender.send_all, [data])
            nursery.start_soon(receive, receiver)


async def sending_blocks_and_can_be_cancelled(pair: Pair) -> None:
    """A peer that does not read blocks `send_all` at some point, and cancellation gets it out."""
    one, _ = pair
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_blocked, scope)
            await one.send_all([bytes(16 * LARGE)])
            nursery.cancel_scope.cancel()
    _expect(scope.cancelled_caught, "64 MiB that nobody reads were taken")


async def receiving_waits_and_can_be_cancelled(pair: Pair) -> None:
    one, _ = pair
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_blocked, scope)
            got = await one.receive_into(memoryview(bytearray(8)))
            raise NonConformance("", f"{got} bytes came from nowhere")
    _expect(scope.cancelled_caught, "waiting for bytes could not be cancelled")


async def what_was_sent_before_the_end_arrives(pair: Pair) -> None:
    """Closing loses nothing; then `receive_into` says 0, as often as it is asked."""
    one, other = pair
    await one.send_all([b"last words"])
    one.close()
    _expect(await _read(other, 10) == b"last words", "closing lost what was sent before")
    for _ in range(2):
        _expect(await other.receive_into(memoryview(bytearray(8))) == 0, "no 0 at the end of the stream")


async def sending_to_a_closed_peer_breaks(pair: Pair) -> None:
    """BrokenResourceError, at once or as soon as the peer's end is known; never another exception, never a hang."""
    one, other = pair
    other.close()
    for _ in range(1000):
        try:
            await one.send_all([bytes(65536)])
        except trio.BrokenResourceError:
            return
    raise NonConformance("", "64 MB were sent to a closed peer")


async def a_peer_that_closes_wakes_a_blocked_sender(pair: Pair) -> None:
    one, other = pair
    broke = False

    async def send() -> None:
        nonlocal broke
        try:
            await one.send_all([bytes(16 * LARGE)])
        except trio.BrokenResourceError:
            broke = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        await trio.testing.wait_all_tasks_blocked(0.05)
        other.close()
    _expect(broke, "a blocked send_all ended without BrokenResourceError")


async def closing_is_idempotent(pair: Pair) -> None:
    for stream in pair:
        stream.close()
        stream.close()


STREAM_CHECKS: dict[str, Callable[[Pair], Awaitable[None]]] = {
    check.__name__: check
    for check in (
        bytes_keep_their_order,
        large_buffers_arrive_whole,
        sending_blocks_and_can_be_cancelled,
        receiving_waits_and_can_be_cancelled,
        what_was_sent_before_the_end_arrives,
        sending_to_a_closed_peer_breaks,
        a_peer_that_closes_wakes_a_blocked_sender,
        closing_is_idempotent,
    )
}


async def check_stream(name: str, make: Callable[[], AbstractAsyncContextManager[Pair]]) -> None:
    """Run one check on a fresh pair. Raises NonConformance."""
    async with make() as pair:
        with trio.move_on_after(HANG_S) as scope:
            try:
                await STREAM_CHECKS[name](pair)
            except NonConformance as problem:
                raise NonConformance(name, str(problem).removeprefix(": ")) from None
        if scope.cancelled_caught:
            raise NonConformance(name, f"not done within {HANG_S:g} s")


async def check_streams(make: Callable[[], AbstractAsyncContextManager[Pair]]) -> list[str]:
    """Run the whole suite; the names of its checks. `make` opens a fresh connected pair. Raises NonConformance."""
    for name in STREAM_CHECKS:
        await check_stream(name, make)
    return list(STREAM_CHECKS)


async def _read(stream: ByteStream, count: int) -> bytes:
    data = bytearray(count)
    view, at = memoryview(data), 0
    while at < count:
        got = await stream.receive_into(view[at : at + 65536])
        _expect(got > 0, f"the stream ended after {at} of {count} bytes")
        at += got
    return bytes(data)


async def _cancel_when_blocked(scope: trio.CancelScope) -> None:
    await trio.testing.wait_all_tasks_blocked(0.05)
    scope.cancel()


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise NonConformance("", problem)
