"""A tokenizer.json that lies beside a model: data to compare with, never a tokenizer to run.

The library that reads such files can be made to abort, to hang and to take any memory by their content, and a field or
two (padding, truncation) changes every id. The GGUF's own metadata is what counts; this only says where they differ.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from synapse.artifacts.gguf import Header
from synapse.artifacts.tokenizer.bpe import SPACE_MARK
from synapse.artifacts.tokenizer.vocabulary import CONTROL, Vocabulary

MAX_BYTES: Final = 64 << 20
"""The largest published ones have 40 MB."""
_EXAMPLES: Final = 3
_KIND_NAMES: Final = {"bpe": ("BPE",), "spm": ("BPE", "Unigram"), "wpm": ("WordPiece",), "ugm": ("Unigram",)}


class _Model(msgspec.Struct):
    type: str | None = None
    vocab: dict[str, int] | list[tuple[str, float]] = msgspec.field(default_factory=dict)
    merges: list[str | tuple[str, str]] = msgspec.field(default_factory=list)


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _Document(msgspec.Struct):
    model: _Model
    added_tokens: list[_Added] = msgspec.field(default_factory=list)
    truncation: dict[str, Any] | None = None
    padding: dict[str, Any] | None = None


def differences_beside(model_path: str | os.PathLike[str], header: Header, vocabulary: Vocabulary) -> list[str]:
    """How the tokenizer.json in the model's directory differs from the model, in words; [] without one.

    Raises nothing: what cannot be read is a difference. Blocks on the disk.
    """
    path = Path(model_path).with_name("tokenizer.json")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        return [f"tokenizer.json cannot be read: {error.strerror}"]
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return ["tokenizer.json is not a regular file"]
        if status.st_size > MAX_BYTES:
            return [f"tokenizer.json has {status.st_size} bytes, over the limit of {MAX_BYTES}"]
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        return [f"tokenizer.json cannot be read: {error.strerror}"]
    finally:
        os.close(descriptor)
    return differences(content, header, vocabulary)


def differences(content: bytes, header: Header, vocabulary: Vocabulary) -> list[str]:
    """How a tokenizer.json's content differs from a model's own metadata, in words; [] where it agrees."""
    if len(content) > MAX_BYTES:
        return [f"tokenizer.json has {len(content)} bytes, over the limit of {MAX_BYTES}"]
    try:
        document = msgspec.json.decode(content, type=_Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return [f"tokenizer.json is none: {str(error)[:200]}"]
    return list(_differences(document, header, vocabulary))


def _differences(document: _Document, header: Header, vocabulary: Vocabulary) -> Iterator[str]:
    model = document.model
    expected = _KIND_NAMES.get(vocabulary.kind, ())
    if model.type is not None and model.type not in expected:
        yield f"tokenizer.json is a {model.type} model, the GGUF a {vocabulary.model} one"
    listed = (
        list(model.vocab.items()) if isinstance(model.vocab, dict) else [(t, i) for i, (t, _) in enumerate(model.vocab)]
    )
    added = [(token.content, token.id) for token in document.added_tokens]
    yield from _vocabulary(listed, added, vocabulary)
    for token in document.added_tokens:
        if 0 <= token.id < len(vocabulary) and vocabulary.texts[token.id] == token.content:
            control = bool(vocabulary.attributes[token.id] & CONTROL)
            if token.special and not control:
                yield f"{token.content!r} is special in tokenizer.json and no control token in the GGUF"
    if vocabulary.kind == "bpe":
        yield from _merges(model.merges, header.strings("tokenizer.ggml.merges") or [])
    if document.truncation is not None:
        yield f"tokenizer.json would cut texts ({_short(document.truncation)}): not done"
    if document.padding is not None:
        yield f"tokenizer.json would pad texts ({_short(document.padding)}): not done"


def _vocabulary(
    listed: Iterable[tuple[str, int]], added: Iterable[tuple[str, int]], vocabulary: Vocabulary
) -> Iterator[str]:
    convert = _as_wordpiece if vocabulary.kind == "wpm" else str
    theirs = {token_id: convert(text) for text, token_id in listed}
    theirs.update({token_id: text for text, token_id in added})
    other = [
        (token_id, text, vocabulary.texts[token_id])
        for token_id, text in sorted(theirs.items())
        if 0 <= token_id < len(vocabulary) and vocabulary.texts[token_id] not in (text, _bracketed(text))
    ]
    if other:
        shown = ", ".join(f"{token_id} is {text!r} and not {ours!r}" for token_id, text, ours in other[:_EXAMPLES])
        yield f"{len(other)} tokens differ from the GGUF's: {shown}"
    beyond = sum(not 0 <= token_id < len(vocabulary) for token_id in theirs)
    if beyond:
        yield f"{beyond} tokens of tokenizer.json are not in the GGUF"
    missing = len(vocabulary) - (len(theirs) - beyond)
    if missing:
        yield f"{missing} tokens of the GGUF are not in tokenizer.json"


def _merges(theirs: list[str | tuple[str, str]], ours: list[bytes]) -> Iterator[str]:
    texts = [merge if isinstance(merge, str) else " ".join(merge) for merge in theirs]
    if len(texts) != len(ours):
        yield f"tokenizer.json has {len(texts)} merges, the GGUF {len(ours)}"
    for rank, (merge, raw) in enumerate(zip(texts, ours, strict=False)):
        if merge.encode(errors="replace") != raw:
            yield f"merge {rank} is {merge!r} and not {raw.decode(errors='replace')!r}"
            return


def _as_wordpiece(text: str) -> str:
    """A published WordPiece token as a GGUF has it: words are marked, continuations are not."""
    if text.startswith("##"):
        return text[2:]
    return text if text.startswith("[") and text.endswith("]") else SPACE_MARK + text


def _bracketed(text: str) -> str:
    """Converters do not agree whether an ordinary token in brackets is a marked word."""
    return SPACE_MARK + text if text.startswith("[") and text.endswith("]") else text


def _short(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()[:120]
