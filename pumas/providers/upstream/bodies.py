"""What goes out: operations as the JSON bodies of OpenAI-compatible servers. Pure.

llama-server's additions to those bodies are documented in its README ("POST /v1/chat/completions",
"POST /v1/embeddings", "POST /v1/systemone"); images travel as data URLs, audio as WAV in base64.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec

from pumas.contract.errors import invalid
from pumas.operations import (
    AudioPart,
    Decide,
    Embed,
    GenerateText,
    ImagePart,
    Message,
    Part,
    Rerank,
    TextOptions,
    TextPart,
)

WAV_PCM, WAV_FLOAT = 1, 3


def wav(part: AudioPart) -> bytes:
    """The declared PCM behind a WAV header; the samples are not touched (contract, Modalities)."""
    form, width = (WAV_PCM, 2) if part.encoding == "pcm_s16le" else (WAV_FLOAT, 4)
    frame = part.channels * width
    head = struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        b"RIFF",
        36 + len(part.data),
        b"WAVE",
        b"fmt ",
        16,
        form,
        part.channels,
        part.sample_rate_hz,
        part.sample_rate_hz * frame,
        frame,
        width * 8,
        b"data",
        len(part.data),
    )
    return head + part.data


def data_url(image: ImagePart) -> str:
    return f"data:image/{image.encoding};base64,{base64.b64encode(image.data).decode()}"


def content_part(part: Part) -> dict[str, Any]:
    """One part of a message's content."""
    match part:
        case TextPart(text=text):
            return {"type": "text", "text": text}
        case ImagePart():
            return {"type": "image_url", "image_url": {"url": data_url(part)}}
        case AudioPart():
            data = base64.b64encode(wav(part)).decode()
            return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def message(value: Message) -> dict[str, Any]:
    content = value.content
    return {
        "role": value.role,
        "content": [content_part(p) for p in content] if isinstance(content, tuple) else content,
        **({"tool_calls": list(value.tool_calls)} if value.tool_calls else {}),
        **({"tool_call_id": value.tool_call_id} if value.tool_call_id is not None else {}),
        **({"name": value.name} if value.name is not None else {}),
    }


def text_options(options: TextOptions) -> dict[str, Any]:
    """The options that were given, by the names that OpenAI-compatible servers use."""
    given = {
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": options.seed,
        "repeat_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "stop": list(options.stop) or None,
        "logit_bias": {str(i): b for i, b in options.logit_bias} or None,
    }
    return {name: value for name, value in given.items() if value is not None}


def generate(operation: GenerateText, model: str) -> tuple[bytes, bytes]:
    """(path, body) of a generation."""
    body: dict[str, Any] = {"model": model, **text_options(operation.options), "stream": operation.stream}
    if operation.stream:
        body["stream_options"] = {"include_usage": True}
    if operation.messages:
        body["messages"] = [message(m) for m in operation.messages]
        if operation.options.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": operation.options.logprobs}
        if operation.tools:
            body["tools"] = list(operation.tools)
            if operation.tool_choice is not None:
                body["tool_choice"] = operation.tool_choice
        return b"/v1/chat/completions", msgspec.json.encode(body)
    body["prompt"] = list(operation.prompt_ids) if operation.prompt_ids is not None else operation.prompt
    if operation.options.logprobs is not None:
        body["logprobs"] = operation.options.logprobs
    return b"/v1/completions", msgspec.json.encode(body)


def embed(operation: Embed, model: str) -> tuple[bytes, bytes]:
    """(path, body) of an embedding: texts, ids, or (llama-server with a projector) the parts of one item each.

    `dimensions` is applied by us, so that every server gives the same.
    """
    inputs: list[Any] = []
    for item in operation.inputs:
        if isinstance(item, str):
            inputs.append(item)
        elif item and isinstance(item[0], int):
            inputs.append(list(item))
        else:
            inputs.append({"content": [content_part(part) for part in item if not isinstance(part, int)]})
    return b"/v1/embeddings", msgspec.json.encode({"model": model, "input": inputs, "encoding_format": "float"})


def rerank(operation: Rerank, model: str) -> tuple[bytes, bytes]:
    body = {"model": model, "query": operation.query, "documents": list(operation.documents)}
    return b"/v1/rerank", msgspec.json.encode(body)


def decide(operation: Decide, model: str) -> tuple[bytes, bytes]:
    """(path, body) of llama-server's /v1/systemone, which takes no audio. Raises: ContractError, invalid_request."""
    _refuse_images_in(operation.state)
    body: dict[str, Any] = {"model": model, "state": operation.state, "questions": operation.questions}
    if operation.images:
        body["images"] = [data_url(image) for image in operation.images]
    return b"/v1/systemone", msgspec.json.encode(body)


def _refuse_images_in(state: Any) -> None:
    """The server takes images out of a state that looks like chat messages; they would pass the contract's bounds."""
    messages = state.get("messages") if isinstance(state, dict) else state
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and part.get("type") == "image_url":
                raise invalid("images belong in `images`, not in the messages of `state`", "input.state")


MEDIA = ("image_url", "input_audio", "input_video", "video_url")
"""Parts of a message, or of an embedding's input, that a server may fetch from where a client says."""


def refuse_remote_media(value: Any) -> None:
    """Media that are not in the request itself: a llama-server would fetch them, from inside our network.

    Raises: ContractError, invalid_request.
    """
    if isinstance(value, list):
        for item in value:
            refuse_remote_media(item)
    elif isinstance(value, dict):
        for key, inner in value.items():
            places = (inner.get("url"), inner.get("data")) if isinstance(inner, dict) else (inner,)
            if key in MEDIA and any(isinstance(p, str) and p.startswith(("http", "file:")) for p in places):
                raise invalid(f"{key}: media are given as data URLs; this server fetches nothing", key)
            refuse_remote_media(inner)


def forwarded(route: str, local: bool, body: bytes, model: str) -> tuple[bytes, bytes]:
    """(path, body) of an OpenAI route's request with the upstream's name for the model and without `profile`, which is
    ours; every other value stays as it was written (D13).

    Args:
        local: it goes to a program that we run, which must not fetch what clients name.
    Raises: ContractError, invalid_request.
    """
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    if local:
        for name in ("messages", "input"):
            refuse_remote_media(msgspec.json.decode(fields.get(name, b"null")))
    fields.pop("profile", None)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return route.encode(), msgspec.json.encode(fields)
