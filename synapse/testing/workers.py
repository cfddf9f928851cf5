"""The conformance suite of a worker: what every program that speaks the protocol (docs/protocol.md) has to keep.

    subject = WorkerUnderTest(argv=["my-worker"], artifact=Path("model.gguf"), digest="sha256:...", vocabulary=32000)
    with RealHost(directory) as host:
        await check_worker(host, subject)

Only what the worker says it can is asked of it: whatever it answers with ERR `unknown_type` or `unsupported` it does
not serve. Everything else has to hold: replies of the right shape, refusals that keep it in step, an end when asked.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import trio

from synapse.errors import EngineCrashed, EngineRefused, RemoteProtocolError
from synapse.limits import Limits
from synapse.ports import ByteStream, Host, WorkerProcess, WorkerSpec
from synapse.testing.streams import HANG_S, NonConformance
from synapse.wire import messages as m
from synapse.wire.connection import NEED_DATA, Connection, HelloReceived, ReplyReceived
from synapse.wire.frames import prefix
from synapse.wire.state import Role
from synapse.worker import Worker, open_worker

LOAD_S = 600.0
_PATIENT = Limits(boot_s=HANG_S, shutdown_grace_s=HANG_S, terminate_grace_s=HANG_S)
_WRONG_DIGEST = "sha256:" + "0" * 64


@dataclass(frozen=True)
class WorkerUnderTest:
    """A worker program and a model that it can load.

    Attributes:
        argv: the program, without --socket and --nonce.
        artifact, digest, format, runtime_config: what LOAD says.
        vocabulary: token ids are below it.
        first_id: the smallest id that is ordinary text.
        checks_digest: False for a worker that loads nothing from the file.
        env: additions to its environment.
    """

    argv: Sequence[str]
    artifact: Path
    digest: str
    vocabulary: int
    format: str = "gguf"
    first_id: int = 3
    runtime_config: Mapping[str, str] = field(default_factory=dict)
    checks_digest: bool = True
    env: Mapping[str, str] = field(default_factory=dict)

    def spec(self) -> WorkerSpec:
        return WorkerSpec(f"c{next(_NUMBERS)}", self.argv, "00c0ffee00c0ffee", self.env)

    def load(self, digest: str | None = None) -> m.Load:
        return m.Load(
            req_id="load",
            artifact_path=str(self.artifact),
            artifact_digest=digest or self.digest,
            format=self.format,
            runtime_config=dict(self.runtime_config),
        )

    def ids(self, length: int, start: int = 0) -> np.ndarray:
        """An ordinary text of so many ids."""
        span = self.vocabulary - self.first_id
        return ((np.arange(length) + start) % span + self.first_id).astype("<i4")


_NUMBERS = itertools.count(1)
Check = Callable[[Host, WorkerUnderTest], Awaitable[None]]


# --- what is checked --------------------------------------------------------------------------------------------------


async def it_says_hello_and_ends_when_asked(host: Host, subject: WorkerUnderTest) -> None:
    """HELLO with version, nonce and pid; PING before any model; status 0 after SHUTDOWN."""
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        reply, _ = await worker.call(m.Ping(req_id="p"), timeout_s=HANG_S)
        _expect(isinstance(reply, m.Pong), "PING was not answered")
        process = worker._process
    status = await process.wait()
    _expect(status == 0, f"status {status} after SHUTDOWN")


async def it_understands_requests_in_pieces(host: Host, subject: WorkerUnderTest) -> None:
    """Byte by byte, and two messages' bytes at once are no two messages."""
    async with _raw(host, subject) as conversation:
        for piece in _bytes(conversation.wire, m.Ping(req_id="slow")):
            await conversation.stream.send_all([bytes([piece])])
        _expect(isinstance(await conversation.reply(), m.Pong), "a PING that came byte by byte was not answered")


async def unknown_types_are_read_and_refused(host: Host, subject: WorkerUnderTest) -> None:
    """ERR unknown_type, with the announced raw frames read, and still in step (W4)."""
    async with _raw(host, subject) as conversation:
        for count in (0, 1, 3):
            header = {"type": "SING_ALONG", "req_id": f"u{count}", "raw": count, "anything": {"deep": [1]}}
            await conversation.refused(header, [b"la"] * count, "unknown_type")
        await conversation.in_step()


