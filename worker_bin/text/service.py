"""What a text process does: INGEST, TOKENIZE, RENDER, CHECK_GRAMMAR (W13)."""

from __future__ import annotations

import resource
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final, TypeVar

import msgspec
import numpy as np

from synapse.artifacts.gguf import ArtifactInvalid
from synapse.artifacts.grammar import GrammarRefused, check_grammar
from synapse.artifacts.ingest import without_doubled_ends
from synapse.artifacts.template import Chat, Prompt, TemplateError
from synapse.artifacts.tokenizer import TextInvalid, TokenizerFailed
from synapse.wire.messages import (
    CheckGrammar,
    EngineInfo,
    GrammarChecked,
    Ingest,
    Ingested,
    ModelInfo,
    Ping,
    Pong,
    Render,
    Rendered,
    Tokenize,
    Tokenized,
)
from worker_bin.engine import Buffer, Handler, Refused
from worker_bin.text.bounds import OutOfTime, interrupted_after, killed_after, memory_of
from worker_bin.text.models import TEMPLATE_BYTES, TEMPLATE_CPU_S, Models

TOKENIZE_BYTES: Final = 6 << 30
"""Memory that ingesting or tokenizing may take: 10 MB of text take 2 GB at the peak."""
GRAMMAR_BYTES: Final = 1 << 30
GRAMMAR_CPU_S: Final = 2.0
GRAMMAR_STACK_BYTES: Final = 4 << 20
"""Half of what the compiling worker's thread has: what passes here does not overflow there."""

T = TypeVar("T")


class TextEngine:
    """The text process's engine: it holds open models and nothing of any request."""

    def __init__(self) -> None:
        self.info = EngineInfo(name="text", version=version("tokenizers"), build_flags={"jinja2": version("jinja2")})
        self.handlers: Mapping[type, Handler] = {
            Ingest: self.ingest,
            Tokenize: self.tokenize,
            Render: self.render,
            CheckGrammar: self.check_grammar,
            Ping: self.ping,
        }
        self._models = Models()

    def ingest(self, request: Ingest, raw: memoryview) -> tuple[Ingested, None]:
        def work() -> ModelInfo:
            if request.header_only:
                return self._models.describe(request.path, request.cache_dir)
            return self._models.ingest(request.path, request.cache_dir).info

        return Ingested(req_id=request.req_id, info=_bounded(TOKENIZE_BYTES, work)), None

    def tokenize(self, request: Tokenize, raw: memoryview) -> tuple[Tokenized, Buffer]:
        texts = _texts(raw, request.lengths)

        def work() -> list[list[int]]:
            model = self._models.open(request.model)
            return model.tokenizer.encode_batch(
                texts, add_special=request.add_special, parse_special=request.parse_special
            )

        rows = _bounded(TOKENIZE_BYTES, work)
        return Tokenized(req_id=request.req_id, counts=[len(row) for row in rows]), _ids(rows)

    def render(self, request: Render, raw: memoryview) -> tuple[Rendered, Buffer]:
        try:
            chat = msgspec.json.decode(raw, type=Chat)
        except (msgspec.DecodeError, RecursionError) as error:
            raise Refused("invalid_request", f"the conversation cannot be read: {error}") from error
        model = _bounded(TOKENIZE_BYTES, lambda: self._models.open(request.model))

        def work() -> Prompt:
            with interrupted_after(TEMPLATE_CPU_S):
                template = model.template(request.template, bool(chat.tools))
                if request.close_injection and model.honours_literal:
                    return template.render_closed(chat, model.specials)
                return Prompt(template.render(chat), [], False)

        prompt = _bounded(TEMPLATE_BYTES, work)
        text, literal = without_doubled_ends(model.entry, prompt.text, prompt.literal)
        rows = _bounded(
            TOKENIZE_BYTES,
            lambda: model.tokenizer.encode_batch([text], add_special=True, parse_special=True, literal=[literal]),
        )
        reply = Rendered(
            req_id=request.req_id, n_tokens=len(rows[0]), n_chars=len(text), injection_closed=prompt.closed
        )
        return reply, _ids(rows)

    def check_grammar(self, request: CheckGrammar, raw: memoryview) -> tuple[GrammarChecked, None]:
        text = _texts(raw, [request.n_bytes])[0]
        with killed_after(GRAMMAR_CPU_S):
            _bounded(GRAMMAR_BYTES, lambda: _on_small_stack(lambda: check_grammar(request.kind, text)))
        return GrammarChecked(req_id=request.req_id), None

    def ping(self, request: Ping, raw: memoryview) -> tuple[Pong, None]:
        return Pong(req_id=request.req_id, rss_mb=_rss_mb(), models_loaded=len(self._models)), None


def _bounded(extra_bytes: int, work: Callable[[], T]) -> T:
    """Do it with so much more memory at most; what it says of the text becomes ERR."""
    try:
        with memory_of(extra_bytes):
            return work()
    except ArtifactInvalid as error:
        raise Refused("artifact_invalid", str(error)) from error
    except (TemplateError, GrammarRefused, TextInvalid, TokenizerFailed) as error:
        raise Refused("invalid_request", str(error)) from error
    except OutOfTime as error:
        raise Refused("invalid_request", "the chat template takes too long") from error
    except RecursionError as error:
        raise Refused("invalid_request", "it is nested too deeply") from error
    except MemoryError as error:
        raise Refused("invalid_request", "it takes too much memory") from error


def _on_small_stack(work: Callable[[], None]) -> None:
    """Run it in a thread with less stack than a worker's."""
    raised: list[Exception] = []

    def run() -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - carried over to the caller's thread
            raised.append(error)

    before = threading.stack_size(GRAMMAR_STACK_BYTES)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if raised:
        raise raised[0]


def _texts(raw: memoryview, lengths: Sequence[int]) -> list[str]:
    texts = []
    start = 0
    for index, length in enumerate(lengths):
        try:
            texts.append(str(raw[start : start + length], "utf-8"))
        except UnicodeDecodeError as error:
            raise Refused("invalid_request", f"text {index} is no UTF-8: {error.reason}") from error
        start += length
    return texts


def _ids(rows: Sequence[Sequence[int]]) -> Buffer:
    total = sum(map(len, rows))
    return np.fromiter((token for row in rows for token in row), dtype="<i4", count=total).tobytes()


def _rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform != "linux":
        return peak / 1e6
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1e6
