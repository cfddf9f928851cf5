"""What llama.cpp itself makes of texts, asked in a child process: some inputs abort it.

`python -m tests.tokenizer.oracle` is the child: questions on standard input, answers on standard output, MessagePack.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
MODES = ((True, True), (True, False), (False, True), (False, False))
"""(add_special, parse_special)"""
CHILD_BOUND_S = 300
"""Only a hang takes so long."""


class Question(msgspec.Struct):
    path: str
    texts: list[str]
    tables: bool = False
    """Pieces and attributes too."""
    modes: tuple[tuple[bool, bool], ...] = MODES


class Answer(msgspec.Struct):
    """`ids`: for each of the question's modes, for each text. `error`: why the engine does not load the file."""

    ids: list[list[list[int]]] = []
    pieces: list[bytes] = []
    attributes: list[int] = []
    error: str = ""


class EngineDied(Exception):
    """The engine ended its process."""


def ask_all(questions: Sequence[Question]) -> list[Answer]:
    """Answers of one child for all questions. Raises: EngineDied."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.tokenizer.oracle"],
        input=msgspec.msgpack.encode(questions),
        capture_output=True,
        cwd=ROOT,
        timeout=CHILD_BOUND_S,
    )
    if done.returncode:
        raise EngineDied(f"exit status {done.returncode}: {done.stderr[-400:]!r}")
    return msgspec.msgpack.decode(done.stdout, type=list[Answer])


def ask(path: Path, texts: Sequence[str], *, tables: bool = False) -> Answer:
    """One answer. Raises: EngineDied."""
    return ask_all([Question(str(path), list(texts), tables)])[0]


def _child() -> None:
    import ctypes

    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    questions = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[Question])
    answers = [_answer(llama_cpp, ctypes, question) for question in questions]
    sys.stdout.buffer.write(msgspec.msgpack.encode(answers))


def _answer(llama, ctypes, question: Question) -> Answer:  # type: ignore[no-untyped-def]
    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    model = llama.llama_model_load_from_file(question.path.encode(), parameters)
    if not model:
        return Answer(error="it does not load")
    vocab = llama.llama_model_get_vocab(model)
    longest = max((len(text.encode()) for text in question.texts), default=0)
    room = 4 * longest + 16
    buffer = (llama.llama_token * room)()
    answer = Answer()
    for add, parse in question.modes:
        rows = []
        for text in question.texts:
            data = text.encode()
            count = llama.llama_tokenize(vocab, data, len(data), buffer, room, add, parse)
            if count < 0:
                raise SystemExit(f"{-count} tokens for {len(data)} bytes")
            rows.append(buffer[:count])
        answer.ids.append(rows)
    if question.tables:
        piece = ctypes.create_string_buffer(1 << 16)
        for token in range(llama.llama_vocab_n_tokens(vocab)):
            size = llama.llama_token_to_piece(vocab, token, piece, len(piece), 0, True)
            answer.pieces.append(piece.raw[: max(0, size)])
            answer.attributes.append(llama.llama_vocab_get_attr(vocab, token))
    llama.llama_model_free(model)
    return answer


if __name__ == "__main__":
    _child()
