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
from synapse import LaneUnavailable, SetupError, Supervisor, SynapseError
from synapse.policy.budget import key_of
from synapse.server import ManagedServer, ServerSpec
from synapse.wire.messages import ModelInfo

MAX_MICRO_BATCH = 8192
"""Tokens of one micro-batch at most: its buffers grow with it."""
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
    if info.role != "generate" or info.decision:
        # An encoder takes a text, a query with its document, or a whole decision in one micro-batch.
        batch = str(min(context, MAX_MICRO_BATCH))
        made += ["--batch-size", batch, "--ubatch-size", batch]
    if info.role != "generate" and not info.decision:
        made += ["--embeddings" if info.role == "embed" else "--reranking"]
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


class ManagedLlama:
    """A llama-server of ours, from the file to the supervised program.

    Attributes:
        upstream: the client of its socket.
        recorded: the capabilities that the configuration or the file records; empty until it was read.
        server: its supervision, once the file was read.
        digest: the file's; empty until it was read.
        failure: what is wrong with the file or the program, if it could not be started at all.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        alias: str,
        options: ServerOptions,
        socket: str,
        wanted: Sequence[str] = (),
    ) -> None:
        self._supervisor, self._options, self._socket = supervisor, options, socket
        self._alias, self._wanted = alias, tuple(wanted)
        self.upstream = Upstream("llama.cpp", f"unix:{socket}")
        self.recorded = self._wanted
        self.server: ManagedServer | None = None
        self.digest = ""
        self.failure: SynapseError | None = None
        self._starting = trio.Lock()
        self._told = trio.Event()

    async def start(self) -> None:
        """Read the file's header and begin to run the program; it boots while the caller goes on.

        Never raises for what is wrong with file or program: that is `failure`, and `probe` tries again.
        """
        async with self._starting:
            if self.server is not None:
                return
            self.failure = None
            try:
                program = find_program(self._options.program)
                info = await self._supervisor.text.ingest(self._options.path, header_only=True)
                self.digest = info.digest
                check_role(info, self._wanted)
                self.recorded = self._wanted or (() if info.decision else RECORDED[info.role])
                self.server = self._supervisor.serve(self._spec(info, program))
            except (SynapseError, OSError) as error:
                self.failure = error if isinstance(error, SynapseError) else SetupError(str(error))
            told, self._told = self._told, trio.Event()
            told.set()

    def unavailable(self) -> LaneUnavailable | None:
        """Why it takes no requests now; None: it does."""
        if self.server is not None:
            return self.server.unavailable()
        if self.failure is not None:
            return LaneUnavailable("runtime_unavailable", str(self.failure))
        return LaneUnavailable("model_loading", f"{self._alias} is loading", 1.0)

    async def changed(self) -> None:
        """Wait until `unavailable` may say something else."""
        if self.server is None:
            await self._told.wait()
        else:
            await self.server.changed()

    async def ready(self) -> None:
        """Wait until it takes requests. Raises what keeps it from that: SynapseError."""
        while (gone := self.unavailable()) is not None:
            if gone.retry_after is None:
                raise self.failure or gone
            await self.changed()

    async def probe(self) -> None:
        """Try a failed or quarantined one again, on purpose; waits as `ready` does. Raises OSError too."""
        await self.start()
        if self.server is not None:
            await self.server.probe()
        await self.ready()

    def _spec(self, info: ModelInfo, program: Sequence[str]) -> ServerSpec:
        """What synapse supervises: readiness and health are llama-server's own `/health`."""
        upstream, options = self.upstream, self._options

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

        argv = [*program, *arguments(options, info, self._socket, self._alias)]
        # What runs, whatever the file's place and the socket's are called (W9).
        config = {"argv": "\n".join(argv).replace(self._socket, "SOCKET").replace(options.path, "MODEL")}
        return ServerSpec(
            name=self._alias,
            key=key_of(info.digest, config),
            argv=argv,
            ready=ready,
            healthy=answers,
            size=info.size,
            socket=self._socket,
        )
