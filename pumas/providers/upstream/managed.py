"""A llama-server that we run: found, started on a private Unix socket, supervised like a worker (D14)."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import trio

from pumas.contract.errors import ContractError
from pumas.providers.upstream.client import Upstream
from synapse import SetupError, Supervisor
from synapse.policy.budget import key_of
from synapse.server import ManagedServer, ServerSpec
from synapse.wire.messages import ModelInfo

RECORDED = {"embed": ("text_embedding",), "rerank": ("rerank",), "generate": ()}
"""The task that a model's file records, as capabilities; a generating model is described by its runtime."""


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a managed llama-server is started."""

    path: str
    """The GGUF."""
    program: str | None = None
    """The llama-server to run. None: the one in PATH, else the one of the xllamacpp package."""
    mmproj: str | None = None
    """The projector for images and audio."""
    context: int | None = None
    """Tokens of all slots together. None: what the model was trained for."""
    parallel: int = 1
    """Slots."""
    threads: int | None = None
    cache_type: str = "f16"
    """Type of the KV cache: f16 or q8_0."""
    arguments: tuple[str, ...] = ()
    """Further arguments, as they are."""


def find_program(configured: str | None) -> list[str]:
    """The command that is a llama-server. Raises SetupError with the remedy."""
    if configured is not None:
        if shutil.which(configured) is None:
            raise SetupError(f"{configured} cannot be run: check `program` of the upstream")
        return [configured]
    if (found := shutil.which("llama-server")) is not None:
        return [found]
    if importlib.util.find_spec("xllamacpp") is not None:
        return [sys.executable, "-P", "-m", "worker_bin.llama_server"]
    raise SetupError("there is no llama-server in PATH: install llama.cpp or pip install xllamacpp, or name `program`")


def arguments(options: ServerOptions, info: ModelInfo, socket: str, alias: str) -> list[str]:
    """llama-server's arguments for a model of this role."""
    context = options.context or info.context_length or 4096
    made = ["--model", options.path, "--host", socket, "--alias", alias]
    made += ["--ctx-size", str(context), "--parallel", str(options.parallel)]
    made += ["--cache-type-k", options.cache_type, "--cache-type-v", options.cache_type]
    if options.threads:
        made += ["--threads", str(options.threads)]
    if options.mmproj:
        made += ["--mmproj", options.mmproj]
    if info.role != "generate":
        # An encoder takes a text, or a query with its document, in one micro-batch.
        made += ["--embeddings" if info.role == "embed" else "--reranking", "--ubatch-size", str(context)]
    return [*made, *options.arguments]


@contextmanager
def private_socket() -> Iterator[str]:
    """A path for the server's socket in a directory of our own, mode 0700; all of it is removed at the end."""
    base = "/tmp" if Path("/tmp").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="pumas-", dir=base) as folder:
        yield str(Path(folder) / "llama.sock")


def check_role(info: ModelInfo, wanted: Sequence[str]) -> None:
    """Raises SetupError for a reranker without a ranking head: it would score all the same, and wrongly."""
    if ("rerank" in wanted or info.role == "rerank") and not info.ranking_head:
        raise SetupError("the model has no ranking head (cls.output.weight): its scores would mean nothing")


def server_spec(
    alias: str, options: ServerOptions, info: ModelInfo, program: Sequence[str], socket: str, upstream: Upstream
) -> ServerSpec:
    """What synapse supervises: readiness and health are llama-server's own `/health`."""

    async def answers() -> bool:
        try:
            async with upstream.request(b"GET", b"/health") as response:
                await response.read(65536)
                return response.status == 200
        except ContractError:
            return False

    async def ready() -> bool:
        with trio.move_on_after(1.0):
            return await answers()
        return False

    argv = arguments(options, info, socket, alias)
    config = {"argv": "\n".join([*program, *argv]).replace(socket, "SOCKET")}
    return ServerSpec(
        name=alias,
        key=key_of(info.digest, config),
        argv=[*program, *argv],
        ready=ready,
        healthy=answers,
        size=info.size,
        socket=socket,
    )


async def start_server(
    supervisor: Supervisor, alias: str, options: ServerOptions, socket: str, wanted: Sequence[str]
) -> tuple[Upstream, ManagedServer, tuple[str, ...]]:
    """Begin to run a llama-server; it boots while the caller goes on.

    Returns (its client, its supervision, the capabilities that the model's file records).

    Raises: SetupError, InvalidInput.
    """
    program = find_program(options.program)
    info = await supervisor.text.ingest(options.path)
    check_role(info, wanted)
    upstream = Upstream("llama.cpp", f"unix:{socket}")
    spec = server_spec(alias, options, info, program, socket, upstream)
    return upstream, supervisor.serve(spec), tuple(wanted) or RECORDED[info.role]
