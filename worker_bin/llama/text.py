"""From tokens' bytes to text that may leave: whole characters only, never a stop string or the start of one. Pure."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Final

MAX_STOPS: Final = 64
MAX_STOP_CHARACTERS: Final = 512


def check_stops(stops: Sequence[str]) -> None:
    """Raises: ValueError for too many stop strings, an empty or a too long one."""
    if len(stops) > MAX_STOPS:
        raise ValueError(f"{len(stops)} stop strings, over the limit of {MAX_STOPS}")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARACTERS:
            raise ValueError(f"a stop string has {len(stop)} characters, not from 1 to {MAX_STOP_CHARACTERS}")


class TextOut:
    """The text of one sequence as its tokens come.

    Bytes of a character that is not complete are held back (at most 3), and so is text that a stop string may begin
    with. `stopped` turns true at the first stop string; text from there on is dropped.
    """

    def __init__(self, stops: Sequence[str] = (), *, drop_space: bool = False) -> None:
        """`drop_space`: the first piece's leading space is the tokenizer's, not the text's."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = tuple(stops)
        self._held = ""
        self._drop_space = drop_space
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """Take a token's bytes; return the text that may leave now."""
        if self._drop_space and piece:
            piece = piece.removeprefix(b" ")
            self._drop_space = False
        return self._pass(self._decoder.decode(piece))

    def flush(self) -> str:
        """The generation ended: everything that was held back, an incomplete character as U+FFFD."""
        text = self._pass(self._decoder.decode(b"", final=True))
        held, self._held = self._held, ""
        return text + held

    def _pass(self, text: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        found = [at for at in map(text.find, self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`, `stop` itself excepted."""
    for n in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
