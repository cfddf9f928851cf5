"""`pumas tokenize`: the ids that the engine would get, from the same text process that serves requests."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
import trio

from pumas.config import UserError
from synapse import SupervisorConfig, open_supervisor

READ_BYTES = 1 << 20


class TokenizeError(UserError):
    """No such file, or an input line that is no text."""


def run_tokenize(path: str, *, as_json: bool, count: bool, add_special: bool, parse_special: bool) -> int:
    """Read texts from standard input, one a line; write one JSON array of ids (or a number) a line.

    What is there is answered before more is waited for, so that another program can ask line by line.
    Returns the exit status. Raises: TokenizeError, SynapseError.
    """
    if not os.path.isfile(path):
        raise TokenizeError(f"{path}: no such file")
    try:
        trio.run(_tokenize, path, as_json, count, add_special, parse_special)
    except BrokenPipeError:  # nobody reads the answers any more
        return 1
    return 0


async def _tokenize(path: str, as_json: bool, count: bool, add_special: bool, parse_special: bool) -> None:
    async with open_supervisor(SupervisorConfig(text_processes=1)) as supervisor:
        text = supervisor.text
        model = text.model(await text.ingest(path), path)
        number = 0
        async with aclosing(_lines(sys.stdin.fileno())) as batches:
            async for lines in batches:
                texts = [_text(line, number + at, as_json) for at, line in enumerate(lines, 1)]
                number += len(lines)
                rows = await text.tokenize(model, texts, add_special=add_special, parse_special=parse_special)
                answers = (msgspec.json.encode(len(row) if count else row.tolist()) for row in rows)
                sys.stdout.buffer.write(b"".join(answer + b"\n" for answer in answers))
                sys.stdout.buffer.flush()


async def _lines(descriptor: int) -> AsyncGenerator[list[bytes], None]:
    """The lines that came together, without their ends; the last one may lack it."""
    rest = bytearray()
    while piece := await trio.to_thread.run_sync(os.read, descriptor, READ_BYTES, abandon_on_cancel=True):
        rest += piece
        if b"\n" in piece:
            *lines, tail = bytes(rest).split(b"\n")
            rest = bytearray(tail)
            yield lines
    if rest:
        yield [bytes(rest)]


def _text(line: bytes, number: int, as_json: bool) -> str:
    try:
        return msgspec.json.decode(line, type=str) if as_json else line.removesuffix(b"\r").decode("utf-8")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        what = "not one JSON string" if as_json else "not UTF-8"
        raise TokenizeError(f"line {number} of standard input is {what}: {error}") from error
