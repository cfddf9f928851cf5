"""`python -m tests.tokenizer.bounded MODEL.gguf [TEXT_KIND]`: build a tokenizer, tokenize, under hard limits.

2 GiB of memory and CPU_S of CPU time: what needs more ends by a signal or a MemoryError. Prints one line.
"""

from __future__ import annotations

import resource
import sys

MEMORY_BYTES = 2 << 30
CPU_S = 60
CHARACTERS = 300_000
TEXTS = {
    "letters": "a" * CHARACTERS,
    "spaces": " " * CHARACTERS + "x",
    "digits": "7" * CHARACTERS,
    "words": "the words " * (CHARACTERS // 10),
    "specials": "<|endoftext|><" * (CHARACTERS // 14),
    "marks": "e\u0301\u0323" * (CHARACTERS // 3),
    "han": "中" * CHARACTERS,
}


def main(path: str, *kinds: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    from synapse.artifacts.gguf import ArtifactInvalid, read_header
    from synapse.artifacts.tokenizer import NotBuildable, build_tokenizer

    try:
        tokenizer = build_tokenizer(read_header(path))
    except (ArtifactInvalid, NotBuildable) as error:
        print(f"{type(error).__name__}: {str(error)[:100]}")
        return
    counts = [len(tokenizer.encode(TEXTS[kind], add_special=False, parse_special=True)) for kind in kinds]
    print("ok", len(tokenizer.vocabulary), *counts)


if __name__ == "__main__":
    main(*sys.argv[1:])
