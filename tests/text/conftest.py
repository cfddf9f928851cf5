"""Text services for tests. The ingest cache is shared by a run's tests, so that each model is ingested once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import pytest

from synapse.host import RealHost
from synapse.limits import Limits
from synapse.text import TextService, open_text_service

GENEROUS = Limits(boot_s=60, text_s=120, ingest_base_s=300)
"""Deadlines that only a hang meets."""


class OpenText(Protocol):
    def __call__(
        self, *, processes: int = 2, cache_dir: Path | None = None, limits: Limits = GENEROUS
    ) -> AbstractAsyncContextManager[TextService]: ...


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ingest")


@pytest.fixture
def open_text(runtime_dir: Path, shared_cache: Path) -> OpenText:
    @asynccontextmanager
    async def opened(
        *,
        processes: int = 2,
        cache_dir: Path | None = None,
        limits: Limits = GENEROUS,
    ) -> AsyncIterator[TextService]:
        with RealHost(runtime_dir) as host:
            async with open_text_service(host, limits, cache_dir or shared_cache, processes) as service:
                yield service

    return opened
