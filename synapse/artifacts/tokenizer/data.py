"""The data files: which pre-tokenizer name means what, and llama.cpp's own Unicode tables (made by `generate`)."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

import msgspec

GROUPS_FILE: Final = "pretokenizers.json"
UNICODE_FILE: Final = "unicode.json"

Ranges = list[tuple[int, int]]
"""Code points, both ends included, ascending."""


class PreGroup(msgspec.Struct, frozen=True):
    """Expressions that are applied one after the other, each to every piece of the one before."""

    regexes: list[str]
    """As the engine has them, in its own syntax."""
    byte_encode: bool
    """Pieces become GPT-2's byte alphabet; otherwise they stay UTF-8."""


class PreName(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one value of `tokenizer.ggml.pre` means."""

    group: str
    engine: str = ""
    """The engine's constant (it has rules by constant as well)."""
    ignore_merges: bool = False
    add_bos: bool = False
    no_bos: bool = False
    """The BOS id has no default."""
    escape_whitespaces: bool = False
    keep_case: bool = False
    clean_spaces: bool = True


class PreTokenizers(msgspec.Struct, frozen=True):
    names: dict[str, PreName]
    groups: dict[str, PreGroup]


class UnicodeTables(msgspec.Struct, frozen=True):
    """Unicode as the engine sees it; not what Python's unicodedata or the regex library say."""

    classes: dict[str, Ranges]
    """N, L, M, P, S, C: exclusive, as \\p{...} means them."""
    spaces: list[int]
    """What \\s means, ascending."""
    lower: list[tuple[int, int]]
    base: list[tuple[int, int, int]]
    """(first, last, the code point that canonical decomposition begins with)."""


@cache
def pretokenizers() -> PreTokenizers:
    return msgspec.json.decode(_read(GROUPS_FILE), type=PreTokenizers)


@cache
def unicode() -> UnicodeTables:
    return msgspec.json.decode(_read(UNICODE_FILE), type=UnicodeTables)


def _read(name: str) -> bytes:
    return files(__package__).joinpath(name).read_bytes()
