"""One table turns synapse's errors into the contract's; no class may be missing, and no log tail may leave."""

from __future__ import annotations

import pytest

from pumas.contract.errors import STATUS, ContractError
from pumas.providers.synapse_errors import TABLE, contract_error, translated
from synapse import errors


def classes(root: type[errors.SynapseError] = errors.SynapseError) -> list[type[errors.SynapseError]]:
    return [root, *(found for child in root.__subclasses__() for found in classes(child))]


EXAMPLES: dict[type[errors.SynapseError], errors.SynapseError] = {
    errors.Overloaded: errors.Overloaded("requests", 5, 4),
    errors.InvalidInput: errors.InvalidInput("bad", field="grammar"),
    errors.InputTooLarge: errors.InputTooLarge("the number of tokens", 9, 8, index=3),
    errors.LaneUnavailable: errors.LaneUnavailable("model_restarting", "wait", 2.0),
    errors.Quarantined: errors.Quarantined("crashed", 3),
    errors.EngineCrashed: errors.EngineCrashed("request", "signal 9", exit_status=-9, log_tail="a secret prompt"),
    errors.EngineRefused: errors.EngineRefused("oom", "too big"),
}


@pytest.mark.parametrize("kind", [kind for kind in classes() if kind.__module__ == "synapse.errors"])
def test_every_class_has_a_row(kind: type[errors.SynapseError]) -> None:
    assert kind in TABLE
    error = contract_error(EXAMPLES.get(kind) or kind("words"))
    assert error.code in STATUS
    expected = "not_admitted" if issubclass(kind, errors.NotAdmitted | errors.SetupError) else "unknown"
    assert error.outcome == expected
    assert "secret" not in error.message


def test_what_others_need_to_know() -> None:
    too_large = contract_error(EXAMPLES[errors.InputTooLarge])
    assert (too_large.code, too_large.kind) == ("request_limit", "context_length")
    assert "item 3" in too_large.message
    assert "9" in too_large.message
    assert "8" in too_large.message
    assert contract_error(EXAMPLES[errors.Overloaded]).retry_after == 1.0
    assert contract_error(EXAMPLES[errors.LaneUnavailable]).retry_after == 2.0
    assert contract_error(EXAMPLES[errors.InvalidInput]).field == "grammar"


def test_a_crash_is_marked_as_logged_and_a_quarantine_says_the_way_out() -> None:
    with pytest.raises(ContractError) as crashed, translated("m"):
        raise EXAMPLES[errors.EngineCrashed]
    assert crashed.value.logged
    with pytest.raises(ContractError) as parked, translated("m"):
        raise EXAMPLES[errors.Quarantined]
    assert parked.value.message.endswith("pumas probe m")
    assert not parked.value.logged
