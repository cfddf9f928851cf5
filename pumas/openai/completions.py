"""POST /v1/completions: text goes on from a prompt, given as text or as token ids."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pumas.contract.errors import ContractError
from pumas.openai.fields import COMPLETIONS
from pumas.openai.request import SamplingFields, TokenId, decode, include_usage, sampling
from pumas.operations import GenerateText


class _Body(SamplingFields, kw_only=True):
    prompt: str | list[str | TokenId | list[TokenId]]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    json_schema: dict[str, Any] | None = None


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: GenerateText
    stream: bool
    include_usage: bool
    ignored: tuple[str, ...]


def parse_completion(data: Mapping[str, Any]) -> CompletionRequest:
    """Check a decoded body against the route.

    Raises: ContractError.
    """
    body, ignored = decode(data, COMPLETIONS, _Body)
    if body.json_schema is not None and body.grammar is not None:
        raise ContractError("invalid_request", "grammar: not together with json_schema", field="grammar")
    schema = None if body.json_schema is None else msgspec.json.encode(body.json_schema).decode("utf-8")
    text, ids = _prompt(body.prompt)
    return CompletionRequest(
        operation=GenerateText(
            capability="text_generation",
            prompt=text,
            prompt_ids=ids,
            options=sampling(body, json_schema=schema, logprobs=body.logprobs),
            stream=bool(body.stream),
        ),
        stream=bool(body.stream),
        include_usage=include_usage(body),
        ignored=ignored,
    )


def _prompt(given: str | list[Any]) -> tuple[str | None, tuple[int, ...] | None]:
    """One prompt, as text or ids; a list of one prompt is that prompt."""
    if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str | list):
        given = given[0]
    if isinstance(given, str):
        if not given.strip():
            raise ContractError("invalid_request", "prompt: the text is empty", field="prompt")
        return given, None
    if not given:
        raise ContractError("invalid_request", "prompt: the list is empty", field="prompt")
    if not all(isinstance(item, int) for item in given):
        raise ContractError("invalid_request", "prompt: one prompt for each request", field="prompt")
    return None, tuple(given)
