"""The faulty engine as a text process: a tokenizer whose ids are the text's bytes. 256 begins, 257 ends."""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path

import msgspec

from synapse.wire import messages as m
from worker_bin.engine import Buffer, Refused

BOS, EOS = 256, 257
VOCABULARY = 258
MAGIC = b"faulty"


def read_settings(path: str) -> dict[str, str]:
    """`name=value` words of a model file that begins with `faulty`, as in `faulty role=embed context=128`."""
    try:
        content = Path(path).read_bytes()[:4096]
    except OSError as error:
        raise Refused("artifact_invalid", f"{path}: {error.strerror}") from None
    if not content.startswith(MAGIC):
        raise Refused("artifact_invalid", f"{path} does not begin with {MAGIC.decode()!r}")
    words = content.decode("ascii", "replace").split()[1:]
    return dict(word.split("=", 1) for word in words if "=" in word)


def digest_of(path: str) -> str:
    return "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()


def ingest(request: m.Ingest, raw: memoryview) -> tuple[m.Ingested, None]:
    settings = read_settings(request.path)
    role = settings.get("role", "generate")
    info = msgspec.convert(
        {
            "digest": digest_of(request.path),
            "size": Path(request.path).stat().st_size,
            "architecture": "faulty",
            "name": Path(request.path).stem,
            "role": role,
            "context_length": int(settings.get("context", "512")),
            "embedding_length": int(settings.get("dims", "8")),
            "vocabulary": VOCABULARY,
            "pooling": "mean" if role == "embed" else None,
            "ranking_head": role == "rerank",
            "weights": "F32",
            "tokenizer_type": "bytes",
            "longest_token_bytes": 1,
            "add_bos": True,
            "bos_id": BOS,
            "eos_id": EOS,
            "chat_template": role == "generate",
            "injection_closed": True,
        },
        m.ModelInfo,
    )
    return m.Ingested(req_id="", info=info), None


def tokenize(request: m.Tokenize, raw: memoryview) -> tuple[m.Tokenized, Buffer]:
    ids, counts, at = array("i"), [], 0
    for length in request.lengths:
        piece = [BOS] * request.add_special + list(raw[at : at + length])
        at += length
        ids.extend(piece)
        counts.append(len(piece))
    return m.Tokenized(req_id="", counts=counts), ids.tobytes()


def render(request: m.Render, raw: memoryview) -> tuple[m.Rendered, Buffer]:
    try:
        chat = msgspec.json.decode(raw)
        text = "".join(f"{message['role']}: {message['content']}\n" for message in chat["messages"])
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Refused("invalid_request", f"no chat: {error}") from None
    if chat.get("add_generation_prompt", True):
        text += "assistant:"
    ids = array("i", [BOS, *text.encode()])
    reply = m.Rendered(req_id="", n_tokens=len(ids), n_chars=len(text), injection_closed=request.close_injection)
    return reply, ids.tobytes()


def check_grammar(request: m.CheckGrammar, raw: memoryview) -> tuple[m.GrammarChecked, None]:
    """Every grammar is good that does not say `bad`."""
    if b"bad" in bytes(raw):
        raise Refused("invalid_request", f"this {request.kind} says bad")
    return m.GrammarChecked(req_id=""), None
