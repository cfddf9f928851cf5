"""docs/PROMISES.md: it is what the tables say, and every test that it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.promises.faults import FAULTS, SIMULATED
from tests.proof.table import PAGE, PROMISES, read_measured, renewed

ROOT = Path(__file__).parents[2]
NODES = sorted(
    {SIMULATED}
    | {node for promise in PROMISES for node in (*promise.tests, *promise.proofs)}
    | {node for fault in FAULTS for node in fault.tests}
)


@pytest.mark.parametrize("node", NODES)
def test_a_named_test_exists(node: str) -> None:
    path, _, name = node.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    functions = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in functions


def test_the_page_is_what_the_tables_say() -> None:
    """`python -m tests.proof --page` writes it anew."""
    assert PAGE.read_text() == renewed(PAGE.read_text())


def test_the_table_is_complete_and_well_formed() -> None:
    assert [promise.name for promise in PROMISES] == [*(f"P{number}" for number in range(1, 31)), "G1", "G2"]
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith(("| P", "| G"))]
    assert len(rows) == len(PROMISES)
    for row in rows:
        assert row.count("|") == 7, row
    assert set(read_measured()) <= {promise.name for promise in PROMISES} | {"soak"}


def test_tests_that_the_prose_names_exist() -> None:
    for node in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE.read_text()):
        assert f"def {node[1]}(" in (ROOT / node[0]).read_text(), node
