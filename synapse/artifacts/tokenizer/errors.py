"""What can go wrong between a model file's vocabulary and ids."""

from __future__ import annotations


class NotBuildable(Exception):
    """There is no recipe that would give exactly the engine's ids for this vocabulary: the engine's own tokenizer has
    to be used. The message says why. Nothing is approximated."""


class TextInvalid(ValueError):
    """A text that has no ids: it holds a lone surrogate. `index` names the text of the batch."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


class CacheInvalid(ValueError):
    """Bytes that are no cache entry of this version: build again."""
