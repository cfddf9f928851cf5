"""The pool of text processes as async calls: digests, headers, tokenizers, chat templates, grammars (W13).

Whatever a request's text does to the process that handles it costs that request only: it fails as input that cannot be
served, the process is replaced, and what else waited is done by the others. Nothing here spends a lane's crash budget.
"""

from __future__ import annotations

import collections
import contextlib
import os
import secrets
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import trio
from numpy.typing import NDArray

from synapse.errors import (
    EngineCrashed,
    EngineRefused,
    InputTooLarge,
    InvalidInput,
    LaneUnavailable,
    LocalProtocolError,
    SetupError,
)
from synapse.host import python_worker
from synapse.limits import Limits
from synapse.ports import Host, WorkerSpec
from synapse.textframes import QUICK_BYTES, groups_of, ids_of, utf8
from synapse.wire.messages import (
    CheckGrammar,
    GrammarChecked,
    Ingest,
    Ingested,
    ModelFile,
    ModelInfo,
    Render,
    Rendered,
    Reply,
    Request,
    Tokenize,
    Tokenized,
)
from synapse.worker import Worker, open_worker

_STARTS_BEFORE_GIVING_UP = 3
"""Failed starts in a row after which waiting requests are refused instead of kept."""


@dataclass(frozen=True)
class RenderedPrompt:
    """A conversation as the engine gets it.

    Attributes:
        ids: int32[n].
        injection_closed: special-token text inside the messages stayed text.
    """

    ids: NDArray[np.int32]
    injection_closed: bool


def fits_bytes(info: ModelInfo, context: int, text: str) -> bool:
    """Whether a text can fit a window of `context` tokens at all: it is refused untokenized where it cannot (W13)."""
    longest = context * max(info.longest_token_bytes, 4)
    return len(text) <= longest and len(text.encode()) <= longest


@dataclass
class _Job:
    """One request on its way to a process. The task that made it waits for `done`."""

    request: Request
    raw: bytes
    deadline_s: float
    step: str
    slow: bool
    raw_frame: bool = True
    tried: bool = False
    """A process was killed from outside while it had it."""
    done: trio.Event = field(default_factory=trio.Event)
    withdrawn: bool = False
    result: tuple[Reply, memoryview] | None = None
    error: Exception | None = None

    def finish(self, result: tuple[Reply, memoryview] | None, error: Exception | None = None) -> None:
        self.result, self.error = result, error
        self.done.set()


