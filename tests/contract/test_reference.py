"""docs/contract.md says what the code does."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from pumas.contract.errors import STATUS, ContractError, encode_error, retry_after_header
from pumas.contract.limits import LIMITS
from pumas.contract.reference import CODES, render
from tests.contract.test_limits import WALKS


def test_the_page_is_what_the_code_says() -> None:
    page = Path(__file__).parents[2] / "docs" / "contract.md"
    assert page.read_text() == render(), "run: python -m pumas.contract.reference > docs/contract.md"


def test_every_code_and_limit_is_there() -> None:
    assert list(CODES) == list(STATUS)
    assert [limit.name for limit in LIMITS] == list(WALKS)


@pytest.mark.parametrize("code", STATUS)
def test_error_bodies(code: str) -> None:
    error = ContractError(code, "why", outcome="unknown", request_id="example:1")
    assert error.status == STATUS[code]
    assert msgspec.json.decode(encode_error(error)) == {
        "contract_version": 1,
        "request_id": "example:1",
        "error": {"code": code, "outcome": "unknown", "message": "why"},
    }
    assert msgspec.json.decode(encode_error(ContractError(code, "why")))["request_id"] is None


@pytest.mark.parametrize(
    ("seconds", "header"), [(None, None), (0.0, "1"), (0.2, "1"), (1.0, "1"), (1.5, "2"), (30.0, "30")]
)
def test_retry_after(seconds: float | None, header: str | None) -> None:
    assert retry_after_header(ContractError("capability_unavailable", "x", retry_after=seconds)) == header
