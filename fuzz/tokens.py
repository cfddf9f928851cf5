"""Random texts against the engine, any number: `python -m fuzz.tokens --examples 1000000 --seed 1`.

Every vocabulary at hand in turn: those that tests build, the real models, and those that PUMAS_TEST_DATA names. Prints
the first text whose ids differ, with its mode, and the seed that makes it again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from synapse.artifacts.gguf import read_header
from synapse.artifacts.tokenizer import NotBuildable, Tokenizer, build_tokenizer, data, specials_of
from tests import models
from tests.tokenizer import vocabularies
from tests.tokenizer.oracle import MODES, ask

_BATCH = 500
_MARKS = "\u0300\u0301\u0323\u0327\u0591\u05b4\u0e33\u0f71\u093c\u3099\ufe0f\u200d\u20e3"


def texts(rng: random.Random, specials: list[str], count: int) -> Iterator[str]:
    """Mixtures of a few kinds of characters each: runs, words, numbers, scripts, and pieces of special tokens."""
    kinds = (
        lambda: rng.choice(" \t\n\r\v\f\x85\xa0\u2003\u2028\u3000") * rng.choice((1, 1, 2, 3, 17)),
        lambda: rng.choice("0123456789٠१Ⅷ½０") * rng.randint(1, 9),
        lambda: "".join(rng.choice("abcdeEIstmrvl'SLſKé") for _ in range(rng.randint(1, 12))),
        lambda: rng.choice(vocabularies.WORDS),
        lambda: rng.choice("!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~…，。「」—’“▁Ġ") * rng.choice((1, 1, 2, 5)),
        lambda: chr(rng.randint(0x4E00, 0x9FFF)) + rng.choice("のカ한\u1161ไ"),
        lambda: rng.choice("aeioאकと😀") + rng.choice(_MARKS) * rng.choice((1, 1, 2)),
        lambda: chr(rng.choice((rng.randint(0, 0x7FF), rng.randint(0x800, 0xD7FF), rng.randint(0xE000, 0x10FFFF)))),
        lambda: rng.choice(specials) if specials else "<|",
        lambda: rng.choice(specials)[: rng.randint(1, 6)] if specials else "|>",
    )
    for _ in range(count):
        chosen = rng.sample(kinds, rng.randint(1, 4))
        yield "".join(rng.choice(chosen)() for _ in range(rng.choice((1, 2, 3, 5, 8, 20, 60))))


def files(folder: Path) -> Iterator[Path]:
    """The vocabularies, small ones first."""
    yield vocabularies.spm(folder / "spm.gguf")
    yield vocabularies.ugm(folder / "ugm.gguf", remove_extra_whitespaces=True, add_space_prefix=True)
    yield vocabularies.wpm(folder / "wpm.gguf")
    for pre in data.pretokenizers().names:
        model = "whitespace" if pre == "whitespace" else "gpt2"
        yield vocabularies.bpe(folder / f"bpe-{pre}.gguf", pre, model=model)
    yield from (models.smollm2(), models.minilm_f16_gguf())
    if (directory := models.test_data()) is not None:
        yield from sorted((directory / "tokenizers").glob("*.gguf"))


def difference(tokenizer: Tokenizer, path: Path, asked: list[str]) -> str | None:
    """The first difference from the engine, in words."""
    answer = ask(path, asked)
    for (add, parse), wanted in zip(MODES, answer.ids, strict=True):
        got = tokenizer.encode_batch(asked, add_special=add, parse_special=parse)
        for text, ours, theirs in zip(asked, got, wanted, strict=True):
            if ours != theirs:
                return f"add_special={add} parse_special={parse} {text!a}: ours {ours}, engine {theirs}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="texts in all, over all vocabularies")
    parser.add_argument("--seed", type=int, default=time.time_ns())
    options = parser.parse_args()
    rng, done = random.Random(options.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        paths = list(files(Path(folder)))
        while done < options.examples:
            path = rng.choice(paths)
            try:
                tokenizer = build_tokenizer(read_header(path))
            except NotBuildable as reason:
                print(f"{path.name}: {reason}", file=sys.stderr)
                paths.remove(path)
                continue
            asked = list(texts(rng, specials_of(tokenizer.vocabulary), _BATCH))
            done += len(asked)
            if (wrong := difference(tokenizer, path, asked)) is not None:
                print(f"seed {options.seed}, {path.name}, after {done} texts: {wrong}", file=sys.stderr)
                return 1
    print(f"seed {options.seed}: {done} texts over {len(paths)} vocabularies, all equal")
    return 0


if __name__ == "__main__":
    sys.exit(main())