async def unknown_keys_are_refused(host: Host, subject: WorkerUnderTest) -> None:
    """ERR invalid_request for a request with a key too many or a value of the wrong type, and still in step (W1)."""
    async with _raw(host, subject) as conversation:
        await conversation.refused({"type": "PING", "req_id": "k", "extra": 1}, [], "invalid_request")
        embed = {"type": "EMBED_BATCH", "req_id": "e", "model_ref": "m", "pooling": "mean", "normalize": "yes"}
        await conversation.refused(embed | {"items": []}, [b""], "invalid_request")
        await conversation.in_step()


async def without_a_model_it_refuses(host: Host, subject: WorkerUnderTest) -> None:
    """EMBED_BATCH before LOAD is ERR, and costs nothing."""
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        code = await _refusal(worker, *_embed("nothing", [subject.ids(3)]))
        _expect(code in ("model_not_loaded", "unknown_type"), f"{code!r} for a model that was never loaded")
        await worker.call(m.Ping(req_id="p"), timeout_s=HANG_S)


async def a_wrong_digest_is_refused(host: Host, subject: WorkerUnderTest) -> None:
    """ERR artifact_invalid; afterwards the right one loads."""
    if not subject.checks_digest:
        return
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        code = await _refusal(worker, subject.load(_WRONG_DIGEST), [], LOAD_S)
        _expect(code == "artifact_invalid", f"{code!r} for a file of another digest")
        await _load(worker, subject)


async def it_loads_serves_and_unloads(host: Host, subject: WorkerUnderTest) -> None:
    """LOADED, then answers of the right shape, then UNLOADED; afterwards the model is not loaded."""
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        loaded = await _load(worker, subject)
        _expect(bool(loaded.model_ref), "LOADED without a model_ref")
        served = await _serves(worker, subject, loaded)
        _expect(bool(served), "it serves none of EMBED_BATCH, RERANK, GENERATE and DECODE")
        await worker.call(m.Unload(req_id="u", model_ref=loaded.model_ref), timeout_s=LOAD_S)
        for request, raws in _all_requests(subject, loaded.model_ref):
            _expect(
                await _refusal(worker, request, raws) is not None, f"{type(request).__name__} was served after UNLOAD"
            )


async def answers_do_not_depend_on_company(host: Host, subject: WorkerUnderTest) -> None:
    """A batch gives what each text gives alone, in the same order, to five digits."""
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        loaded = await _load(worker, subject)
        texts = [subject.ids(length, length) for length in (3, 17, 5)]
        whole = await _vectors(worker, loaded, texts)
        if whole is None:
            return
        for index, text in enumerate(texts):
            alone = await _vectors(worker, loaded, [text])
            _expect(alone is not None and np.allclose(whole[index], alone[0], atol=1e-5), "a text alone differs")
        _expect(np.allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-3), "normalize was asked for")


async def bad_ids_are_refused(host: Host, subject: WorkerUnderTest) -> None:
    """Ids out of range, an empty text, more than the window: ERR, never a crash, never an answer (W11)."""
    async with open_worker(host, subject.spec(), _PATIENT) as worker:
        loaded = await _load(worker, subject)
        longest = max(loaded.measured.context, 1) + 1
        bad = [np.asarray([value], "<i4") for value in (-1, subject.vocabulary, 2**31 - 1)]
        if loaded.measured.context:
            bad.append(subject.ids(longest))
        for ids in bad:
            for request, raws in _requests(loaded.model_ref, ids):
                code = await _refusal(worker, request, raws)
                if code is None and isinstance(request, m.Decode):
                    continue  # one sequence's failure is its own error, checked by the supervisor's tests
                _expect(code is not None, f"{type(request).__name__} with ids {ids[:3]} of {len(ids)} was served")
        await worker.call(m.Ping(req_id="p"), timeout_s=HANG_S)


