"""The conformance suite of an endpoint: what any transport has to keep (W3, W14)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from synapse.errors import SetupError
from synapse.host.endpoint import Endpoint, UnixEndpoint

_PEER = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
print("connected", flush=True)
while data := s.recv(65536): s.sendall(data)
"""


@pytest.fixture(params=[UnixEndpoint])
def make(request: pytest.FixtureRequest) -> Callable[[Path], Endpoint]:
    return request.param  # type: ignore[no-any-return]


def _peer(endpoint: Endpoint) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _PEER, endpoint.address], stdout=subprocess.PIPE, text=True)


async def test_the_right_peer_is_let_in_and_the_door_is_shut(
    make: Callable[[Path], Endpoint], runtime_dir: Path
) -> None:
    endpoint = make(runtime_dir / "e.sock")
    with _peer(endpoint) as peer:
        stream = await endpoint.accept(peer.pid)
        with pytest.raises(OSError, match="No such file|refused"):
            await trio.open_unix_socket(endpoint.address)
        await stream.send_all([b"ab", memoryview(b""), memoryview(b"cd"), b"e"])
        got = bytearray(5)
        count = 0
        while count < 5:
            count += await stream.receive_into(memoryview(got)[count:])
        assert got == b"abcde"
        stream.close()
        stream.close()
        assert peer.wait() == 0
    endpoint.close()


async def test_a_stranger_is_closed_and_the_wait_goes_on(make: Callable[[Path], Endpoint], runtime_dir: Path) -> None:
    endpoint = make(runtime_dir / "e.sock")
    strangers = []
    for _ in range(3):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(endpoint.address)
        strangers.append(stranger)
    with _peer(endpoint) as peer:
        stream = await endpoint.accept(peer.pid)
        for stranger in strangers:
            assert stranger.recv(1) == b""
            stranger.close()
        await stream.send_all([b"x"])
        assert await stream.receive_into(memoryview(bytearray(1))) == 1
        stream.close()


async def test_waiting_can_be_cancelled(make: Callable[[Path], Endpoint], runtime_dir: Path) -> None:
    endpoint = make(runtime_dir / "e.sock")
    with trio.move_on_after(0.01) as scope:
        await endpoint.accept(os.getpid() + 1)
    assert scope.cancelled_caught
    endpoint.close()


async def test_many_buffers_and_a_slow_reader(make: Callable[[Path], Endpoint], runtime_dir: Path) -> None:
    """Partial sends keep the order; more buffers than one system call takes."""
    endpoint = make(runtime_dir / "e.sock")
    pieces = [bytes([index % 251]) * (1 + index * 37) for index in range(300)]
    with _peer(endpoint) as peer:
        stream = await endpoint.accept(peer.pid)
        got = bytearray()

        async def read() -> None:
            buffer = bytearray(1000)
            while len(got) < sum(map(len, pieces)):
                got.extend(buffer[: await stream.receive_into(memoryview(buffer))])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await stream.send_all(pieces)
        assert got == b"".join(pieces)
        stream.close()


async def test_a_peer_that_is_gone(make: Callable[[Path], Endpoint], runtime_dir: Path) -> None:
    endpoint = make(runtime_dir / "e.sock")
    with _peer(endpoint) as peer:
        stream = await endpoint.accept(peer.pid)
        peer.kill()
        peer.wait()
        assert await stream.receive_into(memoryview(bytearray(1))) == 0
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all([b"x"])
        stream.close()


def test_a_taken_address_is_a_setup_error(make: Callable[[Path], Endpoint], runtime_dir: Path) -> None:
    (runtime_dir / "e.sock").write_text("")
    with pytest.raises(SetupError, match=r"e\.sock"):
        make(runtime_dir / "e.sock")
    (runtime_dir / "e.sock").unlink()
