"""A model served by a synapse lane: text work in the text processes, then one call on the lane.

Everything that can be refused is refused here, before a worker sees it: sizes before tokenizing, counts against the
measured window, grammars and schemas. Raw text from clients is tokenized with special-token text kept as text, unless
the profile asks for the engine's habit (`injection = "engine"`); chat contents follow the same switch.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from pumas.contract.descriptors import ServedModel
from pumas.contract.errors import ContractError
from pumas.contract.results import cut, invalid_result
from pumas.operations import (
    Decide,
    Decisions,
    Embed,
    Embeddings,
    GeneratedImage,
    GenerateImage,
    GenerateText,
    Message,
    Rerank,
    Scores,
    TextDelta,
    TextOptions,
    TextPart,
    TextStream,
    Usage,
)
from pumas.providers.base import Forwarded, LaneHealth
from pumas.providers.synapse_descriptors import REASONS, describe
from pumas.providers.synapse_errors import translated
from synapse import Generation, GenerationStream, Lane, Measured, ModelFile, ModelInfo, Sampling, Supervisor
from synapse.text import fits_bytes

BULK_TOKENS = 4096
"""Embedding and rerank requests from this size on queue as bulk work: interactive ones get in between."""
Ids = NDArray[np.int32]


class SynapseProvider:
    """One served (alias, profile) over one lane."""

    def __init__(self, alias: str, profile: str, lane: Lane, supervisor: Supervisor, max_queue_s: float = 10.0) -> None:
        """Args: max_queue_s: how long a request waits for its turn before it is refused."""
        self.alias, self.profile, self.lane = alias, profile, lane
        self._max_queue_s = max_queue_s
        self._supervisor = supervisor
        self._text = supervisor.text

    # --- state, without waiting ---------------------------------------------------------------------------------------

    def snapshot(self) -> ServedModel:
        return describe(self.alias, self.profile, self.lane)

    def health(self) -> LaneHealth:
        health = self.lane.health()
        detail = {
            "error": health.error or "",
            "workers": str(sum(worker.live for worker in health.workers)),
            "pids": " ".join(f"{worker.pid}:{worker.state}" for worker in health.workers if worker.pid),
            "rss_mb": f"{sum(worker.rss_mb for worker in health.workers):.0f}",
            "crashes": str(health.crashes),
            "queued": str(health.queued),
            "running": str(health.sequences or health.units),
            "parked": str(health.parked),
        }
        return LaneHealth(
            model=self.alias,
            profile=self.profile,
            state=health.state,
            age_s=health.age_s,
            degraded=self._supervisor.health().degraded,
            detail={name: value for name, value in detail.items() if value},
        )

    def forward(self, route: str, body: bytes) -> AbstractAsyncContextManager[Forwarded] | None:
        return None

    # --- operations ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def generate(self, operation: GenerateText) -> AsyncIterator[TextStream]:
        """Enters when the lane admitted the operation; leaving drops the sequence (C8)."""
        with translated(self.alias, "messages" if operation.messages else "prompt"):
            info, measured = self._loaded()
            ids = await self._prompt(operation, info, measured)
            generation = await self._generation(operation.options, ids)
            async with self.lane.generate(generation) as stream:
                yield _Stream(stream, self.alias)

    async def embed(self, operation: Embed) -> Embeddings:
        with translated(self.alias, "input"):
            info, measured = self._loaded()
            ids = await self._inputs(operation.inputs, info, measured)
            total = sum(map(len, ids))
            vectors = await self.lane.embed(ids, bulk=total >= BULK_TOKENS, max_queue=self._max_queue_s)
        return Embeddings(vectors if operation.dimensions is None else cut(vectors, operation.dimensions), total)

    async def rerank(self, operation: Rerank) -> Scores:
        with translated(self.alias, "documents"):
            info, measured = self._loaded()
            self._bound_text("query", operation.query, info, measured)
            for index, document in enumerate(operation.documents):
                self._bound_text(f"documents[{index}]", document, info, measured)
            ids = await self._tokenize((operation.query, *operation.documents), add_special=False)
            query, documents = ids[0], ids[1:]
            total = sum(map(len, documents)) + (len(query) + pair_overhead(info)) * len(documents)
            scores = await self.lane.rerank(query, documents, bulk=total >= BULK_TOKENS, max_queue=self._max_queue_s)
        return Scores(tuple(scores.tolist()), total)

    async def decide(self, operation: Decide) -> Decisions:
        raise self._mismatch("decision")

    async def generate_image(self, operation: GenerateImage) -> GeneratedImage:
        raise self._mismatch("image_generation")

    async def probe(self) -> None:
        """Load a quarantined or failed model again, on purpose. Blocks until it is loaded or has failed."""
        with translated(self.alias):
            await self.lane.probe()

    # --- text to ids --------------------------------------------------------------------------------------------------

    async def _prompt(self, operation: GenerateText, info: ModelInfo, measured: Measured) -> Ids:
        if operation.prompt_ids is not None:
            ids = _known_ids(operation.prompt_ids, info, "prompt")
        elif operation.messages:
            chat = chat_json(operation)
            self._bound_text("messages", chat.decode("utf-8"), info, measured)
            rendered = await self._text.render(
                self._file(),
                chat,
                template=self.lane.profile.chat_template,
                close_injection=self.lane.profile.injection == "closed",
            )
            ids = rendered.ids
        else:
            prompt = operation.prompt or ""
            self._bound_text("prompt", prompt, info, measured)
            (ids,) = await self._tokenize((prompt,), add_special=True)
        if not len(ids):
            raise ContractError("invalid_request", "the prompt has no tokens")
        return ids

    async def _inputs(self, inputs: Sequence[Any], info: ModelInfo, measured: Measured) -> list[Ids]:
        """Every input's ids, in order; texts are tokenized together, each checked against the window."""
        texts = []
        for index, item in enumerate(inputs):
            if isinstance(item, str):
                self._bound_text(f"input[{index}]", item, info, measured)
                texts.append(item)
        tokenized = iter(await self._tokenize(texts, add_special=True) if texts else ())
        found: list[Ids] = []
        for index, item in enumerate(inputs):
            if isinstance(item, str):
                ids = next(tokenized)
            elif all(isinstance(part, int) for part in item):
                ids = _known_ids(item, info, f"input[{index}]")
            else:
                raise ContractError("unsupported_modality", f"{self.alias} takes text only", field="input")
            if not len(ids):
                raise ContractError("invalid_request", f"input[{index}] has no tokens", field="input")
            found.append(ids)
        return found

    async def _tokenize(self, texts: Sequence[str], *, add_special: bool) -> list[Ids]:
        parse_special = self.lane.profile.injection == "engine"
        return await self._text.tokenize(self._file(), texts, add_special=add_special, parse_special=parse_special)

    def _bound_text(self, name: str, text: str, info: ModelInfo, measured: Measured) -> None:
        """Refuse, before tokenizing, what cannot fit however it is tokenized (W13)."""
        if not fits_bytes(info, measured.context, text):
            message = f"{name} is {len(text)} characters; a window of {measured.context} tokens cannot hold it"
            raise ContractError("request_limit", message, kind="context_length", field=name.partition("[")[0])

    async def _generation(self, options: TextOptions, ids: Ids) -> Generation:
        """The lane's request, with the defaults of G7 and a seed of its own where none was given (G3)."""
        if options.grammar is not None:
            await self._text.check_grammar("grammar", options.grammar)
        if options.json_schema is not None:
            await self._text.check_grammar("json_schema", options.json_schema)
        given = {
            name: getattr(options, name)
            for name in ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed")
            + ("frequency_penalty", "presence_penalty")
            if getattr(options, name) is not None
        }
        sampling = Sampling(temperature=0.8, seed=int.from_bytes(os.urandom(4), "little"))
        sampling = msgspec.structs.replace(sampling, logit_bias=list(options.logit_bias), **given)
        return Generation(
            prompt=ids,
            max_tokens=options.max_tokens,
            sampling=sampling,
            stop=options.stop,
            grammar=options.grammar,
            json_schema=options.json_schema,
            logprobs=options.logprobs,
            max_queue=self._max_queue_s,
        )

    def _loaded(self) -> tuple[ModelInfo, Measured]:
        info, measured = self.lane.info, self.lane.measured
        if info is None or measured is None:
            state = self.lane.state
            reason = REASONS.get(state, "runtime_unavailable")
            message = f"{reason}: {self.alias} is {state}" + (f": {self.lane.error}" if self.lane.error else "")
            if state in ("failed", "quarantined"):
                message += f"; to try again: pumas probe {self.alias}"
            raise ContractError("capability_unavailable", message, retry_after=1.0 if state == "loading" else None)
        return info, measured

    def _file(self) -> ModelFile:
        assert self.lane.file is not None, "it is loaded"
        return self.lane.file

    def _mismatch(self, capability: str) -> ContractError:
        return ContractError("capability_unavailable", f"{capability} of {self.alias}: model_task_mismatch")


