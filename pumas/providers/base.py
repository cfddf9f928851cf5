"""The one interface between the routes and whatever runs a model: synapse's lanes, llama-server, Ollama, others.

Nothing above it knows which one it talks to. A provider raises ContractError only, with `not_admitted` as long as
nothing of the operation left this process (decision C3), and gives checked results only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from pumas.contract.descriptors import ServedModel
from pumas.operations import (
    Decide,
    Decisions,
    Embed,
    Embeddings,
    GeneratedImage,
    GenerateImage,
    GenerateText,
    Rerank,
    Scores,
    TextStream,
)


class Forwarded(Protocol):
    """An upstream's answer on an OpenAI route, passed on as it comes (decision D13)."""

    status: int
    content_type: str
    retry_after: str | None
    is_stream: bool
    """An event stream is passed on as it comes; anything else is read whole before the answer begins."""

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes; use under aclosing. Raises ContractError (transport_lost, response_limit)."""


class LaneHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Stamped state of one served model; reading it never waits (W10)."""

    model: str
    profile: str
    state: str
    age_s: float
    degraded: bool = False
    detail: dict[str, str] = {}


class Provider(Protocol):
    """One served (alias, profile). Every method may raise ContractError; all but the first two block.

    Cancelling a call disposes the operation: queued work is withdrawn, running work is cancelled (C8).
    """

    def snapshot(self) -> ServedModel:
        """Its identity, state and descriptors now. Never waits."""

    def health(self) -> LaneHealth: ...

    def generate(self, operation: GenerateText) -> AbstractAsyncContextManager[TextStream]:
        """Enters when the operation is admitted, before the first token."""

    async def embed(self, operation: Embed) -> Embeddings: ...

    async def rerank(self, operation: Rerank) -> Scores: ...

    async def decide(self, operation: Decide) -> Decisions: ...

    async def generate_image(self, operation: GenerateImage) -> GeneratedImage: ...

    async def probe(self) -> None:
        """Try a quarantined or failed model again (D6)."""

    def forward(self, route: str, body: bytes) -> AbstractAsyncContextManager[Forwarded] | None:
        """Pass an OpenAI route's request on to an upstream; None where this provider has none (the route then uses
        the operations above). `route` as in `/v1/chat/completions`; `body` is the request's JSON as it came."""
