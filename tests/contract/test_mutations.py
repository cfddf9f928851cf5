"""A request broken in any place is refused with the right code, the caller's ID and nothing else (P21)."""

from __future__ import annotations

import collections
import random

import msgspec
import pytest

from pumas.contract.errors import ContractError
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from pumas.translate import to_operation
from tests.contract.mutate import echoed_id, mutate
from tests.contract.samples import SERVED, VALID

EXAMPLES = 20_000


@pytest.mark.parametrize("name", VALID)
def test_valid_requests_become_operations(name: str) -> None:
    to_operation(resolve(decode_operation(msgspec.json.encode(VALID[name])), SERVED))


def refusal(body: bytes) -> ContractError | None:
    """What a body is refused with; every other exception is a failure of the test."""
    try:
        to_operation(resolve(decode_operation(body), SERVED))
    except ContractError as error:
        return error
    return None


def test_every_mutation_is_refused_as_it_must_be() -> None:
    rng = random.Random(20_261_129)
    seen: collections.Counter[str] = collections.Counter()
    for _ in range(EXAMPLES):
        mutant = mutate(rng)
        seen[mutant.kind] += 1
        error = refusal(mutant.body)
        if error is None:
            assert mutant.code is None, mutant
        else:
            assert error.outcome == "not_admitted", mutant
            assert 400 <= error.status <= 503, mutant
            assert error.code == (mutant.code or error.code), (mutant, error)
            assert error.request_id == echoed_id(mutant.body), (mutant, error)
    assert min(seen.values()) > EXAMPLES // 40, seen
