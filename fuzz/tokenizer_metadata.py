"""Tokenizers built from a file's metadata, and the texts that they are given."""

from __future__ import annotations

import random

from fuzz import gguf_header
from fuzz.boxed import BY_LIMITS, Box
from fuzz.mutate import damaged
from synapse.artifacts.gguf import ArtifactInvalid, parse_header
from synapse.artifacts.tokenizer import (
    CacheInvalid,
    NotBuildable,
    TextInvalid,
    Tokenizer,
    TokenizerFailed,
    build_tokenizer,
)

INVARIANT = (
    "A vocabulary becomes a tokenizer whose ids lie in it, the same ones after a way through the cache, or it is "
    "refused with ArtifactInvalid or NotBuildable; a text gets ids or TextInvalid or TokenizerFailed, within a text "
    "process's limits."
)
CPU_S = 8.0
EXTRA_BYTES = 1 << 30
SLOW_S = 60.0
_MARK = b"\0TEXT"
_TEXTS = (
    "", " a b ab", "<s>ab</s><|im_end|>", "\u2581a\u2581ab", "abc" * 300, "a" * 2000, " " * 500,
    "\n\n\n\r\n", "\u00e9e\u0301",
    "\U0001f600\U0001f468\u200d\U0001f469", "123456789012", "<0x41>", "a\u0301" * 100, "x<|im_end|", "'s 'LL", "\ud800",
    "\u4e2d\u6587", "\u0e33", "!?" * 50, "\x00\x01",
)  # fmt: skip
_box = Box("tokenizer_metadata", BY_LIMITS)


def check(data: bytes) -> None:
    """A GGUF file, then the mark, then texts that NUL separates."""
    _box.check(data)


def close() -> None:
    _box.close()


def inside(data: bytes) -> None:
    """What is done in the child."""
    content, _, rest = data.partition(_MARK)
    texts = [text.decode("utf-8", "surrogatepass" if _is_surrogate(text) else "replace") for text in rest.split(b"\0")]
    try:
        tokenizer = build_tokenizer(parse_header(content))
    except (ArtifactInvalid, NotBuildable):
        return
    again = Tokenizer.from_cache(tokenizer.to_cache())
    for text in texts:
        ids = _ids(tokenizer, text)
        assert ids == _ids(again, text)
        assert ids is None or all(0 <= token < len(tokenizer.vocabulary.texts) for row in ids for token in row)
    for cut in (content[:64], rest):
        try:
            Tokenizer.from_cache(cut)
        except CacheInvalid:
            continue
        raise AssertionError("bytes that are no cache entry were taken for one")


def _is_surrogate(text: bytes) -> bool:
    return text == b"\xed\xa0\x80"


def _ids(tokenizer: Tokenizer, text: str) -> list[list[int]] | None:
    """In all four modes; None for a text that has none."""
    try:
        return [
            tokenizer.encode(text, add_special=add, parse_special=parse)
            for add in (True, False)
            for parse in (True, False)
        ]
    except (TextInvalid, TokenizerFailed):
        return None


def generate(rng: random.Random) -> bytes:
    content = gguf_header.generate(rng) if rng.random() < 0.6 else _other_strings(rng)
    texts = [text.encode("utf-8", "surrogatepass") for text in rng.sample(_TEXTS, 4)]
    return content + _MARK + b"\0".join([*texts, damaged(rng, rng.choice(texts))])


def _other_strings(rng: random.Random) -> bytes:
    """A file whose tokens are other ones of the same lengths: what parses, but fits together no more."""
    content = bytearray(rng.choice(gguf_header.seeds()))
    start = content.index(b"tokenizer.ggml.tokens")
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(start, len(content))
        if 0x20 < content[at] < 0x7F:
            content[at] = rng.choice(b"abA \xff\xe2<>|0")
    return bytes(content)
