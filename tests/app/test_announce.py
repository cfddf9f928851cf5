"""What is printed when everything is ready can be used as it is printed."""

from __future__ import annotations

import shlex

from pumas.announce import announcement
from pumas.config import Config, Server
from pumas.contract.describe import LaneFacts, lane_capabilities, lane_modalities
from pumas.contract.descriptors import ServedModel
from tests.gateway import Gateway


def served(profile: str, state: str = "loaded") -> ServedModel:
    facts = LaneFacts(role="generate", chat=True, context=64, reason=None if state == "loaded" else state)
    return ServedModel(
        model="it's",
        profile=profile,
        model_id="sha256:0",
        provider="llama.cpp",
        load_state=state,  # type: ignore[arg-type]
        context_tokens=64,
        modalities=lane_modalities(facts),
        capabilities=lane_capabilities(facts),
        detail={},
    )


def test_lines_name_the_profile_the_key_and_an_address_that_answers() -> None:
    config = Config(server=Server(host="0.0.0.0", api_key_file="/k ey"))
    both = [served("one"), served("two", "quarantined")]
    lines = announcement(["http://0.0.0.0:80"], both, config, keyed=True)
    curl = shlex.split(next(line for line in lines if "/v1/chat/completions" in line))
    assert curl[:4] == ["curl", "http://127.0.0.1:80/v1/chat/completions", "-H", "Authorization: Bearer $(cat '/k ey')"]
    assert '"model":"it\'s","profile":"one"' in curl[-1]
    again = next(line for line in lines if "quarantined" in line).partition(" probe ")[2]
    assert shlex.split(again) == ["it's", "--profile", "two", "--url", "http://127.0.0.1:80"]
    assert lines[-1] == "ready on http://127.0.0.1:80"
    assert "warning: 1 of 2 cannot be served: it's (two)" in lines


def test_a_unix_socket_alone_has_lines_too() -> None:
    lines = announcement(["unix:/run/p.sock"], [served("default")], Config(), keyed=False)
    curl = shlex.split(next(line for line in lines if "/v1/chat/completions" in line))
    assert curl[:4] == ["curl", "--unix-socket", "/run/p.sock", "http://localhost/v1/chat/completions"]
    assert "Authorization" not in "".join(lines)


def test_the_examples_are_answered(gateway: Gateway) -> None:
    """Every curl line of a real gateway, sent as it says."""
    lines = [shlex.split(line) for line in gateway.lines if line.startswith("  curl ")]
    assert len(lines) == 4
    for line in lines:
        path = line[1].removeprefix(gateway.url)
        reply = gateway.post(path, line[-1].encode()) if "-d" in line else gateway.get(path)
        assert reply.status == 200, reply.body