async def the_connections_end_ends_it(host: Host, subject: WorkerUnderTest) -> None:
    """Where the module is gone nobody needs it (W8)."""
    async with _raw(host, subject) as conversation:
        conversation.stream.close()
        with trio.move_on_after(HANG_S) as scope:
            await conversation.process.wait()
        _expect(not scope.cancelled_caught, "it lives on without a connection")


async def a_broken_module_ends_it(host: Host, subject: WorkerUnderTest) -> None:
    """Bytes that are no frame of ours: it leaves, with a status that is not 0."""
    async with _raw(host, subject) as conversation:
        await conversation.stream.send_all([b"\xff\xff\xff\xff"])
        with trio.move_on_after(HANG_S) as scope:
            status = await conversation.process.wait()
        _expect(not scope.cancelled_caught and status != 0, "it goes on after bytes that are no frame")


WORKER_CHECKS: dict[str, Check] = {
    check.__name__: check
    for check in (
        it_says_hello_and_ends_when_asked,
        it_understands_requests_in_pieces,
        unknown_types_are_read_and_refused,
        unknown_keys_are_refused,
        without_a_model_it_refuses,
        a_wrong_digest_is_refused,
        it_loads_serves_and_unloads,
        answers_do_not_depend_on_company,
        bad_ids_are_refused,
        the_connections_end_ends_it,
        a_broken_module_ends_it,
    )
}


async def check_worker(host: Host, subject: WorkerUnderTest, *, only: str | None = None) -> list[str]:
    """Run the whole suite, or one check by name; the names of those that ran.

    Raises: NonConformance, which names the check; a worker that dies where it must not is one too.
    """
    names = [only] if only is not None else list(WORKER_CHECKS)
    for name in names:
        try:
            await WORKER_CHECKS[name](host, subject)
        except NonConformance as problem:
            raise NonConformance(name, str(problem).removeprefix(": ")) from None
        except RemoteProtocolError as violation:
            raise NonConformance(name, str(violation)) from violation
        except EngineCrashed as crash:
            raise NonConformance(name, f"{crash}\n{crash.log_tail}") from crash
    return names


# --- how it is asked --------------------------------------------------------------------------------------------------


class _Conversation:
    """A greeted connection on which anything can be said."""

    def __init__(self, process: WorkerProcess, stream: ByteStream, wire: Connection) -> None:
        self.process, self.stream, self.wire = process, stream, wire

    async def reply(self) -> m.Reply:
        """The reply to what was sent through `wire`."""
        with trio.move_on_after(HANG_S):
            while (event := self.wire.next_event()) is NEED_DATA:
                self.wire.buffer_filled(await self.stream.receive_into(self.wire.get_buffer()))
            if isinstance(event, ReplyReceived):
                return event.reply
            raise NonConformance("", "it ended instead of answering")
        raise NonConformance("", "no answer")

    async def refused(self, header: Mapping[str, object], raws: list[bytes], code: str) -> None:
        """Say what `wire` would never say, and demand ERR with this code."""
        frames = [msgspec.json.encode(header), *raws]
        await self.stream.send_all([prefix(len(frame)) + frame for frame in frames])
        with trio.move_on_after(HANG_S) as scope:
            length = int.from_bytes(await self._exactly(4), "little")
            reply = msgspec.json.decode(await self._exactly(length), type=m.Err)
        _expect(not scope.cancelled_caught, f"no answer to {header['type']}")
        _expect(reply.req_id == header["req_id"], f"ERR to {reply.req_id!r}")
        _expect(reply.code == code, f"ERR {reply.code!r} instead of {code!r}: {reply.msg}")

    async def in_step(self) -> None:
        await self.stream.send_all(self.wire.send(m.Ping(req_id="after")))
        _expect(isinstance(await self.reply(), m.Pong), "it is out of step")

    async def _exactly(self, count: int) -> bytes:
        data, at = bytearray(count), 0
        while at < count:
            got = await self.stream.receive_into(memoryview(data)[at:])
            _expect(got > 0, "it closed its connection")
            at += got
        return bytes(data)


