"""Credential-shaped text is taken out of every message that leaves (contract, Errors).

Every pattern is a fixed beginning followed by bounded or possessive runs, so one search is linear in the input, which
is bounded itself. What looks like a credential and is none is lost from a message; that is the cheaper mistake.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pumas.contract.limits import MAX_MESSAGE_CHARACTERS

REDACTED = "[redacted]"

_SEPARATOR = r"[\"'`]?\s{0,4}[:=]\s{0,4}"
_VALUE = r"(?:\"[^\"]*+\"?|'[^']*+'?|[^\s\"',;&)}\]]++)"
_SECRET_NAMES = "|".join(
    (
        r"api[-_ ]?key",
        r"access[-_]?key(?:[-_]?id)?",
        r"(?:secret|account|private|signing|encryption|master)[-_]?(?:access[-_]?)?key",
        r"(?:access|auth|refresh|id|session|bearer|api|csrf|xsrf|security|bot)[-_]?token",
        r"passw(?:or)?d|passphrase|pwd|secret|credentials?",
    )
)
_VENDOR_PREFIXES = "|".join(
    (
        r"gh[pousr]_|github_pat_|glpat-|glptt-",  # GitHub, GitLab
        r"hf_|npm_|pypi-|r8_|gsk_|nvapi-|lin_api_|shpat_|dop_v1_|pat-",  # registries, model hosts, others
        r"xox[a-z]-|xapp-",  # Slack
    )
)


_LONGEST_NAME = 128


def _whole(pattern: str) -> re.Pattern[str]:
    return re.compile(f"(?P<secret>{pattern})", re.S)


def _behind(beginning: str, secret: str, flags: re.RegexFlag = re.I) -> re.Pattern[str]:
    """Keep what the credential stands behind: it says what went wrong."""
    return re.compile(f"{beginning}(?P<secret>{secret})", flags)


_PATTERNS = (
    # A private key, also one that was cut off before its end.
    _whole(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----(?:(?!-----END ).)*+(?:-----END [A-Z0-9 ]{0,40}-----)?"),
    # Headers; a scheme and a value without the header's name.
    _behind(rf"\b(?:proxy-)?authorization{_SEPARATOR}[\"']?(?:[a-z-]{{1,32}}\s{{1,4}})?", r"[^\s\"',;]++"),
    _behind(r"\b(?:set-)?cookie\s{0,4}[:=]\s{0,4}", r"[^\r\n]++"),
    _behind(
        r"\b(?:[Bb]earer|BEARER|[Bb]asic|BASIC|[Dd]igest|[Tt]oken)\s{1,4}",
        r"(?=[^\s]{0,256}?(?:[0-9=_~+/]|[a-z][A-Z]))[A-Za-z0-9+/=._~-]{8,}+",
        re.NOFLAG,
    ),
    # user:password@ in a URL.
    _behind(r"\b[a-z][a-z0-9+.-]{0,24}://", r"[^\s/@?#\"']{1,512}+(?=@)"),
    # name=value, name: value, "name": "value", ?name=value
    _behind(rf"(?<![a-z0-9])(?:[a-z0-9]{{1,20}}[-_]){{0,3}}(?:{_SECRET_NAMES}){_SEPARATOR}", _VALUE),
    _behind(
        rf"(?<![a-z0-9_])(?:token|key|sig|signature){_SEPARATOR}[\"']?",
        r"(?=[^\s\"',;&]{0,64}?[a-z])[^\s\"',;&)}\]]{12,}+",
    ),
    # Shapes that vendors gave their credentials.
    _whole(r"\beyJ[A-Za-z0-9_-]{8,}+(?:\.[A-Za-z0-9_-]*+){1,4}"),  # JSON web tokens
    _whole(r"\b(?:sk|pk|rk)[-_][A-Za-z0-9_-]{12,}+"),
    _whole(r"\b(?:A3T[A-Z0-9]|AKIA|ASIA|AGPA|AIDA|AROA|ANPA)[A-Z0-9]{12,}+"),
    _whole(rf"\b(?:{_VENDOR_PREFIXES})[A-Za-z0-9_-]{{10,}}+"),
    _whole(r"\bAIza[A-Za-z0-9_-]{20,}+"),
    _whole(r"\bya29\.[A-Za-z0-9_-]{10,}+"),
    _whole(r"\bSG\.[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]{10,}+"),
    _whole(r"\b(?:AC|SK)[0-9a-f]{32}\b"),
    _whole(r"\b[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}+"),
    _behind(r"\bhooks\.slack\.com/services/", r"[A-Za-z0-9/]{8,}+"),
)

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def redact(message: str, limit: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Bound a message to `limit` characters, take out credential-shaped text and escape control characters.

    Where the message is cut, its last word goes too: half a credential would not be recognised.
    """
    if len(message) > limit:
        cut = message[:limit]
        message = cut[: max(cut.rfind(" "), cut.rfind("\n"), limit - 512)] + " ..."
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", without_credentials(message))


def without_credentials(message: str) -> str:
    """The same text, of any length, with only the credential-shaped parts of it taken out."""
    pieces: list[str] = []
    end = 0
    for first, last in sorted(_secrets(message)):
        if first > end or not pieces:
            pieces += [message[end:first], REDACTED]
        end = max(end, last)
    return "".join([*pieces, message[end:]])


def _secrets(message: str) -> Iterator[tuple[int, int]]:
    """Where credentials stand. Every pattern looks at the whole message, so that none hides from it what another took
    for a credential; what looks like one may itself be the name of one (`password: api_key: ...`) if it is short."""
    for pattern in _PATTERNS:
        at = 0
        while found := pattern.search(message, at):
            start, end = found.span("secret")
            yield start, end
            at = start if found.start() < start and end - start <= _LONGEST_NAME else end
