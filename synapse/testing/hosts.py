"""The conformance suite of a host: what every `ports.Host` has to keep, the real and the simulated one alike.

The suite needs workers that behave in a few ways, which only the host's owner can make: `HostUnderTest.spec` gives the
WorkerSpec of a worker with one of `BEHAVIOURS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Literal

import trio

from synapse.errors import EngineCrashed, SetupError, SynapseError
from synapse.limits import Limits
from synapse.ports import Host, WorkerSpec
from synapse.testing.streams import HANG_S, NonConformance
from synapse.wire import messages as m
from synapse.worker import open_worker

Behaviour = Literal["good", "exits_with_3", "never_connects", "says_nothing", "cannot_start", "deaf"]
BEHAVIOURS: dict[Behaviour, str] = {
    "good": "a worker that serves PING and SHUTDOWN",
    "exits_with_3": "ends with status 3 before it connects",
    "never_connects": "lives on and never connects; ends only when it is killed",
    "says_nothing": "connects, then does nothing; ends only when it is killed",
    "cannot_start": "a program that does not exist, or what corresponds to it",
    "deaf": "after HELLO_ACK it reads nothing more; ends only when it is killed",
}
_SHORT = Limits(boot_s=1.0, shutdown_grace_s=0.2, terminate_grace_s=0.2)
"""For those that never come."""
_LONG = Limits(boot_s=HANG_S, shutdown_grace_s=HANG_S, terminate_grace_s=HANG_S)


@dataclass(frozen=True)
class HostUnderTest:
    """A host and how to get workers on it.

    Attributes:
        open: a fresh host.
        spec: the WorkerSpec of a worker with a behaviour. Worker ids must differ within one host.
    """

    open: Callable[[Behaviour], AbstractAsyncContextManager[Host]]
    spec: Callable[[Behaviour, str], WorkerSpec]


Check = Callable[[HostUnderTest], Awaitable[None]]


async def a_worker_lives_and_stops_in_order(subject: HostUnderTest) -> None:
    """Greeted, asked, stopped by SHUTDOWN with status 0."""
    async with subject.open("good") as host:
        async with open_worker(host, subject.spec("good", "w1"), _LONG) as worker:
            reply, _ = await worker.call(m.Ping(req_id="1"), timeout_s=HANG_S)
            _expect(isinstance(reply, m.Pong), "PING was not answered")
            process = worker._process
        _expect(await process.wait() == 0, "SHUTDOWN did not end it with status 0")


async def leaving_kills_and_reaps(subject: HostUnderTest) -> None:
    """Whatever the worker does, and although nobody asked it to end."""
    async with subject.open("never_connects") as host:
        async with host.spawn(subject.spec("never_connects", "w1")) as process:
            pass
        _expect(await process.wait() == -9, "leaving did not end it by SIGKILL")


async def an_exception_leaves_bare_and_leaves_nothing(subject: HostUnderTest) -> None:
    async with subject.open("never_connects") as host:
        try:
            async with host.spawn(subject.spec("never_connects", "w1")) as process:
                raise KeyError("mine")
        except KeyError:
            pass
        except BaseExceptionGroup as group:
            raise NonConformance("", f"the block's exception came out as {group!r}") from None
        _expect(await process.wait() == -9, "it lives on after an exception")


async def cancelling_leaves_nothing(subject: HostUnderTest) -> None:
    async with subject.open("never_connects") as host:
        with trio.CancelScope() as scope:
            async with host.spawn(subject.spec("never_connects", "w1")) as process:
                scope.cancel()
                await process.accept()
        _expect(scope.cancelled_caught, "accept cannot be cancelled")
        _expect(await process.wait() == -9, "it lives on after a cancellation")


async def an_exit_is_seen_by_everyone(subject: HostUnderTest) -> None:
    """`wait` returns the status to any number of tasks, as often as they ask; signals to the dead do nothing."""
    async with subject.open("exits_with_3") as host:
        async with host.spawn(subject.spec("exits_with_3", "w1")) as process:
            statuses: list[int] = []

            async def wait() -> None:
                statuses.append(await process.wait())

            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(wait)
            _expect(statuses == [3, 3, 3], f"it exits with 3, and wait says {statuses}")
            process.terminate()
            process.kill()
            await process.log_tail()


async def killing_ends_it(subject: HostUnderTest) -> None:
    async with subject.open("says_nothing") as host:
        async with host.spawn(subject.spec("says_nothing", "w1")) as process:
            stream = await process.accept()
            process.kill()
            _expect(await process.wait() == -9, "SIGKILL did not end it")
            _expect(await stream.receive_into(memoryview(bytearray(8))) == 0, "its connection has no end")


async def what_cannot_start_is_a_typed_error(subject: HostUnderTest) -> None:
    async with subject.open("cannot_start") as host:
        try:
            async with host.spawn(subject.spec("cannot_start", "w1")):
                raise NonConformance("", "it started")
        except SetupError:
            pass
        except EngineCrashed as error:
            _expect(error.stage == "spawn", f"a crash of stage {error.stage}")


async def boots_that_fail_are_crashes_of_their_stage(subject: HostUnderTest) -> None:
    expected: list[tuple[Behaviour, set[str]]] = [
        ("exits_with_3", {"spawn"}),  # whether it ends in time or not
        ("never_connects", {"spawn"}),
        ("says_nothing", {"spawn", "handshake"}),  # on a slow machine it may not have connected yet
    ]
    for behaviour, stages in expected:
        async with subject.open(behaviour) as host:
            try:
                async with open_worker(host, subject.spec(behaviour, "w1"), _SHORT):
                    raise NonConformance("", f"{behaviour} was greeted")
            except EngineCrashed as error:
                _expect(error.stage in stages, f"{behaviour} is a crash of stage {error.stage}, not {stages}")
            except SynapseError as error:
                raise NonConformance("", f"{behaviour} is {error!r}") from None


async def a_deaf_worker_cannot_extend_a_deadline(subject: HostUnderTest) -> None:
    """The connection fills up, sending blocks, the deadline ends it (W6)."""
    async with subject.open("deaf") as host, open_worker(host, subject.spec("deaf", "w1"), _LONG) as worker:
        request = m.Generate(req_id="1", model_ref="m", max_tokens=1)
        try:
            await worker.call(request, [bytes(16 * 1024 * 1024)], timeout_s=0.5)
        except EngineCrashed as error:
            _expect(error.stage == "timeout", f"a crash of stage {error.stage}")
        else:
            raise NonConformance("", "it answered")


async def the_same_worker_id_can_be_used_again(subject: HostUnderTest) -> None:
    async with subject.open("good") as host:
        for _ in range(3):
            async with open_worker(host, subject.spec("good", "w1"), _LONG) as worker:
                await worker.call(m.Ping(req_id="1"), timeout_s=HANG_S)


HOST_CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        a_worker_lives_and_stops_in_order,
        leaving_kills_and_reaps,
        an_exception_leaves_bare_and_leaves_nothing,
        cancelling_leaves_nothing,
        an_exit_is_seen_by_everyone,
        killing_ends_it,
        what_cannot_start_is_a_typed_error,
        boots_that_fail_are_crashes_of_their_stage,
        a_deaf_worker_cannot_extend_a_deadline,
        the_same_worker_id_can_be_used_again,
    )
}


async def check_host(subject: HostUnderTest, *, only: str | None = None) -> list[str]:
    """Run the whole suite, or one check by name; the names of those that ran. Raises NonConformance."""
    names = [only] if only is not None else list(HOST_CHECKS)
    for name in names:
        try:
            await HOST_CHECKS[name](subject)
        except NonConformance as problem:
            raise NonConformance(name, str(problem).removeprefix(": ")) from None
    return names


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise NonConformance("", problem)
