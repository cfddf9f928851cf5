"""docs/protocol.md shows the tables that the code runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from synapse.wire import rules, state

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
TABLES = {"state": state.as_markdown, "rules": rules.as_markdown}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_shows_the_codes_table(name: str) -> None:
    """To renew it, put what this test expects between the two comments."""
    found = re.search(f"<!-- table: {name} -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == TABLES[name]()
