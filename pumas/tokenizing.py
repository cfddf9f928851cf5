"""`pumas tokenize`: the ids that the engine would get, from the same text process that serves requests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import msgspec
import trio

from pumas.config import UserError
from synapse import SupervisorConfig, TextService, open_supervisor

BATCH_TEXTS, BATCH_BYTES = 256, 1 << 20


class TokenizeError(UserError):
    """No such file, or an input line that is no text."""


def run_tokenize(path: str, *, as_json: bool, count: bool, add_special: bool, parse_special: bool) -> int:
    """Read texts from standard input, one a line; write one JSON array of ids (or a number) a line.

    Returns the exit status. Raises: TokenizeError, SynapseError.
    """
    if not Path(path).is_file():
        raise TokenizeError(f"{path}: no such file")
    try:
        trio.run(_tokenize, path, as_json, count, add_special, parse_special)
    except BaseExceptionGroup as group:
        error: BaseException = group
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None
    except BrokenPipeError:
        return 1
    return 0


async def _tokenize(path: str, as_json: bool, count: bool, add_special: bool, parse_special: bool) -> None:
    async with open_supervisor(SupervisorConfig(text_processes=1)) as supervisor:
        text: TextService = supervisor.text
        model = text.model(await text.ingest(path), path)
        for texts in _batches(_texts(sys.stdin.buffer, as_json)):
            rows = await text.tokenize(model, texts, add_special=add_special, parse_special=parse_special)
            for row in rows:
                answer = len(row) if count else row.tolist()
                sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


def _texts(source: BinaryIO, as_json: bool) -> Iterator[str]:
    """The lines as texts, without their line ends.

    Raises: TokenizeError that names the line.
    """
    for number, line in enumerate(source, 1):
        try:
            if as_json:
                yield msgspec.json.decode(line, type=str)
            else:
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = "not one JSON string" if as_json else "not UTF-8"
            raise TokenizeError(f"line {number} of standard input is {what}: {error}") from error


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts in groups that are worth a round trip and small enough to answer while more is typed."""
    while batch := list(islice(texts, 1)):
        size = len(batch[0])
        while len(batch) < BATCH_TEXTS and size < BATCH_BYTES:
            more = next(texts, None)
            if more is None:
                break
            batch.append(more)
            size += len(more)
        yield batch
