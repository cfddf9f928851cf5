"""Where the server listens: TCP, Unix sockets, TLS, and one clear line where it cannot."""

from __future__ import annotations

import logging
import os
import resource
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from pumas.http.config import HttpConfig, HttpSetupError
from pumas.http.listen import connection_limit
from pumas.http.serve import serve
from tests.http.support import Client, Clock, Probe, Server, running


async def refusal(**settings: Any) -> str:
    """The message with which a server does not start."""
    with pytest.raises(HttpSetupError) as caught:
        await serve(Probe(), HttpConfig(**settings), shutdown=trio.Event())
    message = str(caught.value)
    assert "\n" not in message
    return message


async def test_a_taken_port() -> None:
    async with running() as server:
        port = server.listening.port
        assert await refusal(port=port) == f"cannot listen on 127.0.0.1:{port}: the port is taken"


async def test_an_unknown_host() -> None:
    assert "not a host of this machine" in await refusal(host="no-such-host.invalid", port=0)
    assert "cannot listen on 192.0.2.1:0" in await refusal(host="192.0.2.1", port=0)


async def test_an_impossible_port_and_nothing_at_all() -> None:
    assert "outside 0 to 65535" in await refusal(port=65536)
    assert "nothing to listen on" in await refusal(host=None)


async def test_localhost_and_ipv6() -> None:
    async with running(host="localhost") as server:
        assert all(url.startswith("http://") for url in server.listening.urls)
        client = await server.connect()
        await client.get("/ok")
        assert await client.answer() == (200, b"ok")


# --- Unix sockets ----------------------------------------------------------------------------------------------------


async def test_a_unix_socket_is_private_and_goes_with_its_server(tmp_path: Path) -> None:
    path = tmp_path / "run" / "http.sock"
    async with running(host=None, unix_path=path) as server:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert server.listening.urls == (f"unix:{path}",)
        client = await server.connect()
        await client.get("/ok")
        assert await client.answer() == (200, b"ok")
        await client.get("/wait")
        run = await server.probe.run("/wait")
        await run.begun.wait()
        await client.close()
        await run.over.wait()
        assert run.cancelled
    assert not path.exists()


async def test_both_at_once(tmp_path: Path) -> None:
    path = tmp_path / "run" / "http.sock"
    async with running(unix_path=path) as server:
        assert len(server.listening.urls) == 2
        tcp = Client(await trio.open_tcp_stream("127.0.0.1", server.listening.port or 0))
        for client in (server.keep(tcp), await server.connect()):
            await client.get("/ok")
            assert await client.answer() == (200, b"ok")


async def test_what_a_killed_server_left_behind_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "run" / "http.sock"
    path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(os.fspath(path))
        stale.listen()
    async with running(host=None, unix_path=path) as server:
        client = await server.connect()
        await client.get("/ok")
        assert await client.answer() == (200, b"ok")


async def test_a_socket_in_use_a_file_and_a_long_path_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "run" / "http.sock"
    async with running(host=None, unix_path=path):
        assert "another server does" in await refusal(host=None, unix_path=path)
        assert path.exists()
    path.write_text("precious")
    assert "a file of that name is there" in await refusal(host=None, unix_path=path)
    assert path.read_text() == "precious"
    assert "longer than 103 bytes" in await refusal(host=None, unix_path=tmp_path / ("x" * 120))


async def test_a_directory_that_others_can_enter_is_refused(tmp_path: Path) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    assert "must be a directory of this user with mode 0700" in await refusal(host=None, unix_path=open_to_all / "s")
    link = tmp_path / "link"
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    link.symlink_to(private)
    assert "must be a directory" in await refusal(host=None, unix_path=link / "s")
    assert "No such file" in await refusal(host=None, unix_path=tmp_path / "a" / "b" / "s")


# --- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def certificate(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("tls")
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(directory / "cert.pem", append=True)
    return {"tls_cert": directory / "cert.pem", "tls_key": directory / "key.pem"}


async def secured(server: Server, authority: trustme.CA, *protocols: str) -> Client:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    plain = (await server.connect()).stream
    assert isinstance(plain, trio.SocketStream)
    stream = trio.SSLStream(plain, context, server_hostname="localhost", https_compatible=True)
    await stream.do_handshake()
    return server.keep(Client(stream))


async def test_tls_speaks_http_1_1_only(authority: trustme.CA, certificate: dict[str, Path]) -> None:
    async with running(**certificate) as server:
        assert server.listening.urls[0].startswith("https://")
        client = await secured(server, authority, "h2", "http/1.1")
        assert isinstance(client.stream, trio.SSLStream)
        assert client.stream.selected_alpn_protocol() == "http/1.1"
        await client.get("/ok")
        assert await client.answer() == (200, b"ok")