class TextService:
    """Text work, done in processes that may die of it. Use `open_text_service`.

    Every method blocks and may be cancelled: waiting work is withdrawn, running work ends in its process unheard.
    Every method raises InvalidInput for what cannot be served, and LaneUnavailable if no text process starts.
    """

    def __init__(self, limits: Limits, cache_dir: str, argv: Sequence[str] | None = None) -> None:
        self._limits, self._cache_dir = limits, cache_dir
        self._argv = list(argv) if argv is not None else python_worker("text")
        self._waiting: collections.deque[_Job] = collections.deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._down: dict[int, str] = {}
        """Slot → why its process did not start, several times in a row."""
        self._slots = 0
        self._closed = False
        self.restarts = 0
        """Processes that were replaced because they died or ran out of time."""

    async def ingest(self, path: str | os.PathLike[str], *, header_only: bool = False) -> ModelInfo:
        """Digest a model file, read its header, build and probe its tokenizer; all is cached by digest.

        Args:
            header_only: digest and header only, for a model that another program tokenizes for.
        """
        name = _absolute(path)
        utf8(name, "the path")
        size = await trio.to_thread.run_sync(_size_of, name)
        request = Ingest(req_id="", path=name, cache_dir=self._cache_dir, header_only=header_only)
        reply, _ = await self._do(request, b"", self._limits.ingest_s(size), "the model file", slow=True)
        assert isinstance(reply, Ingested)
        return reply.info

    def model(self, info: ModelInfo, path: str | os.PathLike[str]) -> ModelFile:
        """How the other methods name an ingested model."""
        return ModelFile(path=_absolute(path), digest=info.digest, cache_dir=self._cache_dir)

    async def tokenize(
        self, model: ModelFile, texts: Sequence[str], *, add_special: bool = True, parse_special: bool = False
    ) -> list[NDArray[np.int32]]:
        """The ids of each text, exactly as the engine would tokenize it. int32[n] each."""
        encoded = [utf8(text, f"text {index}") for index, text in enumerate(texts)]
        self._bound("the longest text", max(map(len, encoded), default=0))
        groups = groups_of([len(data) for data in encoded])
        results: list[list[NDArray[np.int32]]] = [[] for _ in groups]
        errors: dict[int, Exception] = {}

        async def run(index: int, start: int, end: int) -> None:
            request = Tokenize(
                req_id="",
                model=model,
                lengths=[len(data) for data in encoded[start:end]],
                add_special=add_special,
                parse_special=parse_special,
            )
            try:
                reply, raw = await self._do_text(request, b"".join(encoded[start:end]), "the tokenizer")
            except (InvalidInput, LaneUnavailable) as error:
                errors[index] = error
                return
            assert isinstance(reply, Tokenized)
            results[index] = ids_of(raw, reply.counts)

        async with trio.open_nursery() as nursery:
            for index, (start, end) in enumerate(groups):
                nursery.start_soon(run, index, start, end)
        if errors:
            raise errors[min(errors)]
        return [ids for group in results for ids in group]

    async def render(
        self, model: ModelFile, chat: bytes, *, template: str | None = None, close_injection: bool = True
    ) -> RenderedPrompt:
        """Render a conversation and tokenize it.

        Args:
            chat: JSON {messages, tools?, add_generation_prompt?, extras?}.
            template: the name of a built-in template instead of the model's own.
        """
        self._bound("the conversation", len(chat))
        request = Render(req_id="", model=model, n_bytes=len(chat), template=template, close_injection=close_injection)
        reply, raw = await self._do_text(request, chat, "the chat template")
        assert isinstance(reply, Rendered)
        return RenderedPrompt(ids_of(raw, [reply.n_tokens])[0], reply.injection_closed)

    async def check_grammar(self, kind: Literal["grammar", "json_schema"], text: str) -> None:
        """Refuse a grammar or schema that cannot be honoured in full, naming what it is."""
        data = utf8(text, f"the {kind}")
        if len(data) > self._limits.grammar_bytes:
            raise InvalidInput(
                f"the {kind} has {len(data)} bytes, over the limit of {self._limits.grammar_bytes}", field=kind
            )
        request = CheckGrammar(req_id="", kind=kind, n_bytes=len(data))
        try:
            reply, _ = await self._do(request, data, self._limits.text_s, "the grammar", slow=False)
        except InvalidInput as error:
            error.field = kind
            raise
        assert isinstance(reply, GrammarChecked)

    def _bound(self, what: str, n_bytes: int) -> None:
        """A byte may become a token, and a token takes four in the reply's frame."""
        most = self._limits.max_frame_bytes // 4 - 64
        if n_bytes > most:
            raise InputTooLarge(what, n_bytes, most, detail=" bytes")

    # --- the queue ----------------------------------------------------------------------------------------------------

    async def _do_text(self, request: Request, raw: bytes, step: str) -> tuple[Reply, memoryview]:
        deadline = self._limits.text_s + self._limits.text_s_per_mb * len(raw) / 1e6
        return await self._do(request, raw, deadline, step, slow=len(raw) > QUICK_BYTES)

    async def _do(
        self, request: Request, raw: bytes, deadline_s: float, step: str, *, slow: bool
    ) -> tuple[Reply, memoryview]:
        job = _Job(request, raw, deadline_s, step, slow, raw_frame=not isinstance(request, Ingest))
        if self._closed:
            raise _closing()
        if self._slots and len(self._down) == self._slots:
            raise _not_starting(next(iter(self._down.values())))
        self._waiting.append(job)
        self._idle.unpark_all()
        try:
            await job.done.wait()
        except trio.Cancelled:
            job.withdrawn = True
            raise
        if job.error is not None:
            raise job.error
        assert job.result is not None
        return job.result

    async def _next(self, quick_only: bool) -> _Job:
        """The first waiting request that this process may take. Cancelling leaves the queue as it is."""
        while True:
            for job in [job for job in self._waiting if job.withdrawn]:
                self._waiting.remove(job)
            for job in self._waiting:
                if not (quick_only and job.slow):
                    self._waiting.remove(job)
                    return job
            await self._idle.park()

    # --- the processes ------------------------------------------------------------------------------------------------

    async def run_slot(self, host: Host, slot: int, quick_only: bool) -> None:
        """Keep one text process running: start, serve, replace. Ends by cancellation only."""
        self._slots += 1
        failures = 0
        while True:
            reason = "they die idle"
            try:
                async with open_worker(host, self._spec(slot), self._limits) as worker:
                    self._down.pop(slot, None)
                    if await self._serve(worker, quick_only):
                        failures = 0
                        continue  # it died of a request: replaced at once
            except (EngineCrashed, SetupError) as error:
                reason = str(error)
            failures += 1
            if failures >= _STARTS_BEFORE_GIVING_UP:
                self._give_up(slot, reason)
            await trio.sleep(min(self._limits.backoff_max_s, self._limits.backoff_first_s * 2 ** min(failures - 1, 16)))

    async def _serve(self, worker: Worker, quick_only: bool) -> bool:
        """Requests, one after the other, until the process dies. Returns whether it ever was given one."""
        busy = False
        while (job := await self._next_or_death(worker, quick_only)) is not None:
            busy = await self._work(worker, job) or busy
            if worker.crash is not None:
                break
        self.restarts += 1
        return busy

    async def _work(self, worker: Worker, job: _Job) -> bool:
        """Have one request done. Returns whether the process got it; if not, it waits again, as the first."""
        handed_over = False

        def hand_over() -> None:
            nonlocal handed_over
            handed_over = True

        try:
            raws = [job.raw] if job.raw_frame else []
            job.finish(await worker.call(job.request, raws, timeout_s=job.deadline_s, on_handover=hand_over))
        except EngineRefused as error:
            job.finish(None, InvalidInput(error.message))
        except LocalProtocolError as error:
            job.finish(None, InvalidInput(f"{job.step}: {error}"))  # nothing was sent
        except EngineCrashed as error:
            if handed_over and (job.tried or not _killed_from_outside(error)):
                job.finish(None, InvalidInput(_death(job, error)))
            else:
                job.tried = handed_over
                self._waiting.appendleft(job)  # nothing came of it yet: text work has no effects
                self._idle.unpark_all()
        except BaseException:
            job.finish(None, _closing())
            raise
        return handed_over

    async def _next_or_death(self, worker: Worker, quick_only: bool) -> _Job | None:
        """The next request; None if the process died meanwhile."""
        job: _Job | None = None

        async def watch() -> None:
            await worker.died()
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            job = await self._next(quick_only)
            nursery.cancel_scope.cancel()
        return job

    def _give_up(self, slot: int, reason: str) -> None:
        """This slot does not start. Where none does, what waits is refused."""
        self._down[slot] = reason
        if len(self._down) == self._slots:
            self._refuse_all(_not_starting(reason))

    def close(self) -> None:
        """Refuse what waits and what comes."""
        self._closed = True
        self._refuse_all(_closing())

    def _refuse_all(self, error: LaneUnavailable) -> None:
        waiting, self._waiting = list(self._waiting), collections.deque()
        for job in waiting:
            job.finish(None, error)

    def _spec(self, slot: int) -> WorkerSpec:
        return WorkerSpec(
            worker_id=f"text-{slot}-{secrets.token_hex(4)}",
            argv=self._argv,
            nonce=secrets.token_hex(8),
            env={"SYNAPSE_WRITE_DIRS": self._cache_dir},
        )


