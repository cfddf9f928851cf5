"""Every row of the table of limits holds: the limit passes, one beyond is refused with the row's code (P20)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pumas.contract import limits, results, strict
from pumas.contract.errors import ContractError
from pumas.contract.events import EventReader
from pumas.contract.limits import LIMITS, MIB, Limit
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from tests.contract.samples import SERVED, VALID, audio_part, clip, image_part, png, request, text_part, user

Check = Callable[[], object]
Walk = tuple[Check, Check]
"""What must pass at the limit, and what must be refused beyond it."""


def typed(body: dict[str, Any]) -> Check:
    return lambda: resolve(decode_operation(msgspec.json.encode(body)), SERVED)


def decoded(**change: Any) -> Check:
    return lambda: decode_operation(msgspec.json.encode(VALID["text"] | change))


def messages(*parts: dict[str, Any], before: int = 0) -> Check:
    return typed(request("all", {"kind": "messages", "messages": [user("x")] * before + [user(list(parts))]}, "text"))


def images(*data: bytes) -> Check:
    return messages(*(image_part(item) for item in data))


def audio(**more: Any) -> Check:
    return messages(audio_part(**more))


def option(name: str, value: Any) -> Check:
    options = {"kind": "text_generation", name: value}
    return typed(request("chat", text_part(), "text", capability="text_generation", options=options))


def rerank(count: int) -> Check:
    content = {"kind": "rerank", "query": "q", "documents": ["x"] * count}
    return typed(request("rerank", content, "relevance_scores"))


def prompt(length: int) -> Check:
    options = {"kind": "image_generation", "width": 64, "height": 64}
    return typed(request("all", text_part("x" * length), "png_base64", options=options))


def event(size: int) -> None:
    EventReader().feed(b"data: " + b"x" * (size - 6) + b"\n\n")


def stream(size: int) -> None:
    reader = EventReader()
    piece = b":" + b"x" * 65533 + b"\n\n"
    for at in range(0, size, len(piece)):
        reader.feed(piece[: size - at])


def above(value: float) -> float:
    return math.nextafter(value, math.inf)


EDGE = limits.MAX_JSON_MEMBERS
SIZE = limits.MAX_REQUEST_BYTES
SCHEMA_ROOM = limits.MAX_GRAMMAR_BYTES - len('{"title":""}')
WALKS: dict[str, Walk] = {
    "request body": (lambda: strict.load(b"1" + b" " * (SIZE - 1)), lambda: strict.load(b"1" + b" " * SIZE)),
    "response body": (lambda: results.bounded(bytes(32 * MIB)), lambda: results.bounded(bytes(32 * MIB + 1))),
    "stream event": (lambda: event(262144), lambda: event(262145)),
    "stream, cumulative": (lambda: stream(32 * MIB), lambda: stream(32 * MIB + 1)),
    "JSON nesting": (lambda: strict.load(b"[" * 128 + b"]" * 128), lambda: strict.load(b"[" * 129 + b"]" * 129)),
    "JSON values": (
        lambda: strict.load(b"[" + b"0," * (limits.MAX_JSON_VALUES - 2) + b"0]"),
        lambda: strict.load(b"[" + b"0," * (limits.MAX_JSON_VALUES - 1) + b"0]"),
    ),
    "JSON members": (
        lambda: strict.load(b"[" + b'{"a":0},' * (EDGE - 1) + b'{"a":0}]'),
        lambda: strict.load(b"[" + b'{"a":0},' * EDGE + b'{"a":0}]'),
    ),
    "request_id": (decoded(request_id="x" * 128), decoded(request_id="x" * 129)),
    "model": (decoded(model="\u00e9" * 128), decoded(model="\u00e9" * 128 + "x")),
    "profile": (decoded(profile="x" * 128), decoded(profile="x" * 129)),
    "image_bytes": (images(png(size=8 * MIB)), images(png(size=8 * MIB + 1))),
    "total_image_bytes": (
        images(png(size=8 * MIB), png(size=8 * MIB - 33), png()),
        images(png(size=8 * MIB), png(size=8 * MIB - 33), png(size=34)),
    ),
    "image_count": (images(*[png()] * 4), images(*[png()] * 5)),
    "image_pixels": (images(png(2048, 2048)), images(png(1985, 2113))),
    "width": (images(png(4096, 1)), images(png(4097, 1))),
    "height": (images(png(1, 4096)), images(png(1, 4097))),
    "message_count": (messages(image_part(), before=127), messages(image_part(), before=128)),
    "content_parts": (messages(image_part(), *[text_part()] * 127), messages(image_part(), *[text_part()] * 128)),
    "audio_count": (messages(*[audio_part()] * 4), messages(*[audio_part()] * 5)),
    "total_audio_bytes": (
        audio(samples=4 * MIB, channels=2, rate=192_000),
        messages(audio_part(samples=4 * MIB, channels=2, rate=192_000), audio_part(samples=1)),
    ),
    "audio_seconds": (audio(samples=240_000), audio(samples=240_001)),
    "sample_rate": (audio(rate=192_000), audio(rate=192_001)),
    "temperature": (option("temperature", 2), option("temperature", above(2.0))),
    "top_p": (option("top_p", 1), option("top_p", above(1.0))),
    "min_p": (option("min_p", 1.0), option("min_p", above(1.0))),
    "top_k": (option("top_k", limits.MAX_TOP_K), option("top_k", limits.MAX_TOP_K + 1)),
    "repeat_penalty": (option("repeat_penalty", 10), option("repeat_penalty", above(10.0))),
    "seed": (option("seed", 2**63 - 1), option("seed", 2**63)),
    "stop": (option("stop", ["x"] * 16), option("stop", ["x"] * 17)),
    "stop string": (option("stop", ["\u00e9" * 256]), option("stop", ["\u00e9" * 256 + "x"])),
    "grammar": (option("grammar", "x" * (256 * 1024)), option("grammar", "x" * (256 * 1024 + 1))),
    "input_count": (rerank(2048), rerank(2049)),
    "input_characters": (prompt(4000), prompt(4001)),
    "json_schema": (
        option("json_schema", {"title": "x" * SCHEMA_ROOM}),
        option("json_schema", {"title": "x" * (SCHEMA_ROOM + 1)}),
    ),
}


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.name)
def test_limit(limit: Limit) -> None:
    within, beyond = WALKS[limit.name]
    within()
    with pytest.raises(ContractError) as caught:
        beyond()
    assert caught.value.code == limit.code
    if limit.code == "request_limit":  # names the bound and the request's value
        assert str(limit.maximum) in caught.value.message
        assert sum(character.isdigit() for character in caught.value.message) >= 2
    assert caught.value.outcome == ("unknown" if limit.code.startswith(("resp", "invalid_p")) else "not_admitted")


BELOW: dict[str, tuple[Check, Check]] = {
    "sample_rate": (audio(rate=8000), audio(rate=7999)),
    "temperature": (option("temperature", 0), option("temperature", -5e-324)),
    "top_p": (option("top_p", 0), option("top_p", -5e-324)),
    "min_p": (option("min_p", 0), option("min_p", -0.1)),
    "top_k": (option("top_k", 0), option("top_k", -1)),
    "seed": (option("seed", 0), option("seed", -1)),
    "repeat_penalty": (option("repeat_penalty", 0.1), option("repeat_penalty", 0.09)),
    "max_tokens": (option("max_tokens", 1), option("max_tokens", 0)),
}


@pytest.mark.parametrize("name", BELOW)
def test_lower_ends(name: str) -> None:
    at, below = BELOW[name]
    at()
    with pytest.raises(ContractError) as caught:
        below()
    assert caught.value.code == "invalid_request"


def bounded_option(model: str, capability: str, name: str, value: int) -> Check:
    kind = {"rerank": "rerank", "text_embedding": "embeddings", "image_generation": "image_generation"}
    sides = {"width": 64, "height": 64} if capability == "image_generation" else {}
    options = {"kind": kind.get(capability, "text_generation")} | sides | {name: value}
    content: dict[str, Any] = {"rerank": VALID["rerank"]["input"]}.get(capability, text_part())
    output = {"rerank": "relevance_scores", "text_embedding": "embeddings_float32", "image_generation": "png_base64"}
    return typed(request(model, content, output.get(capability, "text"), capability=capability, options=options))


def counted(model: str, capability: str, count: int) -> Check:
    if capability == "rerank":
        return rerank(count)
    return typed(request(model, {"kind": "text_batch", "texts": ["x"] * count}, "embeddings_float32"))


MEASURED: dict[tuple[str, str, str], Callable[[int], Check]] = {
    ("chat", "chat_generation", "max_tokens"): lambda n: bounded_option("chat", "chat_generation", "max_tokens", n),
    ("chat", "text_generation", "max_tokens"): lambda n: bounded_option("chat", "text_generation", "max_tokens", n),
    ("embed", "text_embedding", "dimensions"): lambda n: bounded_option("embed", "text_embedding", "dimensions", n),
    ("embed", "text_embedding", "input_count"): lambda n: counted("embed", "text_embedding", n),
    ("rerank", "rerank", "top_n"): lambda n: bounded_option("rerank", "rerank", "top_n", n),
    ("rerank", "rerank", "input_count"): lambda n: counted("rerank", "rerank", n),
    ("all", "image_generation", "width"): lambda n: bounded_option("all", "image_generation", "width", n),
    ("all", "image_generation", "height"): lambda n: bounded_option("all", "image_generation", "height", n),
    ("all", "image_generation", "input_characters"): prompt,
}


@pytest.mark.parametrize("place", MEASURED, ids="/".join)
def test_an_advertised_bound_is_what_is_enforced(place: tuple[str, str, str]) -> None:
    model, capability, option_name = place
    served = next(entry for entry in SERVED if entry.model == model)
    bound = served.capability(capability).bound(option_name)
    assert bound is not None
    MEASURED[place](int(bound.minimum))()
    MEASURED[place](int(bound.maximum))()
    with pytest.raises(ContractError) as caught:
        MEASURED[place](int(bound.maximum) + 1)()
    assert (caught.value.code, caught.value.outcome) == ("request_limit", "not_admitted")
    assert str(bound.maximum) in caught.value.message
    assert str(int(bound.maximum) + 1) in caught.value.message


def test_decision_media_are_bounded_too() -> None:
    content = VALID["decision"]["input"]
    for change in ({"audio": [clip()] * 5}, {"images": [{"encoding": "png", "data_base64": ""}] * 5}):
        with pytest.raises(ContractError) as caught:
            typed(request("all", content | change, "decisions"))()
        assert caught.value.code == "request_limit"
