"""How secrets are compared: every one, whole, in constant time, whatever was given."""

from __future__ import annotations

import hmac
from typing import Any

import pytest

from pumas.http.guard import Guard, Policy
from synapse.errors import RemoteProtocolError
from synapse.wire import messages as m
from synapse.wire.connection import Connection
from synapse.wire.state import Role
from tests.wire.pair import NONCE, PID, feed

KEYS = (b"first", b"a-second-and-longer-key")


class Comparisons:
    """`hmac.compare_digest`, and what it was given."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self._compare = hmac.compare_digest

    def __call__(self, a: Any, b: Any) -> bool:
        self.pairs.append((a, b))
        return self._compare(a, b)


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Comparisons:
    found = Comparisons()
    monkeypatch.setattr(hmac, "compare_digest", found)
    return found


@pytest.mark.parametrize(
    "given", ["first", "a-second-and-longer-key", "f", "", "fir\u00e9t", "x" * 5000, "firsu", "first "]
)
async def test_every_key_is_compared_by_digests_of_one_length(comparisons: Comparisons, given: str) -> None:
    """Neither the number of comparisons nor their sizes tell how near a guess is."""
    answers: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answers.append(200)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answers.append(message["status"])

    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + given.encode())]
    scope = {"type": "http", "method": "GET", "scheme": "http", "path": "/v1/models", "headers": headers, "state": {}}
    await Guard(app, Policy(api_keys=KEYS))(scope, None, send)  # type: ignore[arg-type]
    assert answers == [200 if given.strip().encode() in KEYS else 401]
    assert [(len(a), len(b)) for a, b in comparisons.pairs] == [(32, 32)] * len(KEYS)


def test_the_nonce_is_compared_in_constant_time(comparisons: Comparisons) -> None:
    module = Connection(Role.MODULE, nonce=NONCE, pid=PID)
    worker = Connection(Role.WORKER)
    hello = m.Hello(v=1, nonce="f" + NONCE[1:], engine=m.EngineInfo("x", "1"), pid=PID, max_frame=2**20)
    with pytest.raises(RemoteProtocolError, match="nonce"):
        feed(module, b"".join(bytes(part) for part in worker.send(hello)))
    assert comparisons.pairs == [(hello.nonce.encode(), NONCE.encode())]
