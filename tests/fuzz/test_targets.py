"""A bounded part of the fuzzing: what is kept, and some inputs of a fixed seed, hold every target's invariant."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.hunt import inputs
from fuzz.targets import NAMES, Target, load

EXAMPLES = {
    "frames": 2000,
    "connection": 500,
    "request_json": 2000,
    "upstream_sse": 500,
    "upstream_json": 2000,
    "media_headers": 2000,
    "gguf_header": 500,
    "tokenizer_metadata": 60,
    "templates": 60,
    "grammars": 150,
    "redaction": 500,
    "config": 500,
    "http": 30,
}
"""Inputs beside the corpus; as many as take about a second."""
LARGEST_BYTES = 16 * 1024
CORPUS_BYTES = 300 * 1024


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    found = load(request.param)
    yield found
    found.close()


@pytest.mark.parametrize("target", NAMES, indirect=True)
def test_every_invariant_holds(target: Target) -> None:
    for number, data in enumerate(itertools.islice(inputs(target, 1), len(target.corpus()) + EXAMPLES[target.name])):
        try:
            target.check(data)
        except Exception as error:
            raise AssertionError(f"input {number}, {data[:300]!r}: {target.invariant}") from error


@pytest.mark.parametrize("name", [name for name in NAMES if EXAMPLES[name] >= 500])
def test_any_bytes_and_any_seed(name: str) -> None:
    """Bytes of no format at all, and inputs of any seed; Hypothesis makes what it finds small."""
    target = load(name)

    @settings(max_examples=100, deadline=None, derandomize=True, database=None)
    @given(data=st.binary(max_size=300), seed=st.integers(0, 2**64))
    def holds(data: bytes, seed: int) -> None:
        target.check(data)
        target.check(target.generate(random.Random(seed)))

    holds()


@pytest.mark.parametrize("target", NAMES, indirect=True)
def test_a_seed_gives_the_same_inputs_again(target: Target) -> None:
    count = len(target.corpus()) + 20
    first, again, other = (list(itertools.islice(inputs(target, seed), count)) for seed in (7, 7, 8))
    assert first == again
    assert first != other


@pytest.mark.parametrize("target", NAMES, indirect=True)
def test_the_corpus_is_there_and_small(target: Target) -> None:
    sizes = [path.stat().st_size for path in target.corpus()]
    assert len(sizes) >= 5
    assert max(sizes) <= LARGEST_BYTES
    assert sum(sizes) <= CORPUS_BYTES // len(NAMES) * 2


def test_the_page_shows_every_target_with_its_invariant() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "fuzzing.md").read_text()
    for name in NAMES:
        assert f"| `{name}` | " in page
        assert f" | {load(name).invariant} |" in page
