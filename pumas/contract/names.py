"""The rules for a serving alias and a profile (contract, Endpoints; decision C11)."""

from __future__ import annotations

import re

from pumas.contract.limits import MAX_MODEL_BYTES, MAX_PROFILE

_PROFILE = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_PROFILE}}}", re.A)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_model_name(model: str) -> None:
    """Raises: ValueError: not a nonempty, trimmed alias of at most 256 bytes without control characters."""
    if not model:
        raise ValueError("`model` is empty")
    if model != model.strip():
        raise ValueError("`model` begins or ends with white space")
    if (size := len(model.encode(errors="surrogatepass"))) > MAX_MODEL_BYTES:
        raise ValueError(f"`model` is {size} bytes long, over the limit of {MAX_MODEL_BYTES}")
    if _CONTROL.search(model):
        raise ValueError("`model` holds a control character")


def check_profile_name(profile: str) -> None:
    """Raises: ValueError: not 1 to 128 of A-Z a-z 0-9 _ . - (decision C11)."""
    if not _PROFILE.fullmatch(profile):
        raise ValueError(f"`profile` is `{profile[:64]}`, not 1 to {MAX_PROFILE} of A-Z a-z 0-9 _ . -")
