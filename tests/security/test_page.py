"""docs/THREATS.md names tests that exist; what is installed is pinned; workers come from this package only."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from synapse import Profile

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "THREATS.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "::" in line]
_NAMED = re.compile(r"`(tests/[a-z0-9_/]+\.py)::([a-z0-9_]+)`")
SURFACES = (
    *("Bind address", "DNS rebinding", "Cross-site requests", "API key", "Key files", "HTTP parsing", "Request bodies"),
    *(
        "Runtime directory",
        "Worker identity",
        "Environment",
        "Privileges",
        "Text processes",
        "Required sandbox",
        "Paths",
    ),
    *("Digest", "GGUF", "Tokenizer data", "Chat templates", "Grammars", "Images and audio", "Special-token text"),
    *("Worker replies", "Upstreams", "Logs and terminal", "Redaction", "Exhaustion", "Disconnects", "Supply chain"),
    "Orphans",
)


@cache
def _tests_of(path: str) -> frozenset[str]:
    tree = ast.parse((ROOT / path).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_every_named_test_exists() -> None:
    named = _NAMED.findall(PAGE)
    assert len(named) > len(ROWS)
    missing = [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in _tests_of(path)]
    assert missing == []


def test_nothing_that_looks_like_a_test_escapes_the_check() -> None:
    assert PAGE.count("::") == len(_NAMED.findall(PAGE))


@pytest.mark.parametrize("surface", SURFACES)
def test_every_surface_has_a_rule_and_a_test(surface: str) -> None:
    (row,) = [row for row in ROWS if row.startswith(f"| {surface} |")]
    _, adversaries, rule, tests = (cell.strip() for cell in row.strip("|").split("|"))
    assert set(adversaries.split()) <= set("abcdef")
    assert rule.endswith(".")
    assert _NAMED.search(tests)


def test_the_page_has_no_other_surface() -> None:
    assert len(ROWS) == len(SURFACES)


def test_what_is_installed_is_pinned() -> None:
    """Every direct dependency, with its extras' own, has one exact version in constraints.txt."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[\[<>=! ]", name, maxsplit=1)[0].lower().replace("_", "-") for name in wanted} - {"pumas"}
    pinned = set()
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, exactly, version = line.partition("==")
            assert exactly, line
            assert version, line
            pinned.add(name.lower().replace("_", "-"))
    assert names - pinned == set()


@pytest.mark.parametrize("engine", ["llama", "onnx"])
def test_worker_programs_are_this_packages_own(engine: str) -> None:
    """This interpreter, a module of ours, and `-P`: nothing that lies in the working directory is imported."""
    assert Profile(engine=engine).program() == [sys.executable, "-P", "-m", f"worker_bin.{engine}"]  # type: ignore[arg-type]