class _Stream:
    """A lane's generation as the routes read it."""

    def __init__(self, stream: GenerationStream, model: str) -> None:
        self._stream, self._model = stream, model

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self

    async def __anext__(self) -> TextDelta:
        with translated(self._model):
            delta = await self._stream.__anext__()
        return TextDelta(delta.text, tuple(delta.logprobs or ()))

    @property
    def finish_reason(self) -> str:
        reason = self._stream.finish_reason
        if reason not in ("stop", "length"):
            raise invalid_result(f"the engine ended with {reason!r}")
        return str(reason)

    @property
    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self._stream.n_prompt,
            completion_tokens=self._stream.n_gen,
            cached_tokens=self._stream.n_reused,
        )

    @property
    def seed(self) -> int | None:
        return self._stream.seed


# --- pure helpers -----------------------------------------------------------------------------------------------------


def chat_json(operation: GenerateText) -> bytes:
    """The chat as the text process renders it: {messages, tools?, add_generation_prompt, extras?}."""
    chat: dict[str, Any] = {
        "messages": [_message_json(message) for message in operation.messages],
        "add_generation_prompt": True,
    }
    if operation.tools:
        chat["tools"] = list(operation.tools)
    if operation.template_extras:
        chat["extras"] = operation.template_extras
    return msgspec.json.encode(chat)


def _message_json(message: Message) -> dict[str, Any]:
    content: Any = message.content
    if isinstance(content, tuple):
        content = []
        for part in message.content or ():
            if not isinstance(part, TextPart):
                raise ContractError("unsupported_modality", "this model takes text only", field="messages")
            content.append({"type": "text", "text": part.text})
    body: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        body["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        body["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        body["name"] = message.name
    return body


def pair_overhead(info: ModelInfo) -> int:
    """Special tokens that the worker adds to a query-document pair (D10)."""
    if info.tokenizer_type == "bert":
        return 3
    return int(info.add_bos) + 2 * int(info.add_eos)


def _known_ids(ids: Sequence[int], info: ModelInfo, name: str) -> Ids:
    for token in ids:
        if not 0 <= token < info.vocabulary:
            message = f"{name}: token {token} is outside the vocabulary of {info.vocabulary}"
            raise ContractError("invalid_request", message, field=name.partition("[")[0])
    return np.array(ids, dtype=np.int32)
