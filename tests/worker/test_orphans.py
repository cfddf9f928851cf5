"""When the module is killed, by SIGKILL and at any moment, its workers are gone soon after (W8)."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

_BOUND_S = 60.0
"""Only a worker that stays reaches it; a killed module's worker is gone in milliseconds (docs/protocol.md)."""

_MODULE = textwrap.dedent(
    """
    import sys, trio
    from synapse.host import RealHost
    from tests.worker.conftest import PATIENT, embed, embed_request, faulty_spec, load, ping
    from synapse.worker import open_worker

    faults, until = sys.argv[2:4]

    class Telling:
        # A host that says the worker's pid as soon as there is one.
        def __init__(self, host): self.host = host
        def spawn(self, spec):
            from contextlib import asynccontextmanager
            @asynccontextmanager
            async def opened():
                async with self.host.spawn(spec) as process:
                    print(process.pid, flush=True)
                    yield process
            return opened()

    async def main():
        with RealHost(sys.argv[1]) as host:
            async with open_worker(Telling(host), faulty_spec(faults), PATIENT) as worker:
                if until != "boot":
                    handed = lambda: print("handed over", flush=True)
                    if until == "load":
                        handed()
                        await load(worker)
                    else:
                        await load(worker)
                        if until == "idle":
                            handed()
                        elif until == "write":
                            request, raws = embed_request(2**22)
                            await worker.call(request, raws, timeout_s=3600, on_handover=handed)
                        else:
                            request, raws = embed_request(3)
                            await worker.call(request, raws, timeout_s=3600, on_handover=handed)
                await trio.sleep_forever()

    trio.run(main)
    """
)


STATES = [
    ("hang@boot", "boot"),
    ("stop@boot", "boot"),
    ("spin_c@boot", "boot"),
    ("hang@connect", "boot"),
    ("slow=3600@LOAD", "load"),
    ("", "idle"),
    ("stop@LOAD.after", "idle"),
    ("slow=3600@EMBED_BATCH", "work"),
    ("spin@EMBED_BATCH", "work"),
    ("spin_c@EMBED_BATCH", "work"),
    ("stop@EMBED_BATCH", "work"),
    ("drip=0.2@EMBED_BATCH", "work"),
    ("hang@LOAD.after", "write"),
]
"""What the worker does, and how far the module has come with it when it is killed."""


def kill_a_module(runtime_dir: Path, faults: str, until: str) -> float:
    """Start a module, bring its worker into this state, kill the module; seconds until the worker was gone too."""
    script = runtime_dir / "module.py"
    script.write_text(_MODULE)
    with subprocess.Popen(
        [sys.executable, str(script), str(runtime_dir / "run"), faults, until],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as module:
        try:
            assert module.stdout is not None
            worker = int(module.stdout.readline())
            watched = os.pidfd_open(worker)
            if until != "boot":
                assert module.stdout.readline() == "handed over\n"
        finally:
            began = time.monotonic()
            module.kill()
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        gone = poller.poll(_BOUND_S * 1000)
        took = time.monotonic() - began
        os.close(watched)
        assert gone, f"worker {worker} outlived the module in {faults or 'idle'}"
        assert module.wait() == -signal.SIGKILL
    for socket in runtime_dir.rglob("*.sock"):
        socket.unlink()  # a killed module cannot tidy up; the next one does (tests/host)
    return took


@pytest.mark.skipif(sys.platform != "linux", reason="watched through pidfd; elsewhere socket EOF does it")
@pytest.mark.parametrize(("faults", "until"), STATES)
def test_no_worker_outlives_the_module(runtime_dir: Path, faults: str, until: str) -> None:
    kill_a_module(runtime_dir, faults, until)


@pytest.mark.skipif(sys.platform != "linux", reason="pidfd")
@pytest.mark.parametrize("faults", ["", "spin@PING", "hang@PING"])
def test_the_connections_end_is_enough(runtime_dir: Path, faults: str) -> None:
    """Where no signal comes (another kernel, another pid namespace) EOF ends even a worker that is busy in Python."""
    import socket
    import struct

    from synapse.host import python_worker
    from synapse.wire import messages as m
    from synapse.wire.connection import Connection
    from synapse.wire.state import Role
    from tests.wire.pair import feed

    path = runtime_dir / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)
        env = {"PATH": os.environ["PATH"], "SYNAPSE_FAULTS": faults}
        argv = [*python_worker("faulty"), "--socket", str(path), "--nonce", "0" * 16]
        with subprocess.Popen(argv, env=env) as worker:  # without SYNAPSE_WORKER_ID nothing is armed
            connection, _ = listener.accept()
            with connection:
                wire = Connection(Role.MODULE)
                (length,) = struct.unpack("<I", prefix := connection.recv(4, socket.MSG_WAITALL))
                feed(wire, prefix + connection.recv(length, socket.MSG_WAITALL))
                for message in (m.HelloAck(v=1, accept=True, max_frame=2**20), m.Ping(req_id="1")):
                    connection.sendall(b"".join(wire.send(message)))
            assert worker.wait(_BOUND_S) in (71, 75)
