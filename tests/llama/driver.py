"""A real llama worker, driven over its socket without the library's supervisor: one blocking call after the other."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from synapse.artifacts.gguf import read_header
from synapse.artifacts.tokenizer import Tokenizer, build_tokenizer
from synapse.host.environment import child_environment
from synapse.wire import messages as m
from synapse.wire.connection import NEED_DATA, Connection, HelloReceived, ReplyReceived
from synapse.wire.state import Role

BOUND_S = 120.0
"""Only a hang waits so long."""
NONCE = "0123456789abcdef"
REF = "model"
Ids = NDArray[np.int32]


class Refusal(Exception):
    """The worker answered ERR."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class WorkerGone(Exception):
    """The worker closed its connection."""


class Driver:
    """One worker process. `call` raises Refusal for ERR."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process, self._socket = process, connection
        self._wire = Connection(Role.MODULE, nonce=NONCE, pid=process.pid)
        hello = self._event()
        assert isinstance(hello, HelloReceived)
        self.hello = hello.hello
        self._send(m.HelloAck(v=1, accept=True, max_frame=self._wire.max_frame))

    def call(self, request: m.Request, raw: bytes | None = None) -> tuple[Any, bytes]:
        self._send(request, [] if raw is None else [raw])
        event = self._event()
        assert isinstance(event, ReplyReceived)
        if isinstance(event.reply, m.Err):
            raise Refusal(event.reply.code, event.reply.msg)
        return event.reply, b"".join(bytes(raw) for raw in event.raws)

    def alive(self) -> bool:
        """It answers, and is the process that it was."""
        return isinstance(self.call(m.Ping(req_id="ping"))[0], m.Pong) and self.process.poll() is None

    def _send(self, message: msgspec.Struct, raws: Sequence[bytes] = ()) -> None:
        for buffer in self._wire.send(message, raws):
            self._socket.sendall(buffer)

    def _event(self) -> Any:
        while (event := self._wire.next_event()) is NEED_DATA:
            n = self._socket.recv_into(self._wire.get_buffer())
            if n == 0:
                raise WorkerGone
            self._wire.buffer_filled(n)
        return event

    # --- the requests ------------------------------------------------------------------------------------------------

    def load(self, path: Path, *, digest: str | None = None, **config: object) -> m.Loaded:
        request = m.Load(
            req_id="load",
            artifact_path=str(path),
            artifact_digest=digest_of(path) if digest is None else digest,
            format="gguf",
            runtime_config={key: str(value) for key, value in config.items()},
        )
        loaded = self.call(request)[0]
        assert isinstance(loaded, m.Loaded)
        return loaded

    def unload(self) -> None:
        self.call(m.Unload(req_id="unload", model_ref=REF))

    @contextmanager
    def loaded(self, path: Path, **config: object) -> Iterator[m.Loaded]:
        loaded = self.load(path, **config)
        try:
            yield loaded
        finally:
            if self.process.poll() is None:
                self.unload()

    def embed(self, texts: Sequence[Sequence[int]], pooling: m.Pooling = "mean", normalize: bool = True) -> Any:
        items = [m.EmbedItem(id=str(i), n_tokens=len(ids)) for i, ids in enumerate(texts)]
        request = m.EmbedBatch(req_id="e", model_ref=REF, pooling=pooling, normalize=normalize, items=items)
        reply, raw = self.call(request, raw_ids(*texts))
        return np.frombuffer(raw, "<f4").reshape(reply.n, reply.dims)

    def rerank(self, query: Sequence[int], documents: Sequence[Sequence[int]]) -> Any:
        candidates = [m.Candidate(n_tokens=len(ids)) for ids in documents]
        request = m.Rerank(req_id="r", model_ref=REF, query_n_tokens=len(query), candidates=candidates)
        return np.frombuffer(self.call(request, raw_ids(query, *documents))[1], "<f4")

    def generate(self, prompt: Sequence[int], max_tokens: int, grammar: str | None = None) -> m.Text:
        request = m.Generate(req_id="g", model_ref=REF, max_tokens=max_tokens, grammar=grammar)
        text = self.call(request, raw_ids(prompt))[0]
        assert isinstance(text, m.Text)
        return text

    def decode(self, **fields: Any) -> m.Decoded:
        """One quantum; `start` is a list of (place, Stream)."""
        starts: list[tuple[int, Stream]] = fields.pop("start", [])
        request = m.Decode(
            req_id="d",
            model_ref=REF,
            max_steps=fields.pop("max_steps", 8),
            target_ms=fields.pop("target_ms", 1e6),
            start=[stream.start(place) for place, stream in starts],
            **fields,
        )
        decoded = self.call(request, raw_ids(*(stream.prompt for _, stream in starts)))[0]
        assert isinstance(decoded, m.Decoded)
        return decoded

    def run(self, *streams: Stream, places: Sequence[int] | None = None, **fields: Any) -> list[Result]:
        """Start all of them at once and go on until each has ended."""
        run = Run(self)
        for place, stream in zip(places or range(len(streams)), streams, strict=True):
            run.add(place, stream)
        while run.busy:
            run.quantum(**fields)
        return [stream.result for stream in streams]


@dataclass
class Result:
    """What a stream has given so far."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)
    logprobs: list[m.TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    error: m.SequenceError | None = None
    n_gen: int = 0
    n_reused: int = 0
    n_prompt_done: int = 0


@dataclass
class Stream:
    """One generation as DECODE starts it."""

    prompt: Sequence[int]
    max_tokens: int = 32
    sampling: m.Sampling = field(default_factory=m.Sampling)
    stop: Sequence[str] = ()
    grammar: str | None = None
    json_schema: str | None = None
    logprobs: int | None = None
    reuse: tuple[int, int] | None = None
    result: Result = field(default_factory=Result)

    def start(self, place: int) -> m.DecodeStart:
        return m.DecodeStart(
            seq=place,
            n_tokens=len(self.prompt),
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            stop=list(self.stop),
            grammar=self.grammar,
            json_schema=self.json_schema,
            logprobs=self.logprobs,
            reuse=None if self.reuse is None else m.Reuse(seq=self.reuse[0], n=self.reuse[1]),
        )

    def again(self, **changes: Any) -> Stream:
        """The same request, nothing generated yet."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "result"}
        return Stream(**(fields | changes))


class Run:
    """Streams in a worker's places, quantum by quantum."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._new: list[tuple[int, Stream]] = []
        self.running: dict[int, Stream] = {}

    @property
    def busy(self) -> bool:
        return bool(self._new or self.running)

    def add(self, place: int, stream: Stream) -> None:
        self._new.append((place, stream))

    def quantum(self, *, hold: Sequence[int] = (), drop: Sequence[int] = (), **fields: Any) -> m.Decoded:
        """Start what was added, continue the rest but `hold`, drop `drop`."""
        for place in drop:
            self.running.pop(place, None)
        going = [place for place in self.running if place not in hold]
        starts, self._new = self._new, []
        self.running.update(starts)
        decoded = self._driver.decode(start=starts, continue_=going, drop=list(drop), **fields)
        assert sorted(p.seq for p in decoded.sequences) == sorted([*going, *(place for place, _ in starts)])
        for progress in decoded.sequences:
            self._note(self.running[progress.seq].result, progress)
            if progress.finish_reason is not None or progress.error is not None:
                del self.running[progress.seq]
        return decoded

    @staticmethod
    def _note(result: Result, progress: m.SequenceProgress) -> None:
        result.text += progress.text
        result.deltas.append(progress.text)
        result.ids += progress.ids
        result.logprobs += progress.logprobs or []
        result.finish_reason, result.error = progress.finish_reason, progress.error
        result.n_gen, result.n_reused, result.n_prompt_done = progress.n_gen, progress.n_reused, progress.n_prompt_done


@contextmanager
def worker(env: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """A worker process, greeted; SHUTDOWN, or SIGKILL where it does not listen, when the block ends."""
    with tempfile.TemporaryDirectory(prefix="sy-") as directory, socket.socket(socket.AF_UNIX) as listener:
        path = os.path.join(directory, "w.sock")
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(BOUND_S)
        # Its output may be a file here, which it is not allowed to write: kept in a buffer that would fail its exit.
        own = {"PYTHONUNBUFFERED": "1", "SYNAPSE_WORKER_ID": "test", "SYNAPSE_PARENT_PID": str(os.getpid())}
        process = subprocess.Popen(
            [sys.executable, "-m", "worker_bin.llama", "--socket", path, "--nonce", NONCE],
            env=child_environment(os.environ, own | dict(env or {})),
            cwd=Path(__file__).parents[2],
        )
        try:
            connection, _ = listener.accept()
            connection.settimeout(BOUND_S)
            with connection:
                driver = Driver(process, connection)
                yield driver
                if process.poll() is None:
                    driver._send(m.Shutdown())
                    assert process.wait(BOUND_S) == 0
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(BOUND_S)


def digest_of(path: Path) -> str:
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@functools.cache
def tokenizer(path: Path) -> Tokenizer:
    return build_tokenizer(read_header(path))


def tokens(path: Path, text: str, *, special: bool = True) -> list[int]:
    """The ids of a text, special tokens in it parsed."""
    return tokenizer(path).encode_batch([text], add_special=special, parse_special=True)[0]


def raw_ids(*texts: Sequence[int]) -> bytes:
    return np.concatenate([np.asarray(ids, "<i4") for ids in texts] or [np.empty(0, "<i4")]).tobytes()
