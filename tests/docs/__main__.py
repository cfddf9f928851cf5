"""Write every page that is generated from the code: `make docs`. Tests fail where a page differs."""

from __future__ import annotations

import re
from pathlib import Path

from pumas import configdoc
from pumas.contract import reference
from synapse.wire import rules, state
from tests.proof.table import renewed

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[str, str]:
    """Every generated page as it should be, by its name in docs."""
    promises = (DOCS / "PROMISES.md").read_text()
    protocol = (DOCS / "protocol.md").read_text()
    for name, table in (("state", state.as_markdown()), ("rules", rules.as_markdown())):
        protocol = with_table(protocol, name, table)
    return {
        "config.md": configdoc.render(),
        "contract.md": reference.render(),
        "protocol.md": protocol,
        "PROMISES.md": renewed(promises),
    }


def main() -> None:
    """Write them; says which changed."""
    for name, text in pages().items():
        page = DOCS / name
        if page.read_text() != text:
            page.write_text(text)
            print(f"changed: {page.relative_to(DOCS.parent)}")


def with_table(page: str, name: str, table: str) -> str:
    """The page with another table between the two comments that hold its place."""
    pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.S)
    assert pattern.search(page), f"there is no place for the table {name}"
    return pattern.sub(lambda found: found[1] + table + found[2], page)


if __name__ == "__main__":
    main()
