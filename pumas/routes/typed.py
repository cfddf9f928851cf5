"""POST /v1/model-operations: the typed contract, finite and streamed (contract; decisions C1, C3, C7)."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
import trio

from pumas import operations as ops
from pumas.contract import events, results, strict
from pumas.contract.errors import ContractError
from pumas.contract.requests import EmbeddingsOptions, OperationRequest, RerankOptions, decode_operation
from pumas.contract.resolve import Plan, resolve
from pumas.http.body import read_body
from pumas.http.exchange import AsgiApp, Receive, Scope
from pumas.http.stream import EventStream
from pumas.providers.base import Provider
from pumas.routes.common import Registry, json_answer
from pumas.translate import to_operation


class Operations:
    """The handler; what it needs of the world is the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive) -> AsgiApp:
        body = await read_body(receive)
        large = strict.is_large(len(body))
        request = await trio.to_thread.run_sync(decode_operation, body) if large else decode_operation(body)
        try:
            plan = await self._resolve(request, large)
            provider = self._registry.provider(plan.served.model, plan.served.profile)
            scope["state"]["log"] = {
                "request_id": request.request_id,
                "model": plan.served.model,
                "capability": plan.capability.capability,
            }
            operation = to_operation(plan)
            if request.stream:
                assert isinstance(operation, ops.GenerateText)
                return EventStream(stream_events(plan, operation, provider), keep_alive_s=15.0)
            return json_answer(await answer(plan, operation, provider))
        except ContractError as error:
            error.request_id = request.request_id
            raise

    async def _resolve(self, request: OperationRequest, large: bool) -> Plan:
        served = self._registry.snapshots()
        if large:  # media are checked on the way
            return await trio.to_thread.run_sync(resolve, request, served)
        return resolve(request, served)


async def answer(plan: Plan, operation: object, provider: Provider) -> bytes:
    """Run a finite operation; the body of its success.

    Raises: ContractError. Blocks until the provider is done. Cancel: the operation is disposed (C8).
    """
    request = plan.request
    request_id, options = request.request_id, request.options
    match operation:
        case ops.GenerateText():
            return await _text(request_id, operation, provider)
        case ops.Embed():
            embeddings = await provider.embed(operation)
            dimensions = options.dimensions if isinstance(options, EmbeddingsOptions) else None
            return await _off_loop(embeddings.vectors.size, request_id, embeddings, dimensions)
        case ops.Rerank():
            scores = await provider.rerank(operation)
            top_n = options.top_n if isinstance(options, RerankOptions) else None
            return results.encode_scores(request_id, scores.scores, scores.input_tokens, top_n=top_n)
        case ops.Decide():
            decisions = await provider.decide(operation)
            return results.encode_decisions(request_id, decisions.answers, decisions.input_tokens)
        case ops.GenerateImage():
            image = await provider.generate_image(operation)
            return results.encode_image(request_id, image.png, image.seed)
    raise AssertionError(f"no answer for {type(operation).__name__}")


LARGE_VALUES = 1 << 17
"""So many floats take a few milliseconds to encode: from here on in a thread."""


async def _off_loop(size: int, request_id: str, found: ops.Embeddings, dimensions: int | None) -> bytes:
    def encode() -> bytes:
        return results.encode_embeddings(
            request_id, found.vectors, dimensions=dimensions, input_tokens=found.input_tokens
        )

    return await trio.to_thread.run_sync(encode) if size >= LARGE_VALUES else encode()


async def _text(request_id: str, operation: ops.GenerateText, provider: Provider) -> bytes:
    async with provider.generate(operation) as stream:
        pieces = [delta.text async for delta in stream]
        return results.encode_text(
            request_id, "".join(pieces), stream.finish_reason, usage=_usage(stream.usage), seed=stream.seed
        )


async def stream_events(plan: Plan, operation: ops.GenerateText, provider: Provider) -> AsyncGenerator[bytes, None]:
    """The events of one operation. Before it is admitted an error is an answer of its own; afterwards it is `failed`,
    the last event. Closing the generator disposes the operation (C8)."""
    request_id = plan.request.request_id
    admitted = False
    bound = events.StreamBound()
    try:
        async with provider.generate(operation) as stream:
            admitted = True
            yield events.started(request_id, plan.capability.capability, plan.served.model, plan.served.profile)
            async for delta in stream:
                if delta.text:
                    piece = events.delta(request_id, delta.text)
                    bound.count(len(piece))
                    yield piece
            usage = msgspec.to_builtins(_usage(stream.usage))
            last = events.completed(request_id, stream.finish_reason, usage=usage, seed=stream.seed)
        yield last
    except ContractError as error:
        error.request_id = request_id
        if not admitted:
            raise
        yield events.failed(request_id, error)


def _usage(usage: ops.Usage) -> results.UsageRecord:
    return results.UsageRecord(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
    )