@asynccontextmanager
async def _raw(host: Host, subject: WorkerUnderTest) -> AsyncIterator[_Conversation]:
    """A worker that was greeted by hand."""
    spec = subject.spec()
    async with host.spawn(spec) as process:
        with trio.move_on_after(HANG_S) as scope:
            stream = await process.accept()
            wire = Connection(Role.MODULE, nonce=spec.nonce, pid=process.pid)
            while (event := wire.next_event()) is NEED_DATA:
                wire.buffer_filled(await stream.receive_into(wire.get_buffer()))
            _expect(isinstance(event, HelloReceived), "no HELLO")
            await stream.send_all(wire.send(m.HelloAck(v=m.PROTOCOL_VERSION, accept=True, max_frame=wire.max_frame)))
        if scope.cancelled_caught:
            raise NonConformance("", "it did not connect and say HELLO")
        yield _Conversation(process, stream, wire)


def _bytes(wire: Connection, message: m.Request) -> bytes:
    return b"".join(bytes(buffer) for buffer in wire.send(message))


async def _load(worker: Worker, subject: WorkerUnderTest) -> m.Loaded:
    try:
        reply, _ = await worker.call(subject.load(), timeout_s=LOAD_S, stage="load")
    except EngineRefused as refused:
        raise NonConformance("", f"LOAD was refused: {refused}") from None
    _expect(isinstance(reply, m.Loaded), "LOAD was not answered by LOADED")
    assert isinstance(reply, m.Loaded)
    return reply


async def _refusal(
    worker: Worker, request: m.Request, raws: Sequence[Any] = (), timeout_s: float = HANG_S
) -> str | None:
    """The code of its ERR, None where it served."""
    try:
        await worker.call(request, raws, timeout_s=timeout_s)
    except EngineRefused as refused:
        return refused.code
    return None


def _embed(model_ref: str, texts: Sequence[np.ndarray]) -> tuple[m.EmbedBatch, list[Any]]:
    items = [m.EmbedItem(str(index), len(text)) for index, text in enumerate(texts)]
    request = m.EmbedBatch(req_id="e", model_ref=model_ref, pooling="mean", normalize=True, items=items)
    return request, [np.concatenate(texts)]


def _requests(model_ref: str, ids: np.ndarray) -> list[tuple[m.Request, list[Any]]]:
    """The four kinds of work, over these ids."""
    start = m.DecodeStart(seq=0, n_tokens=len(ids), max_tokens=4, sampling=m.Sampling())
    rerank = m.Rerank(req_id="r", model_ref=model_ref, query_n_tokens=len(ids), candidates=[m.Candidate(len(ids))])
    return [
        _embed(model_ref, [ids]),
        (rerank, [np.concatenate([ids, ids])]),
        (m.Generate(req_id="g", model_ref=model_ref, max_tokens=4), [ids]),
        (m.Decode(req_id="d", model_ref=model_ref, max_steps=4, target_ms=50.0, start=[start]), [ids]),
    ]


def _all_requests(subject: WorkerUnderTest, model_ref: str) -> list[tuple[m.Request, list[Any]]]:
    return _requests(model_ref, subject.ids(4))


async def _serves(worker: Worker, subject: WorkerUnderTest, loaded: m.Loaded) -> list[str]:
    """Which kinds of work it serves. The wire has checked shapes and values of their answers."""
    served = []
    for request, raws in _all_requests(subject, loaded.model_ref):
        code = await _refusal(worker, request, raws, LOAD_S)
        if code is None:
            served.append(type(request).__name__)
    return served


async def _vectors(worker: Worker, loaded: m.Loaded, texts: Sequence[np.ndarray]) -> np.ndarray | None:
    """[n, dims], None where it does not embed."""
    try:
        reply, raw = await worker.call(*_embed(loaded.model_ref, texts), timeout_s=LOAD_S)
    except EngineRefused:
        return None
    assert isinstance(reply, m.Vectors)
    _expect(reply.dims == loaded.dims, f"{reply.dims} dimensions, LOADED said {loaded.dims}")
    return np.frombuffer(raw, "<f4").reshape(reply.n, reply.dims)


def _expect(holds: bool, problem: str) -> None:
    if not holds:
        raise NonConformance("", problem)
