"""Fixtures of the HTTP tests."""

from __future__ import annotations

import pytest

from tests.http.support import Clock


@pytest.fixture
def clock() -> Clock:
    """The test's clock, which it can let leap."""
    return Clock()
