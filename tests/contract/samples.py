"""Valid requests of every kind, served models that take them, and small media that pass the header checks."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

from pumas.contract.describe import (
    LaneFacts,
    Offer,
    capabilities,
    embedding_bounds,
    image_bounds,
    lane_capabilities,
    lane_modalities,
    text_bounds,
)
from pumas.contract.descriptors import Modalities, ServedModel


def png(width: int = 2, height: int = 3, size: int = 0) -> bytes:
    """Bytes that begin as a PNG of these sides does, padded to `size` bytes."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return start + bytes(max(0, size - len(start)))


def jpeg(width: int = 2, height: int = 3) -> bytes:
    """Bytes that begin as a JPEG of these sides does."""
    app0 = b"\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes((1, 0x22, 0, 2, 0x11, 1, 3, 0x11, 1))
    return b"\xff\xd8" + app0 + frame + b"\xff\xda\x00\x0c\x03\x01\x00\x02\x11\x03\x11\x00\x3f\x00\xff\xd9"


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image_part(data: bytes | None = None, encoding: str = "png") -> dict[str, Any]:
    return {"kind": "image", "encoding": encoding, "data_base64": b64(png() if data is None else data)}


def audio_part(
    samples: int = 80, channels: int = 1, rate: int = 8000, encoding: str = "pcm_s16le", data: bytes | None = None
) -> dict[str, Any]:
    size = samples * channels * (2 if encoding == "pcm_s16le" else 4)
    return {
        "kind": "audio",
        "encoding": encoding,
        "sample_rate_hz": rate,
        "channels": channels,
        "sample_count": samples,
        "data_base64": b64(bytes(size) if data is None else data),
    }


def text_part(text: str = "Hello") -> dict[str, Any]:
    return {"kind": "text", "text": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def request(model: str, content: dict[str, Any], output: str, **more: Any) -> dict[str, Any]:
    """One request as an object; a field given as None is left out."""
    fields = {
        "contract_version": 1,
        "request_id": "example:1",
        "model": model,
        "input": content,
        "output": output,
    } | more
    return {name: value for name, value in fields.items() if value is not None}


def clip(**more: Any) -> dict[str, Any]:
    """An audio clip of a decision: the part without its kind."""
    part = audio_part(**more)
    del part["kind"]
    return part


QUESTIONS = {
    "which": {"type": "choice", "instructions": "Which?", "criteria": {"a": "the first", "b": None}},
    "how": {"type": "score", "instructions": "How much?", "criteria": ["little", "some", "much"]},
    "is": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "it is", "false": "it is not"}},
    "bare": {"type": "noul", "instructions": "Is it?"},
}
TEXT_OPTIONS = {"kind": "text_generation", "max_tokens": 32, "temperature": 0.5, "top_p": 0.9}
LOCAL_OPTIONS = TEXT_OPTIONS | {"top_k": 5, "min_p": 0.1, "seed": 7, "repeat_penalty": 1.1, "stop": ["\n", "END"]}

VALID: dict[str, dict[str, Any]] = {
    "text": request("chat", text_part(), "text", capability="text_generation", options=TEXT_OPTIONS, stream=False),
    "text as chat": request("chat", text_part(), "text", capability="chat_generation", options=LOCAL_OPTIONS),
    "narrowed": request("chat", text_part(), "text", semantic_task="text_generation", profile="default"),
    "grammar": request(
        "chat", text_part(), "text", capability="text_generation",
        options={"kind": "text_generation", "grammar": 'root ::= "yes" | "no"'},
    ),
    "schema": request(
        "chat", text_part(), "text", capability="text_generation",
        options={"kind": "text_generation", "json_schema": {"type": "object", "required": ["a"]}},
    ),
    "messages": request(
        "chat",
        {"kind": "messages", "messages": [{"role": "system", "content": "Brief."}, user([text_part(), text_part()])]},
        "text", stream=True,
    ),
    "image message": request("all", {"kind": "messages", "messages": [user([text_part(), image_part()])]}, "text"),
    "image messages": request(
        "all", {"kind": "image_messages", "messages": [user([image_part(jpeg(), "jpeg")])]}, "text",
        capability="chat_generation", options=TEXT_OPTIONS,
    ),
    "audio message": request("all", {"kind": "messages", "messages": [user([text_part(), audio_part()])]}, "text"),
    "image": request("all", image_part(), "text", options=TEXT_OPTIONS),
    "embedding": request("embed", text_part(), "embeddings_float32", options={"kind": "embeddings", "dimensions": 64}),
    "embeddings": request("embed", {"kind": "text_batch", "texts": ["one", "two"]}, "embeddings_float32"),
    "image embedding": request("all", image_part(), "embeddings_float32"),
    "content batch": request(
        "all",
        {"kind": "content_batch", "items": [{"parts": [text_part(), image_part()]}, {"parts": [audio_part()]}]},
        "embeddings_float32", options={"kind": "embeddings"},
    ),
    "image generation": request(
        "all", text_part(), "png_base64", options={"kind": "image_generation", "width": 64, "height": 64, "seed": 1}
    ),
    "decision": request(
        "all",
        {"kind": "decision", "state": {"temperature": 21.5, "log": ["a", None]}, "questions": QUESTIONS,
         "images": [{"encoding": "png", "data_base64": b64(png())}], "audio": [clip()]},
        "decisions", options={"kind": "decision"},
    ),
    "rerank": request(
        "rerank", {"kind": "rerank", "query": "q", "documents": ["a", "b"]}, "relevance_scores",
        options={"kind": "rerank", "top_n": 1},
    ),
}  # fmt: skip
"""One valid request for each way through the contract, resolved against SERVED."""

RESERVED_AUDIO = request(
    "all", audio_part(), "text", options={"kind": "audio", "language": "en", "max_output_tokens": 512}
)


def lane(model: str, facts: LaneFacts, profile: str = "default") -> ServedModel:
    """A local lane as its provider would show it."""
    return ServedModel(
        model=model,
        profile=profile,
        model_id="sha256:0123456789ab",
        provider="llama.cpp",
        load_state="loaded",
        context_tokens=facts.context or None,
        modalities=lane_modalities(facts),
        capabilities=lane_capabilities(facts),
    )


CHAT = lane("chat", LaneFacts(role="generate", context=2048, chat=True))
EMBED = lane("embed", LaneFacts(role="embed", context=256, dimensions=384))
RERANK = lane("rerank", LaneFacts(role="rerank", context=512))


def everything(model: str = "all") -> ServedModel:
    """A model as no runtime offers it: every capability but the reserved ones."""
    text = Offer(bounds=text_bounds(4096))
    offers = {
        "chat_generation": text,
        "text_generation": text,
        "text_embedding": Offer(bounds=embedding_bounds(384, 256)),
        "image_generation": Offer(bounds=image_bounds((64, 512), (64, 512))),
        "image_to_text": text,
        "multimodal_embedding": Offer(bounds=embedding_bounds(384, None)),
        "decision": Offer(),
        "rerank": Offer(),
    }
    return ServedModel(
        model=model,
        profile="default",
        model_id="sha256:0123456789ab",
        provider="llama-server",
        load_state="loaded",
        context_tokens=4096,
        modalities=Modalities(("text", "image", "audio"), ("text", "vector", "json", "image")),
        capabilities=capabilities(("text", "image", "audio"), offers),
    )


ALL = everything()
SERVED = (CHAT, EMBED, RERANK, ALL)
