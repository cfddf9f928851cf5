"""A worker program that tries what a worker must not do, and reports it in LOADED; then it serves as usual.

`python -P probe.py --socket ... --nonce ...`. The environment says what to do (the profile's `env`):
PROBE_SWAP: before it is boxed, `new:name`, the file `new` takes the place of `name`.
PROBE_ARM: 0: nothing is armed, and that is reported.
PROBE_TEXT: a directory: it is a text process and writes what it found into `probe.json` there.
PROBE_REFUSES: LOAD is answered ERR with this message.
PROBE_SECRET, PROBE_PORT: a file of somebody else's, a port that listens.
"""

from __future__ import annotations

import os
import sys

if swap := os.environ.get("PROBE_SWAP"):
    os.replace(*swap.split(":"))
if os.environ.get("PROBE_ARM") != "0":
    from worker_bin import harden

    report = harden.report
else:
    report = {"landlock": "not in this kernel (as this test pretends)"}

import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec


def attempts() -> dict[str, str]:
    """What was tried → "done", or why not."""
    found: dict[str, str] = {}

    def attempt(name: str, what: Callable[[], object]) -> None:
        try:
            what()
            found[name] = "done"
        except OSError as error:
            found[name] = type(error).__name__

    secret, parent = os.environ.get("PROBE_SECRET", "/"), os.getppid()
    attempt("read a file of others", lambda: open(secret).close())
    attempt("list the directory of others", lambda: os.listdir(os.path.dirname(secret)))
    attempt("write beside the file of others", lambda: open(secret + ".new", "w").close())
    attempt("overwrite the file of others", lambda: open(secret, "r+").close())
    attempt("remove the file of others", lambda: os.unlink(secret))
    attempt("write to the temporary directory", lambda: (Path("/tmp") / f"probe-{os.getpid()}").touch())
    attempt("read the parent's environment", lambda: Path(f"/proc/{parent}/environ").read_bytes())
    attempt("signal the parent", lambda: os.kill(parent, signal.SIGCONT))
    attempt("run a program", lambda: os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}), 0))
    port = int(os.environ.get("PROBE_PORT", "1"))
    attempt("connect", lambda: socket.create_connection(("127.0.0.1", port)).close())
    attempt("listen", lambda: socket.create_server(("127.0.0.1", 0)).close())
    found["environment"] = " ".join(sorted(os.environ))
    found["core files"] = str(resource.getrlimit(resource.RLIMIT_CORE))
    return found


def main() -> int:
    found = attempts()
    if directory := os.environ.get("PROBE_TEXT"):
        from worker_bin.serve import serve
        from worker_bin.text.service import TextEngine

        with open(os.path.join(directory, "probe.json"), "wb") as file:
            file.write(msgspec.json.encode([found, report]))
        return serve(TextEngine())
    from synapse.wire.messages import Load
    from worker_bin.engine import Refused
    from worker_bin.llama.engine import LlamaEngine
    from worker_bin.serve import serve

    engine = LlamaEngine({**report, **{f"tried: {name}": how for name, how in found.items()}})
    if message := os.environ.get("PROBE_REFUSES"):

        def refuse(request: object, raw: object) -> None:
            raise Refused("artifact_invalid", message)

        engine.handlers = {**engine.handlers, Load: refuse}
    return serve(engine)


if __name__ == "__main__":
    sys.exit(main())
