"""Credential-shaped text is taken out of every message that leaves (contract, Errors).

Every pattern is a fixed prefix followed by one bounded or possessive run, so the time is linear in the input, which is
bounded itself. What looks like a credential and is none is lost from a message; that is the cheaper mistake.
"""

from __future__ import annotations

import re

from pumas.contract.limits import MAX_MESSAGE_BYTES

REDACTED = "[redacted]"

_NAMES = (
    r"(?:x-)?api[-_ ]?key|apikey|access[-_]?key(?:[-_]?id)?|secret[-_]?(?:access[-_]?)?key|account[-_]?key|shared[-_]?access[-_]?key"
    r"|(?:access|auth|refresh|id|session|bearer|api|csrf|security)[-_]?token|client[-_]?secret|private[-_]?key"
    r"|passw(?:or)?d|passphrase|pwd|secret|credentials?"
)
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # A private key, also one that was cut off before its end.
    (re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?!-----END ).)*+(?:-----END [A-Z0-9 ]{0,40}-----)?", re.S), REDACTED),
    # A header with a scheme, with or without the header's name.
    (re.compile(r"\b(authorization|proxy-authorization)([\"']?\s{0,4}[:=]\s{0,4}[\"']?)(?:[A-Za-z-]{1,32}\s{1,4})?[^\s\"',;]++", re.I), rf"\1\2{REDACTED}"),
    (re.compile(r"\b(bearer|basic|digest|negotiate)(\s{1,4})[A-Za-z0-9+/=._~-]{8,}+", re.I), rf"\1\2{REDACTED}"),
    (re.compile(r"\b(cookie|set-cookie)(\s{0,4}:\s{0,4})[^\r\n]++", re.I), rf"\1\2{REDACTED}"),
    # user:password@ in a URL.
    (re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]{0,24}://)[^\s/@?#\"']{1,512}+@"), rf"\1{REDACTED}@"),
    # name = value, name: value, "name": "value", ?name=value
    (re.compile(rf"(?<![A-Za-z0-9])((?:[A-Za-z0-9]{{1,20}}[-_]){{0,3}}(?:{_NAMES}))([\"'`]?\s{{0,4}}[:=]\s{{0,4}})(?:\"[^\"]*+\"?|'[^']*+'?|[^\s\"',;&)}}\]]++)", re.I), rf"\1\2{REDACTED}"),
    (re.compile(r"(?<![A-Za-z0-9_])(token|key|sig|signature)([\"']?\s{0,4}[:=]\s{0,4}[\"']?)(?=[^\s\"',;&]{0,64}?[A-Za-z])[^\s\"',;&)}\]]{12,}+", re.I), rf"\1\2{REDACTED}"),
    # Vendors' own shapes.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]{0,4096}+){1,4}"), REDACTED),
    (re.compile(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}+"), REDACTED),
    (re.compile(r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}+"), REDACTED),
    (re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|glptt-|hf_|npm_|pypi-|xox[a-z]-|xapp-|dop_v1_|shpat_|r8_|gsk_|nvapi-|lin_api_|pat-)[A-Za-z0-9_-]{10,}+"), REDACTED),
    (re.compile(r"\bAIza[A-Za-z0-9_-]{20,}+"), REDACTED),
    (re.compile(r"\bya29\.[A-Za-z0-9_-]{10,}+"), REDACTED),
    (re.compile(r"\bSG\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"), REDACTED),
    (re.compile(r"\b(?:AC|SK)[0-9a-f]{32}\b"), REDACTED),
    (re.compile(r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}+"), REDACTED),
    (re.compile(r"\bhooks\.slack\.com/services/[A-Za-z0-9/]{8,}+"), REDACTED),
)  # fmt: skip


def redact(message: str, limit: int = MAX_MESSAGE_BYTES) -> str:
    """Bound a message to `limit` characters, escape its control characters and take out credential-shaped text.

    Where the message is cut, its last word goes too: half a credential would not be recognised.
    """
    if len(message) > limit:
        cut = message[:limit]
        message = cut[: max(cut.rfind(" "), cut.rfind("\n"), limit - 512)] + " ..."
    for pattern, replacement in _PATTERNS:
        message = pattern.sub(replacement, message)
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", message)


_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]")
