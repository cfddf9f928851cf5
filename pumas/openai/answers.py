"""What the text routes answer: finite bodies and the chunks of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from pumas.openai.request import new_id
from pumas.openai.tools import ToolCall
from pumas.operations import Usage


def usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def token_logprob(entry: Any) -> dict[str, Any]:
    """One token's log-probability in the chat route's shape."""
    return {
        "token": entry.token,
        "bytes": list(entry.bytes),
        "logprob": entry.logprob,
        "top_logprobs": [
            {"token": token, "bytes": list(raw), "logprob": logprob} for _, token, raw, logprob in entry.top
        ],
    }


def call_body(call: ToolCall, index: int | None = None) -> dict[str, Any]:
    """A tool call in an answer; with `index` as a chunk carries it."""
    body: dict[str, Any] = {} if index is None else {"index": index}
    return body | {
        "id": new_id("call"),
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every chunk of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str

    def body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def chat_answer(
    head: Head,
    content: str,
    calls: list[ToolCall],
    finish_reason: str,
    logprobs: list[Any] | None,
    usage: Usage,
    seed: int | None,
) -> dict[str, Any]:
    """The finite answer. `content` is null where there is none beside tool calls."""
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        message["tool_calls"] = [call_body(call) for call in calls]
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason,
        "logprobs": None if logprobs is None else {"content": [token_logprob(entry) for entry in logprobs]},
    }
    return head.body("chat.completion", [choice]) | {"usage": usage_body(usage), "seed": seed}


def chat_chunk(
    head: Head, delta: dict[str, Any], finish_reason: str | None = None, logprobs: list[Any] | None = None
) -> dict[str, Any]:
    """One event of a stream."""
    choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    if logprobs:
        choice["logprobs"] = {"content": [token_logprob(entry) for entry in logprobs]}
    return head.body("chat.completion.chunk", [choice])


class LegacyLogprobs:
    """The old route's four parallel lists; `offset` counts characters from the prompt's end."""

    def __init__(self) -> None:
        self._offset = 0

    def body(self, entries: list[Any]) -> dict[str, Any]:
        offsets = []
        for entry in entries:
            offsets.append(self._offset)
            self._offset += len(entry.token)
        return {
            "tokens": [entry.token for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [{token: logprob for _, token, _, logprob in entry.top} for entry in entries],
            "text_offset": offsets,
        }


def completion_answer(
    head: Head, text: str, finish_reason: str, logprobs: dict[str, Any] | None, usage: Usage, seed: int | None
) -> dict[str, Any]:
    """The finite answer."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": logprobs}
    return head.body("text_completion", [choice]) | {"usage": usage_body(usage), "seed": seed}


def completion_chunk(
    head: Head, text: str, finish_reason: str | None = None, logprobs: dict[str, Any] | None = None
) -> dict[str, Any]:
    """One event of a stream."""
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": logprobs}
    return head.body("text_completion", [choice])
