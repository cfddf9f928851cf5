"""Virtual time for lives, and how much of a promise is tried."""

from __future__ import annotations

import pytest
from trio.testing import MockClock


@pytest.fixture
def autojump_clock() -> MockClock:
    """Stands still until a life lets it jump."""
    return MockClock()
