"""Request bodies, of the contract and of the OpenAI-compatible routes."""

from __future__ import annotations

import random
import zlib
from typing import Any

import msgspec

from fuzz.mutate import damaged
from pumas.contract.errors import STATUS, ContractError, encode_error
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from pumas.contract.strict import load
from pumas.openai.chat import parse_chat
from pumas.openai.completions import parse_completion
from pumas.openai.embeddings import parse_embeddings
from pumas.openai.errors import error_body, error_headers, status_of
from pumas.openai.images import parse_image
from pumas.openai.rerank import parse_rerank
from pumas.translate import to_operation
from tests.contract.mutate import echoed_id, mutate
from tests.contract.samples import CHAT, SERVED, VALID, b64, png

INVARIANT = (
    "A body becomes an operation or a ContractError of a known code, not admitted, with the caller's request_id "
    "exactly where the body is JSON with one valid ID; a body that was broken on purpose is refused with the code "
    "of that break."
)
_OPENAI = {
    b"chat": lambda data: parse_chat(data, CHAT),
    b"completion": parse_completion,
    b"embeddings": parse_embeddings,
    b"rerank": parse_rerank,
    b"image": parse_image,
}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_BODIES: dict[bytes, list[dict[str, Any]]] = {
    b"chat": [
        {"model": "chat", "messages": [{"role": "user", "content": "hi"}], "stop": ["x"], "logit_bias": {"5": 1}},
        {
            "model": "chat",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": [{"type": "text", "text": "x"}]},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
                {"role": "tool", "tool_call_id": "1", "content": "5"},
                {"role": "user", "content": [
                    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64(png())}"}}]},
            ],
            "tools": [_TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}, "seed": -1,
        },
        {
            "model": "chat", "messages": [{"role": "user", "content": "x"}], "stream": True, "logprobs": True,
            "stream_options": {"include_usage": True}, "top_logprobs": 3, "temperature": 0.5,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        },
    ],
    b"completion": [
        {"model": "chat", "prompt": "x", "max_tokens": 4, "logprobs": 2, "echo": False},
        {"model": "chat", "prompt": [1, 2, 3], "seed": 5},
    ],
    b"embeddings": [
        {"model": "m", "input": ["a", "b"], "encoding_format": "base64", "dimensions": 8},
        {"model": "m", "input": [[1, 2], [3]]},
    ],
    b"rerank": [{"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}],
    b"image": [{"model": "m", "prompt": "x", "size": "64x64", "n": 1, "response_format": "b64_json"}],
}  # fmt: skip
_ENCODED = {route: [msgspec.json.encode(body) for body in bodies] for route, bodies in _BODIES.items()}
_TYPED = [msgspec.json.encode(body) for body in VALID.values()]
_WORDS = (
    *(
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"9" * 30,
        b"9" * 400,
        b"NaN",
        b"[]",
        b"{}",
        b'""',
        b'"x"',
        b"1.5",
        b"[" * 140,
    ),
    *(
        b'"\\ud83d"',
        b"\xed\xa0\x80",
        b"\\",
        b'"',
        b",",
        b":",
        b'"model":"chat",',
        b'"request_id":"a",',
        b"[[1]]",
        b"[true]",
    ),
)


def check(data: bytes) -> None:
    """The first line says what it is: a route of OpenAI's, or `any`; or the code that must come and the CRC-32 of the
    body that it must come for."""
    kind, _, body = data.partition(b"\n")
    wanted = _wanted_code(kind, body)
    if kind in _OPENAI:
        _check_openai(kind, body)
        return
    try:
        to_operation(resolve(decode_operation(body), SERVED))
    except ContractError as error:
        assert error.code in STATUS
        assert error.outcome == "not_admitted"
        assert wanted in (None, error.code), (wanted, error)
        assert error.request_id == _wanted_id(body, error.request_id)
        msgspec.json.decode(encode_error(error))
        return
    assert wanted is None, "accepted"


def _wanted_code(kind: bytes, body: bytes) -> str | None:
    """What the maker of this body knew; None where it was changed afterwards."""
    code, _, checksum = kind.decode("latin-1").partition(" ")
    return code if checksum == f"{zlib.crc32(body):08x}" and code in STATUS else None


def _wanted_id(body: bytes, given: str | None) -> str | None:
    """What the caller's ID is; of what is nested too deep for this second reader, the first one's word is taken."""
    try:
        return echoed_id(body)
    except RecursionError:
        return given


def _check_openai(kind: bytes, body: bytes) -> None:
    try:
        value = load(body)
        if isinstance(value, dict):
            _OPENAI[kind](value)
    except ContractError as error:
        assert error.code in STATUS
        assert 400 <= status_of(error) < 600
        msgspec.json.encode(error_body(error, error.message))
        for name, header in error_headers(error):
            assert "\n" not in name + header
            header.encode("latin-1")


def generate(rng: random.Random) -> bytes:
    match rng.randrange(4):
        case 0 | 1:
            mutant = mutate(rng)
            kind = f"{mutant.code} {zlib.crc32(mutant.body):08x}" if mutant.code else "any"
            return kind.encode() + b"\n" + mutant.body
        case 2:
            return b"any\n" + damaged(rng, rng.choice(_TYPED), _WORDS, _TYPED)
        case _:
            route = rng.choice(list(_ENCODED))
            return route + b"\n" + _other_value(rng, route)


def _other_value(rng: random.Random, route: bytes) -> bytes:
    """A body with the value of a member replaced, or bytes of it."""
    if rng.random() < 0.5:
        return damaged(rng, rng.choice(_ENCODED[route]), _WORDS, _ENCODED[route])
    body = msgspec.json.decode(msgspec.json.encode(rng.choice(_BODIES[route])))
    holder: Any = body
    while True:
        key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.7:
            holder = inner
            continue
        holder[key] = rng.choice(
            [None, True, -1, 2**62, 1e308, "", " ", "x", [], {}, [[]], [None], {"x": 1}, "\U0001f600"]
        )
        return msgspec.json.encode(body)
