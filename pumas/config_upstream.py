"""`[[upstream]]` of pumas.toml: its keys, and which of them go together."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pumas.providers.upstream.facts import OFFERED
from pumas.providers.upstream.url import parse_url

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]


class Upstream(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A model behind another server: one that runs (`url`), or a llama-server that is run here (`path`)."""

    name: str
    """The alias that clients send."""
    kind: Literal["llama-server", "ollama", "openai"]
    """Which protocol and habits the server has."""
    url: str | None = None
    """Its base URL without /v1: http://, https://, or unix: and a socket's path."""
    model: str | None = None
    """With `url`: the name it knows the model by. Default: `name`."""
    profile: str = "default"
    """As for models."""
    capabilities: tuple[str, ...] = ()
    """Where the server does not say what it can: the contract's names of capabilities."""
    api_key_file: str | None = None
    """With `url`: file with the key that is sent to it, mode 0600."""
    requests: Positive = 256
    """Requests that are at the server at the same time; more wait here, for at most limits.max_queue_s."""
    path: str | None = None
    """The GGUF that a llama-server is started for; it is supervised as workers are."""
    program: str | None = None
    """With `path`: the llama-server to run. Default: the one in PATH, else the one of the package xllamacpp."""
    mmproj: str | None = None
    """With `path`: the projector for images and audio."""
    context: Positive | None = None
    """With `path`: tokens of all slots together. Default: what the model was trained for."""
    parallel: Positive = 1
    """With `path`: slots."""
    threads: Positive | None = None
    """With `path`: threads of the server. Default: its own choice."""
    cache_type: Literal["f16", "q8_0"] = "f16"
    """With `path`: type of the KV cache."""
    arguments: tuple[str, ...] = ()
    """With `path`: further arguments of llama-server, as they are."""


_WITH_PATH = ("program", "mmproj", "context", "parallel", "threads", "cache_type", "arguments")
_WITH_URL = ("model", "api_key_file")


def check_upstream(upstream: Upstream) -> None:
    """What no single key shows. Raises: ValueError with the remedy, in one line."""
    if (upstream.url is None) == (upstream.path is None):
        raise ValueError("give either url (a server that runs) or path (a GGUF to run llama-server for)")
    if upstream.path is not None and upstream.kind != "llama-server":
        raise ValueError(f"path is for kind llama-server; of kind {upstream.kind} only a url is possible")
    defaults = {field.name: field.default for field in msgspec.structs.fields(Upstream)}
    other, needs = (_WITH_PATH, "path") if upstream.path is None else (_WITH_URL, "url")
    for key in other:
        if getattr(upstream, key) != defaults[key]:
            raise ValueError(f"{key} goes with {needs} only")
    if upstream.url is not None:
        try:
            parse_url(upstream.url)
        except ValueError as error:
            raise ValueError(f"url: {error}") from None
    for name in upstream.capabilities:
        if name not in OFFERED[upstream.kind]:
            known = ", ".join(sorted(OFFERED[upstream.kind]))
            raise ValueError(f"capability {name!r} is none of kind {upstream.kind}, which can: {known}")
