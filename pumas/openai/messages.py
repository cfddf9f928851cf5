"""Chat messages as OpenAI's API writes them: roles, parts, images as data URIs, tool calls of earlier turns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from pumas.contract.descriptors import ServedModel
from pumas.contract.errors import ContractError
from pumas.contract.media import Image, ImagePayload, check_images
from pumas.operations import ImagePart, Message, Part, TextPart

_MESSAGE_FIELDS = frozenset(
    {"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "audio", "annotations", "function_call"}
)


def parse_messages(given: list[dict[str, Any]], served: ServedModel) -> tuple[Message, ...]:
    """The messages of a request, their images checked (decision C6), unless the model takes none (C1: before media).

    Raises: ContractError(invalid_request, unsupported_modality, request_limit).
    """
    payloads: list[tuple[str, ImagePayload]] = list(_images(given))
    if payloads and not any("messages_image" in capability.input_formats for capability in served.capabilities):
        raise ContractError("unsupported_modality", f"messages: {served.model} takes text only", field="messages")
    images = iter(check_images(payloads))
    return tuple(_message(message, index, images) for index, message in enumerate(given))


def _message(given: dict[str, Any], index: int, images: Iterator[Image]) -> Message:
    at = f"messages[{index}]"
    for key in given:
        if key not in _MESSAGE_FIELDS:
            raise _bad(f"{at}: unknown field {key[:100]!r}")
    for refused in ("refusal", "audio", "function_call"):
        if given.get(refused) is not None:
            raise _bad(f"{at}.{refused} is not supported here")
    role = given.get("role")
    if role == "developer":
        role = "system"
    if role not in ("system", "user", "assistant", "tool"):
        raise _bad(f"{at}.role: expected system, developer, user, assistant or tool")
    calls = given.get("tool_calls") or []
    if calls and role != "assistant":
        raise _bad(f"{at}.tool_calls: only in an assistant's message")
    if not isinstance(calls, list):
        raise _bad(f"{at}.tool_calls: expected array")
    name, call_id = given.get("name"), given.get("tool_call_id")
    if not isinstance(name, str | None) or not isinstance(call_id, str | None):
        raise _bad(f"{at}: name and tool_call_id are strings")
    if role == "tool" and call_id is None:
        raise _bad(f"{at}.tool_call_id: a tool's answer names the call")
    content = given.get("content")
    if content is None and not (role == "assistant" and calls):
        raise _bad(f"{at}.content: expected a string or a list of parts")
    return Message(
        role=role,
        content=content if content is None or isinstance(content, str) else _parts(content, at, role, images),
        tool_calls=tuple(_past_call(call, f"{at}.tool_calls[{n}]") for n, call in enumerate(calls)),
        tool_call_id=call_id,
        name=name,
    )


def _past_call(call: Any, at: str) -> dict[str, Any]:
    """A call of an earlier turn, in the public API's shape."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise _bad(f"{at}: expected {{id, type: function, function: {{name, arguments}}}}")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str):
        raise _bad(f"{at}.function.arguments: expected JSON text")
    return {"id": call.get("id"), "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _parts(content: Any, at: str, role: str, images: Iterator[Image]) -> tuple[Part, ...]:
    if not isinstance(content, list) or not content:
        raise _bad(f"{at}.content: expected a string or a list of parts")
    parts: list[Part] = []
    for index, part in enumerate(content):
        where = f"{at}.content[{index}]"
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str) and set(part) <= {"type", "text"}:
            parts.append(TextPart(part["text"]))
        elif kind == "image_url" and role == "user" and set(part) <= {"type", "image_url"}:
            image = next(images)
            parts.append(ImagePart(image.encoding, image.data))
        elif kind in ("input_audio", "file", "refusal"):
            message = f"{where}: {kind} parts are not accepted by this model"
            raise ContractError("unsupported_modality", message, field="messages")
        else:
            known = "{type: text, text}" + (" or {type: image_url, image_url}" if role == "user" else "")
            raise _bad(f"{where}: expected {known}")
    return tuple(parts)


class _DataUri(msgspec.Struct, frozen=True):
    encoding: Literal["png", "jpeg"]
    data_base64: str


def _images(messages: list[dict[str, Any]]) -> Iterator[tuple[str, ImagePayload]]:
    """Every image part with its place, in order."""
    for number, message in enumerate(messages):
        content = message.get("content")
        for index, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "image_url" and message.get("role") == "user":
                yield f"messages[{number}].content[{index}]", _data_uri(part.get("image_url"), number, index)


def _data_uri(given: Any, number: int, index: int) -> _DataUri:
    at = f"messages[{number}].content[{index}].image_url"
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise _bad(f"{at}.url: expected a string")
    head, _, data = url.partition(",")
    encoding = _ENCODINGS.get(head)
    if encoding is None:
        raise _bad(f"{at}.url: only data:image/png;base64 and data:image/jpeg;base64 are accepted")
    return _DataUri(encoding, data)


_ENCODINGS: dict[str, Literal["png", "jpeg"]] = {
    "data:image/png;base64": "png",
    "data:image/jpeg;base64": "jpeg",
    "data:image/jpg;base64": "jpeg",
}


def _bad(message: str) -> ContractError:
    return ContractError("invalid_request", message, field="messages")
