"""Messages on their way out: redaction, bounds, control characters; and the log's lines."""

from __future__ import annotations

import random
import re
import unicodedata

from fuzz.mutate import damaged
from pumas.contract.limits import MAX_MESSAGE_CHARACTERS
from pumas.contract.redact import redact
from pumas.log import escape
from tests.contract.test_redact import PLANTED

INVARIANT = (
    "Whatever surrounds a planted credential, it does not leave; what leaves is bounded, and neither it nor a log "
    "line holds a character that steers a terminal or forges a line."
)
_PLANTS = list(PLANTED.values())
_STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_FRAGMENTS = (
    *(
        b"Authorization: ",
        b"Bearer ",
        b"password=",
        b"token=",
        b'"',
        b"'",
        b"://",
        b"@",
        b"-----BEGIN ",
        b"PRIVATE KEY-----",
    ),
    *(
        b"sk-",
        b"ghp_",
        b"eyJ",
        b"\x1b[31m",
        b"\xe2\x80\xae",
        b"\r\n",
        b"=" * 50,
        b"a" * 900,
        b"a:" * 200,
        b": " * 100,
        b"-" * 99,
    ),
)


def check(data: bytes) -> None:
    """The first byte chooses the credential; what is before the first NUL precedes it, the rest follows it."""
    message, secret = _PLANTS[data[0] % len(_PLANTS)] if data else _PLANTS[0]
    before, _, behind = data[1:].decode("utf-8", "surrogateescape").partition("\0")
    for text in (f"{before}\n{message}\n{behind}", f"{before[:200]} {message} {behind}"):
        left = redact(text)
        assert secret not in left, (secret, left)
        assert len(left) <= 8 * MAX_MESSAGE_CHARACTERS
        assert not _STEERING.search(left)
    line = escape(before + behind)
    assert not _STEERING.search(line)
    assert "\n" not in line
    assert all(unicodedata.category(c) not in ("Cc", "Zl", "Zp", "Cs") for c in line)


def generate(rng: random.Random) -> bytes:
    before = damaged(rng, b"the upstream server said ", _FRAGMENTS) * rng.choice((1, 1, 1, 60))
    behind = damaged(rng, b" and closed the connection", _FRAGMENTS)
    return bytes([rng.randrange(256)]) + before.replace(b"\0", b"") + b"\0" + behind
