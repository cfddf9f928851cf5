"""Text generation for the two OpenAI text routes: a provider's stream as one answer, or as chunks.

A fault after the first chunk leaves the generators as an exception: the connection is then cut, and `[DONE]` is never
sent (decision C7).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from pumas.contract.errors import ContractError
from pumas.contract.events import StreamBound
from pumas.openai.answers import (
    Head,
    LegacyLogprobs,
    call_body,
    chat_answer,
    chat_chunk,
    completion_answer,
    completion_chunk,
    usage_body,
)
from pumas.openai.chat import ChatRequest
from pumas.openai.completions import CompletionRequest
from pumas.openai.tools import ToolCall
from pumas.operations import TextStream
from pumas.providers.base import Provider

DONE = b"data: [DONE]\n\n"


def _event(body: Mapping[str, Any], bound: StreamBound) -> bytes:
    piece = b"data: %b\n\n" % msgspec.json.encode(body)
    bound.count(len(piece))
    return piece


def _finish_reason(stream: TextStream, calls: int) -> str:
    reason = stream.finish_reason
    return "tool_calls" if calls and reason == "stop" else reason


# --- chat -------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _generation(provider: Provider, request: ChatRequest) -> AsyncIterator[TextStream]:
    """The provider's stream; an error about the schema names the field that it came from."""
    try:
        async with provider.generate(request.operation) as stream:
            yield stream
    except ContractError as error:
        if error.field == "json_schema":
            error.field = "tools" if request.forced else "response_format"
        raise


async def chat_body(provider: Provider, request: ChatRequest, head: Head) -> bytes:
    """The finite answer. Raises: ContractError. Cancel: the operation is disposed."""
    parser = request.parser()
    content: list[str] = []
    calls: list[ToolCall] = []
    logprobs: list[Any] = []

    def take(found: list[str | ToolCall]) -> None:
        for item in found:
            if isinstance(item, str):
                content.append(item)
            elif not (request.one_call and calls):
                calls.append(item)

    async with _generation(provider, request) as stream:
        async for delta in stream:
            logprobs += delta.logprobs
            take([delta.text] if parser is None else parser.feed(delta.text))
        take([] if parser is None else parser.finish())
        body = chat_answer(
            head,
            "".join(content),
            calls,
            _finish_reason(stream, len(calls)),
            None if request.operation.options.logprobs is None else logprobs,
            stream.usage,
            stream.seed,
        )
    return msgspec.json.encode(body)


async def chat_events(provider: Provider, request: ChatRequest, head: Head) -> AsyncGenerator[bytes, None]:
    """The chunks, the usage where it was asked for, `[DONE]`. The first comes when the operation is admitted."""
    parser = request.parser()
    bound = StreamBound()
    calls = 0
    more: dict[str, Any] = {"usage": None} if request.include_usage else {}
    logprobs: list[Any] = []

    async with _generation(provider, request) as stream:
        yield _event(chat_chunk(head, {"role": "assistant", "content": ""}) | more, bound)
        ended = False
        deltas = aiter(stream)
        while not ended:
            delta = await anext(deltas, None)
            if delta is None:
                ended = True
                found: list[str | ToolCall] = [] if parser is None else parser.finish()
            else:
                logprobs += delta.logprobs
                found = [delta.text] if parser is None else parser.feed(delta.text)
            for item in found:
                if isinstance(item, str):
                    if not item and not logprobs:
                        continue
                    piece: dict[str, Any] = {"content": item}
                elif request.one_call and calls:
                    continue
                else:
                    piece = {"tool_calls": [call_body(item, calls)]}
                    calls += 1
                yield _event(chat_chunk(head, piece, None, logprobs) | more, bound)
                logprobs = []
        reason = _finish_reason(stream, calls)
        last = _event(chat_chunk(head, {}, reason, logprobs) | more | {"seed": stream.seed}, bound)
        usage = usage_body(stream.usage)
    yield last
    if request.include_usage:
        yield _event(head.body("chat.completion.chunk", []) | {"usage": usage}, bound)
    yield DONE


# --- completions ------------------------------------------------------------------------------------------------------


async def completion_body(provider: Provider, request: CompletionRequest, head: Head) -> bytes:
    """The finite answer. Raises: ContractError. Cancel: the operation is disposed."""
    pieces: list[str] = []
    entries: list[Any] = []
    async with provider.generate(request.operation) as stream:
        async for delta in stream:
            pieces.append(delta.text)
            entries += delta.logprobs
        logprobs = None if request.operation.options.logprobs is None else LegacyLogprobs().body(entries)
        body = completion_answer(head, "".join(pieces), stream.finish_reason, logprobs, stream.usage, stream.seed)
    return msgspec.json.encode(body)


async def completion_events(provider: Provider, request: CompletionRequest, head: Head) -> AsyncGenerator[bytes, None]:
    """The chunks, the usage where it was asked for, `[DONE]`."""
    bound = StreamBound()
    more: dict[str, Any] = {"usage": None} if request.include_usage else {}
    legacy = None if request.operation.options.logprobs is None else LegacyLogprobs()
    async with provider.generate(request.operation) as stream:
        async for delta in stream:
            if delta.text or delta.logprobs:
                logprobs = None if legacy is None else legacy.body(list(delta.logprobs))
                yield _event(completion_chunk(head, delta.text, None, logprobs) | more, bound)
        last = _event(completion_chunk(head, "", stream.finish_reason) | more | {"seed": stream.seed}, bound)
        usage = usage_body(stream.usage)
    yield last
    if request.include_usage:
        yield _event(head.body("text_completion", []) | {"usage": usage}, bound)
    yield DONE