@contextlib.asynccontextmanager
async def open_text_service(
    host: Host,
    limits: Limits,
    cache_dir: str | os.PathLike[str],
    processes: int = 2,
    argv: Sequence[str] | None = None,
) -> AsyncIterator[TextService]:
    """The text processes, started and kept running; none is left afterwards.

    Args:
        cache_dir: of the ingest cache; made if it is not there.
        processes: how many. With more than one, the first takes no long work.
        argv: another program that speaks the text messages, without --socket and --nonce.
    Raises: SetupError if the cache directory cannot be made.
    """
    directory = _absolute(cache_dir)
    try:
        await trio.to_thread.run_sync(lambda: Path(directory).mkdir(mode=0o700, parents=True, exist_ok=True))
    except OSError as error:
        raise SetupError(f"the cache directory {directory} cannot be made: {error.strerror}") from error
    service = TextService(limits, directory, argv)
    async with trio.open_nursery() as nursery:
        for slot in range(processes):
            nursery.start_soon(service.run_slot, host, slot, processes > 1 and slot == 0)
        try:
            yield service
        finally:
            service.close()
            nursery.cancel_scope.cancel()


def _killed_from_outside(error: EngineCrashed) -> bool:
    """SIGKILL that was not ours: somebody's, or the kernel's for want of memory. The request need not be its cause."""
    return error.stage in ("request", "idle") and error.exit_status == -signal.SIGKILL


def _death(job: _Job, error: EngineCrashed) -> str:
    if error.stage == "timeout":
        return f"{job.step}: not done within {job.deadline_s:g} s"
    return f"{job.step}: the process that handled it died"


def _not_starting(reason: str) -> LaneUnavailable:
    return LaneUnavailable("runtime_unavailable", f"the text processes do not start: {reason}", retry_after=5.0)


def _closing() -> LaneUnavailable:
    return LaneUnavailable("runtime_unavailable", "the text service is closing")


def _absolute(path: str | os.PathLike[str]) -> str:
    return os.path.abspath(path)


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return 0  # the text process says what is wrong with it
