"""The OpenAI-compatible routes: find the model, pass the request on or translate it, answer in OpenAI's shape."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any

import msgspec
import trio

from pumas.contract.descriptors import ServedModel
from pumas.contract.errors import ContractError
from pumas.contract.resolve import check_count, check_number, check_text_words
from pumas.contract.results import bounded
from pumas.http.exchange import AsgiApp, Receive, Scope, Send
from pumas.http.stream import Answer, EventStream
from pumas.openai.answers import Head
from pumas.openai.chat import parse_chat
from pumas.openai.completions import parse_completion
from pumas.openai.embeddings import EmbeddingsRequest, embeddings_answer, parse_embeddings
from pumas.openai.generation import chat_body, chat_events, completion_body, completion_events
from pumas.openai.images import image_answer, parse_image
from pumas.openai.request import new_id
from pumas.openai.rerank import parse_rerank, rerank_answer
from pumas.operations import Embeddings, GenerateText, TextOptions, TextPart
from pumas.providers.base import Forwarded, Provider
from pumas.routes.common import Registry, addressed, json_answer, read_json, require
from pumas.routes.typed import LARGE_VALUES


class OpenAi:
    """The handlers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def chat(self, scope: Scope, receive: Receive) -> AsgiApp:
        data, served, provider, forwarded = await self._begin(scope, receive, "/v1/chat/completions")
        if forwarded is not None:
            return forwarded
        request = parse_chat(data, served)
        _check_text(served, request.operation)
        head = _head("chatcmpl", served)
        if request.stream:
            return EventStream(chat_events(provider, request, head), headers=_ignored(request.ignored))
        return json_answer(bounded(await chat_body(provider, request, head)), _ignored(request.ignored))

    async def completions(self, scope: Scope, receive: Receive) -> AsgiApp:
        data, served, provider, forwarded = await self._begin(scope, receive, "/v1/completions")
        if forwarded is not None:
            return forwarded
        request = parse_completion(data)
        _check_text(served, request.operation)
        head = _head("cmpl", served)
        if request.stream:
            return EventStream(completion_events(provider, request, head), headers=_ignored(request.ignored))
        return json_answer(bounded(await completion_body(provider, request, head)), _ignored(request.ignored))

    async def embeddings(self, scope: Scope, receive: Receive) -> AsgiApp:
        data, served, provider, forwarded = await self._begin(scope, receive, "/v1/embeddings")
        if forwarded is not None:
            return forwarded
        request = parse_embeddings(data)
        require(served, "text_embedding")
        capability = served.capability("text_embedding")
        if request.operation.dimensions is not None:
            with_plain_field(lambda: check_number("dimensions", request.operation.dimensions or 0, capability))
        check_count("inputs", len(request.operation.inputs), capability, "input")
        result = await provider.embed(request.operation)
        return json_answer(await _encode(request, result, served.model), _ignored(request.ignored))

    async def rerank(self, scope: Scope, receive: Receive) -> AsgiApp:
        data, served, provider, forwarded = await self._begin(scope, receive, scope["path"])
        if forwarded is not None:
            return forwarded
        request = parse_rerank(data)
        require(served, "rerank")
        capability = served.capability("rerank")
        if request.top_n is not None:
            with_plain_field(lambda: check_number("top_n", request.top_n or 0, capability))
        check_count("documents", len(request.operation.documents), capability, "documents")
        result = await provider.rerank(request.operation)
        body = bounded(msgspec.json.encode(rerank_answer(request, result, served.model)))
        return json_answer(body, _ignored(request.ignored))

    async def images(self, scope: Scope, receive: Receive) -> AsgiApp:
        data, served, provider, forwarded = await self._begin(scope, receive, "/v1/images/generations")
        if forwarded is not None:
            return forwarded
        request = parse_image(data)
        require(served, "image_generation")
        result = await provider.generate_image(request.operation)
        return json_answer(image_answer(result, int(time.time())), _ignored(request.ignored))

    async def _begin(
        self, scope: Scope, receive: Receive, route: str
    ) -> tuple[dict[str, Any], ServedModel, Provider, AsgiApp | None]:
        """Read the body and find its model; where the provider passes the route on, that is the answer."""
        body, data = await read_json(receive)
        served, provider = addressed(self._registry, data)
        scope["state"]["log"] = {"model": served.model}
        forwarded = provider.forward(route, body)
        return data, served, provider, None if forwarded is None else _Passed(forwarded)


