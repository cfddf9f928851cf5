"""Workers that many tests share: each is one process for its module or for all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.llama.driver import Driver, worker


@pytest.fixture(scope="package")
def smol() -> Iterator[Driver]:
    """SmolLM2 loaded, 8 places of 1,024 tokens."""
    with worker() as driver:
        measured = driver.load(models.smollm2(), context=1024, parallel=8, threads=2).measured
        assert measured.deterministic, measured.deterministic_detail
        assert measured.reuse_equal, measured.deterministic_detail
        yield driver


@pytest.fixture(scope="package")
def minilm() -> Iterator[Driver]:
    """MiniLM loaded."""
    with worker() as driver:
        driver.load(models.minilm_f16_gguf(), threads=1)
        yield driver


@pytest.fixture(scope="package")
def bare() -> Iterator[Driver]:
    """A worker without a model: its user loads and unloads."""
    with worker() as driver:
        yield driver


@pytest.fixture(scope="package")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """The tiny random decoder loaded, 4 places of 256 tokens: steps in a fraction of a millisecond."""
    path = models.tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf")
    with worker() as driver:
        driver.load(path, context=256, parallel=4, threads=1)
        yield driver


@pytest.fixture(scope="package")
def tiny_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for tiny models."""
    return tmp_path_factory.mktemp("models")