@pytest.mark.parametrize("leave", [Client.close, Client.reset, Client.half_close])
async def test_a_disconnect_over_tls(leave: Any, authority: trustme.CA, certificate: dict[str, Path]) -> None:
    async with running(**certificate) as server:
        client = await secured(server, authority)
        await client.get("/wait", "X: y")
        run = await server.probe.run("/wait")
        await run.begun.wait()
        await leave(client)
        await run.over.wait()
        assert run.cancelled


async def test_a_fault_over_tls_has_no_end(authority: trustme.CA, certificate: dict[str, Path]) -> None:
    async with running(**certificate) as server:
        client = await secured(server, authority)
        await client.get("/fault")
        await client.head()
        assert await client.chunk() == b"some"
        assert await client.rest() == b""


async def test_a_blocked_client_over_tls_and_the_shutdown(authority: trustme.CA, certificate: dict[str, Path]) -> None:
    async with running(grace_s=0.1, **certificate) as server:
        client = await secured(server, authority)
        await client.get("/flood")
        run = await server.probe.run("/flood")
        await run.begun.wait()
        server.shutdown.set()
        await server.stopped.wait()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\xff\xff", b""])
async def test_a_bad_handshake_ends_one_connection(
    data: bytes, authority: trustme.CA, certificate: dict[str, Path], clock: Clock
) -> None:
    async with running(handshake_s=20, **certificate) as server:
        bad = await server.connect()
        await bad.send(data)
        await clock.leap(21)
        await bad.ended()
        client = await secured(server, authority)
        await client.get("/ok")
        assert await client.answer() == (200, b"ok")


async def test_a_certificate_that_cannot_be_used(tmp_path: Path, certificate: dict[str, Path]) -> None:
    broken = tmp_path / "cert.pem"
    broken.write_text("nothing of the kind")
    assert "cannot use the TLS certificate" in await refusal(port=0, tls_cert=broken, tls_key=certificate["tls_key"])
    assert "both a certificate and a key" in await refusal(port=0, tls_cert=certificate["tls_cert"])


# --- how many --------------------------------------------------------------------------------------------------------


def test_the_connection_limit_fits_the_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection_limit(10) == 10
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
        assert connection_limit(1024) == 500 - 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_beyond_the_limit_connections_wait_unaccepted() -> None:
    async with running(max_connections=3) as server:
        held = [await server.bystander() for _ in range(3)]
        waiting = await server.connect()
        await waiting.get("/ok")
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert [run.path for run in server.probe.runs] == ["/sse"] * 3
        await held[1].client.close()
        assert await waiting.answer() == (200, b"ok")
        await held[0].lives()


async def test_silent_connections_make_way_for_others(clock: Clock) -> None:
    async with running(max_connections=3) as server:
        busy = await server.bystander()
        silent = [await server.connect() for _ in range(2)]
        await silent[0].get("/ok")
        assert await silent[0].answer() == (200, b"ok")
        await clock.leap(5)
        for _ in range(2):
            client = await server.connect()
            await client.get("/ok")
            assert await client.answer() == (200, b"ok")
        assert [await client.rest() for client in silent] == [b"", b""]
        await busy.lives()


async def test_a_process_without_descriptors_accepts_again_when_it_has_some() -> None:
    refused = trio.Event()
    handler = Noticing(refused)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with running() as server:
        bystander = await server.bystander()
        client = trio.socket.socket()
        logging.getLogger("pumas.http.serve").addHandler(handler)
        highest = max(int(name) for name in os.listdir("/dev/fd"))
        try:
            with filled(highest):
                resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
                await client.connect(("127.0.0.1", server.listening.port or 0))
                await refused.wait()
                await bystander.lives()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            logging.getLogger("pumas.http.serve").removeHandler(handler)
        asking = server.keep(Client(trio.SocketStream(client)))
        await asking.get("/ok")
        assert await asking.answer() == (200, b"ok")


class Noticing(logging.Handler):
    """Sets an event when something is logged."""

    def __init__(self, event: trio.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        assert "cannot accept" in record.getMessage()
        self._event.set()


@contextmanager
def filled(highest: int) -> Iterator[None]:
    """No free descriptor below `highest`."""
    taken = []
    while (fd := os.open(os.devnull, os.O_RDONLY)) <= highest:
        taken.append(fd)
    os.close(fd)
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)
