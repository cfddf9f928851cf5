"""Tokenizing: tokens per second as a ratio to llama.cpp's own tokenizer, and how long a tokenizer takes to be ready.

    python -m tests.bench.tokens [--rounds 5] [--models FILE ...]

Without --models: SmolLM2 (BPE), Gemma 3 (SentencePiece), MiniLM (WordPiece), and what PUMAS_TEST_DATA holds. Aims: at
least 0.8 of llama.cpp on one core for BPE and SentencePiece, above it on two for batches; a cached load below a second.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from tests import models
from tests.bench.measure import ratio, rounds

LONG_CHARS = 1_000_000
MANY, MANY_CHARS = 2000, 200


def prose(chars: int, seed: int) -> str:
    """Ordinary English with numbers, names and punctuation, the same in every run."""
    rng = random.Random(seed)
    source = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8").split()
    parts: list[str] = []
    size = 0
    while size < chars:
        word = rng.choice(source) if rng.random() < 0.97 else str(rng.randint(0, 10**6))
        parts.append(word)
        size += len(word) + 1
    return " ".join(parts)[:chars]


def inputs() -> dict[str, list[str]]:
    """One long text, and many short ones."""
    return {
        "long": [prose(LONG_CHARS, 1)],
        "many": [prose(MANY_CHARS, seed) for seed in range(MANY)],
    }


class Side:
    """A child process that tokenizes one way: "ours" or "engine", on so many cores."""

    def __init__(self, way: str, model: Path, cores: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.tokens", "--child", way, str(model), str(cores)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "RAYON_NUM_THREADS": str(cores)},
        )

    def __enter__(self) -> Side:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, what: str) -> Any:
        """Seconds (a tokenizing), or the numbers of a load."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(what.encode() + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline())


def child(way: str, model: str, cores: int) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    texts = inputs()
    run = _ours(model) if way == "ours" else _engine(model)
    for line in sys.stdin:
        what = line.strip()
        if what == "load":
            answer: Any = _load(model)
        else:
            # On one core CPU time is the same thing, and does not mind what else the machine does.
            clock = time.process_time if cores == 1 else time.perf_counter
            started = clock()
            count = run(texts[what])
            answer = [clock() - started, count]
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.flush()


def _ours(model: str) -> Any:
    from synapse.artifacts.gguf import read_header
    from synapse.artifacts.tokenizer import build_tokenizer

    tokenizer = build_tokenizer(read_header(model))
    return lambda texts: sum(map(len, tokenizer.encode_batch(texts, add_special=True, parse_special=True)))


def _load(model: str) -> list[float]:
    """Seconds for the header, the first build and a cached load; megabytes of the cache entry."""
    from synapse.artifacts.gguf import read_header
    from synapse.artifacts.tokenizer import Tokenizer, build_tokenizer

    times = [time.perf_counter()]
    header = read_header(model)
    times.append(time.perf_counter())
    entry = build_tokenizer(header).to_cache()
    times.append(time.perf_counter())
    Tokenizer.from_cache(entry).encode("ready <", parse_special=True)
    times.append(time.perf_counter())
    return [b - a for a, b in zip(times, times[1:], strict=False)] + [len(entry) / 1e6]


def _engine(model: str) -> Any:
    import llama_cpp

    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    parameters = llama_cpp.llama_model_default_params()
    parameters.vocab_only = True
    vocab = llama_cpp.llama_model_get_vocab(llama_cpp.llama_model_load_from_file(model.encode(), parameters))
    room = LONG_CHARS + 16
    buffer = (llama_cpp.llama_token * room)()
    keep = quiet

    def run(texts: list[str]) -> int:
        assert keep is quiet
        total = 0
        for text in texts:
            data = text.encode()
            n = llama_cpp.llama_tokenize(vocab, data, len(data), buffer, room, True, True)
            total += len(buffer[:n])
        return total

    return run


def synthetic(path: Path, count: int) -> Path:
    """A byte-level BPE vocabulary of `count` tokens, made of random merges: for load times only."""
    from synapse.artifacts.tokenizer.bpe import BYTE_ALPHABET
    from tests.tokenizer.gguf_bytes import vocabulary_metadata, write

    rng = random.Random(3)
    tokens, known, merges = list(BYTE_ALPHABET), set(BYTE_ALPHABET), []
    while len(tokens) < count:
        first, second = rng.choice(tokens), rng.choice(tokens[:5000])
        token = first + second
        if token not in known and len(token) <= 16:
            known.add(token)
            tokens.append(token)
            merges.append(f"{first} {second}")
    return write(path, vocabulary_metadata("gpt2", tokens, pre="qwen2", merges=merges))


def _speed(model: Path, count: int) -> None:
    with Side("ours", model, 1) as one, Side("ours", model, 2) as two, Side("engine", model, 1) as engine:
        for what in ("long", "many"):
            tokens = int(engine.ask(what)[1])
            assert one.ask(what)[1] == tokens, "not the same tokens"
            ways = {
                "one": lambda what=what: one.ask(what)[0],
                "two": lambda what=what: two.ask(what)[0],
                "engine": lambda what=what: engine.ask(what)[0],
            }
            taken = rounds(ways, count)
            rate = tokens / min(taken["one"]) / 1e3
            print(
                f"{model.stem:<28} {what:<5} {tokens:>8} tokens  one core {rate:7.0f} k/s"
                f"  x{ratio(taken, 'one', 'engine'):.2f} of llama.cpp  two cores x{ratio(taken, 'two', 'engine'):.2f}",
                flush=True,
            )


def _loads(name: str, model: Path) -> None:
    best: list[float] = []
    for _ in range(3):
        with Side("ours", model, 2) as side:
            taken = side.ask("load")
        best = [min(a, b) for a, b in zip(best, taken, strict=True)] if best else taken
    header, build, cached, size = best
    print(f"{name:<28} header {header:.2f} s, first build {build:.2f} s, cached {cached:.2f} s, entry {size:.1f} MB")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", type=Path, nargs="*")
    options = parser.parse_args()
    files = options.models or [models.smollm2(), models.gemma3(), models.minilm_f16_gguf()]
    if options.models is None and (directory := models.test_data()) is not None:
        files += sorted((directory / "tokenizers").glob("*.gguf"))
    for model in files:
        _speed(model, options.rounds)
    with tempfile.TemporaryDirectory() as folder:
        for count in (30_000, 150_000, 256_000):
            _loads(f"{count} tokens, BPE", synthetic(Path(folder) / f"{count}.gguf", count))
    _loads(models.gemma3().stem, models.gemma3())


if __name__ == "__main__":
    main()
