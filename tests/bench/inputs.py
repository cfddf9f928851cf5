"""Texts for the benchmarks: made of ordinary English, the same in every run."""

from __future__ import annotations

import random

WORDS = [
    "the",
    "river",
    "carried",
    "small",
    "boats",
    "past",
    "an",
    "old",
    "mill",
    "where",
    "the",
    "miller",
    "counted",
    "sacks",
    "of",
    "grain",
    "and",
    "told",
    "his",
    "children",
    "about",
    "storms",
    "that",
    "had",
    "once",
    "moved",
    "whole",
    "trees",
    "across",
    "the",
    "valley",
    "while",
    "people",
    "slept",
    "in",
    "their",
    "houses",
    "and",
    "heard",
    "nothing",
    "until",
    "morning",
    "came",
    "with",
    "a",
    "clear",
    "sky",
    "and",
    "a",
    "road",
    "that",
    "nobody",
    "knew",
    "any",
    "more",
    "because",
    "stones",
    "and",
    "branches",
    "lay",
    "on",
    "it",
    "everywhere",
]


def passage(seed: int, words: int) -> str:
    """About 1.2 tokens a word."""
    chosen = random.Random(seed)
    return " ".join(chosen.choice(WORDS) for _ in range(words)).capitalize() + "."


def passages(count: int, low: int, high: int, seed: int = 1) -> list[str]:
    """`count` texts of `low` to `high` words."""
    lengths = random.Random(seed)
    return [passage(seed * 1000 + i, lengths.randint(low, high)) for i in range(count)]


LONG = passages(32, 85, 200)
"""32 passages of about 100 to 250 tokens."""
SHORT = passages(64, 6, 18, seed=2)
"""64 texts of about 8 to 23 tokens."""
PROMPTS = [f"Once upon a time, in the year {1800 + i}, {passage(i, 24).lower()} Then" for i in range(8)]
"""8 prompts of about 40 tokens whose continuation is long."""