class _Passed:
    """An upstream's answer as it comes."""

    def __init__(self, forwarded: AbstractAsyncContextManager[Forwarded]) -> None:
        self._forwarded = forwarded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._forwarded as upstream:
            status, kind = upstream.status, upstream.content_type
            headers = [] if upstream.retry_after is None else [(b"retry-after", upstream.retry_after.encode("latin-1"))]
            answer: AsgiApp
            if upstream.is_stream:
                pieces = _pieces(upstream)
                answer = EventStream(pieces, status=status, headers=headers, content_type=kind, keep_alive_s=None)
            else:
                body = b"".join([piece async for piece in _pieces(upstream)])
                answer = Answer(body, status=status, headers=headers, content_type=kind)
            await answer(scope, receive, send)


async def _pieces(upstream: Forwarded) -> AsyncGenerator[bytes, None]:
    async with aclosing(upstream.chunks()) as chunks:  # type: ignore[type-var]
        async for chunk in chunks:
            yield chunk


def _check_text(served: ServedModel, operation: GenerateText) -> None:
    """Availability and option bounds of a text operation, as the typed route has them (D9).

    Raises: ContractError whose field is the public API's.
    """
    require(served, operation.capability)
    capability = served.capability(operation.capability)
    if operation.stream and not capability.streaming:
        raise ContractError("invalid_request", f"stream: {served.model} gives whole answers only", field="stream")
    parts = (part for message in operation.messages if isinstance(message.content, tuple) for part in message.content)
    if any(not isinstance(part, TextPart) for part in parts) and "messages_image" not in capability.input_formats:
        raise ContractError("unsupported_modality", f"messages: {served.model} takes text only", field="messages")
    options: TextOptions = operation.options

    def check() -> None:
        for name in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "max_tokens"):
            value = getattr(options, name)
            if value is not None:
                always = name in ("temperature", "top_p", "max_tokens")
                check_number(name, value, capability, always=always)
        check_text_words(options.stop, options.grammar, options.json_schema)

    try:
        with_plain_field(check)
    except ContractError as error:
        if error.field == "max_tokens" and error.code == "request_limit":
            error.kind = "context_length"
        raise
    for name, value in (("stop", options.stop), ("grammar", options.grammar), ("json_schema", options.json_schema)):
        if value and name not in capability.options:
            field = "response_format" if name == "json_schema" else name
            raise ContractError("invalid_request", f"{field} is not offered by {served.model}", field=field)


def with_plain_field(check: Callable[[], None]) -> None:
    """Run a check of the typed contract; its field `options.top_p` is `top_p` here."""
    try:
        check()
    except ContractError as error:
        if error.field is not None:
            error.field = error.field.removeprefix("options.")
        raise


async def _encode(request: EmbeddingsRequest, result: Embeddings, model: str) -> bytes:
    if result.vectors.size < LARGE_VALUES:
        return embeddings_answer(request, result, model)
    return await trio.to_thread.run_sync(embeddings_answer, request, result, model)


def _head(prefix: str, served: ServedModel) -> Head:
    return Head(id=new_id(prefix), created=int(time.time()), model=served.model, fingerprint=served.model_id)


def _ignored(names: Sequence[str]) -> list[tuple[bytes, bytes]]:
    return [(b"x-pumas-ignored", ", ".join(names).encode("latin-1"))] if names else []
