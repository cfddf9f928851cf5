"""One model behind an upstream server, as a provider: observed now and then, asked once for each operation.

`admitted` is the first byte that is written to the server's connection (see client); nothing is ever sent twice.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import trio

from pumas.contract.descriptors import LoadState, ServedModel
from pumas.contract.errors import ContractError
from pumas.contract.results import cut, invalid_result
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
from pumas.providers.base import LaneHealth
from pumas.providers.upstream import bodies, results
from pumas.providers.upstream.client import Upstream, UpstreamResponse
from pumas.providers.upstream.facts import Kind, Observed, served
from pumas.providers.upstream.observe import OBSERVERS
from pumas.providers.upstream.stream import FiniteText, UpstreamTextStream
from synapse import Limits, SynapseError
from synapse.server import ManagedServer

logger = logging.getLogger("pumas.upstream")

FRESH_S = 1.0
"""An observation so old is made again before an operation is handed over: the same identity must still be served."""
MAX_REFUSAL_BYTES = 1024 * 1024
FORWARDED = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank"})
"""The OpenAI routes that are passed on as they come (D13)."""


class UpstreamProvider:
    """See pumas.providers.base.Provider. `watch` must run for as long as it is used; it is one of two that write what
    was seen, the other is the check before an operation: both replace it whole."""

    def __init__(
        self,
        alias: str,
        profile: str,
        kind: Kind,
        upstream: Upstream,
        *,
        name: str | None = None,
        recorded: tuple[str, ...] = (),
        server: ManagedServer | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`server`: the program behind `upstream`, where we run it."""
        self.alias, self.profile, self.kind = alias, profile, kind
        self._upstream, self._name, self._recorded = upstream, name or alias, recorded
        self._server, self._limits = server, limits or Limits()
        self._observed: Observed | None = None
        self._failure: ContractError | None = None
        self._seen = trio.current_time()

    # --- observation --------------------------------------------------------------------------------------------------

    async def watch(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Observe the server again and again; started after the first time. Never raises for what the server does."""
        while True:
            await self._observe()
            task_status.started()
            await trio.sleep(self._limits.ping_every_s if self._failure is None else self._limits.ping_s)

    async def _observe(self) -> None:
        """Bounded by the limit of a PING: asking what a model is does no work."""
        try:
            with trio.fail_after(self._limits.ping_s):
                observed = await OBSERVERS[self.kind](self._upstream, self._name, self._recorded)
        except ContractError as error:
            self._fail(error)
        except trio.TooSlowError:
            message = f"the provider {self._upstream.provider} did not answer within {self._limits.ping_s:g} s"
            self._fail(ContractError("capability_unavailable", message, retry_after=1.0))
        else:
            self._observed, self._failure, self._seen = observed, None, trio.current_time()

    def _fail(self, error: ContractError) -> None:
        if self._failure is None:
            logger.warning("%s: %s", self.alias, error.message)
        self._failure = error

    def _state(self) -> tuple[LoadState, str | None]:
        """(load state, why it takes no work)."""
        if self._server is not None and (gone := self._server.unavailable()) is not None:
            state: LoadState = "quarantined" if gone.reason == "quarantined" else "loading"
            return ("failed" if gone.reason == "runtime_unavailable" else state), gone.reason
        if self._failure is not None or self._observed is None:
            return "failed", "runtime_unavailable"
        observed = self._observed
        return observed.load_state, "runtime_unavailable" if observed.load_state == "failed" else None

    def snapshot(self) -> ServedModel:
        state, reason = self._state()
        return served(self.alias, self.profile, self._upstream.provider, self.kind, self._observed, state, reason)

    def health(self) -> LaneHealth:
        state, reason = self._state()
        seen = max(self._seen, self._server.seen) if self._server is not None else self._seen
        detail = {} if reason is None else {"reason": reason}
        return LaneHealth(
            model=self.alias, profile=self.profile, state=state, age_s=trio.current_time() - seen, detail=detail
        )

    async def _admit(self) -> str:
        """The model's name there, seen no longer than FRESH_S ago. Raises ContractError, not_admitted."""
        if self._server is not None and (gone := self._server.unavailable()) is not None:
            raise ContractError("capability_unavailable", f"{gone.reason}: {gone}", retry_after=gone.retry_after)
        if self._observed is None or self._failure is not None or trio.current_time() - self._seen > FRESH_S:
            before = self._observed
            await self._observe()
            if self._failure is None and before is not None and before.name != getattr(self._observed, "name", None):
                raise ContractError("capability_unavailable", f"{self.alias} is another model now", retry_after=1.0)
        if self._failure is not None or self._observed is None:
            why = "it was not observed" if self._failure is None else self._failure.message
            raise ContractError("capability_unavailable", f"runtime_unavailable: {why}", retry_after=1.0)
        return self._observed.name

    # --- operations ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _ask(self, request: Callable[[str], tuple[bytes, bytes]]) -> AsyncIterator[UpstreamResponse]:
        """Send one operation; enter with a 200. Where our own program died meanwhile, that is the failure (D4)."""
        name = await self._admit()
        path, body = request(name)
        generation = None if self._server is None else self._server.generation
        try:
            async with self._upstream.request(b"POST", path, body) as response:
                if response.status != 200:
                    data = await response.read(MAX_REFUSAL_BYTES)
                    raise results.refusal(self._upstream.provider, response.status, data)
                yield response
        except ContractError as error:
            if error.code == "transport_lost" and self._server is not None and await self._died(generation):
                raise ContractError(
                    "provider_failure", f"{self.alias}: the engine's server crashed", outcome="unknown"
                ) from error
            raise

    async def _died(self, generation: int | None) -> bool:
        """Whether the program of `generation` is gone, which its supervisor may notice a moment after us."""
        server = self._server
        assert server is not None
        with trio.move_on_after(self._limits.ping_s) as patience:
            await server.gone(generation or 0)
        return not patience.cancelled_caught

    @asynccontextmanager
    async def generate(self, operation: GenerateText) -> AsyncIterator[TextStream]:
        async with self._ask(lambda name: bodies.generate(operation, name)) as response:
            if not operation.stream:
                said = results.text(await response.read())
                assert said.delta is not None
                assert said.finish_reason is not None
                assert said.usage is not None
                yield FiniteText(said.delta.text, said.finish_reason, said.usage)
                return
            if not response.content_type.lower().startswith("text/event-stream"):
                raise invalid_result("the provider did not answer with an event stream")
            yield UpstreamTextStream(response, self._upstream.provider)

    async def embed(self, operation: Embed) -> Embeddings:
        async with self._ask(lambda name: bodies.embed(operation, name)) as response:
            found = results.embeddings(await response.read(), len(operation.inputs))
        if operation.dimensions is None:
            return found
        return Embeddings(cut(found.vectors, operation.dimensions), found.input_tokens)

    async def rerank(self, operation: Rerank) -> Scores:
        async with self._ask(lambda name: bodies.rerank(operation, name)) as response:
            return results.scores(await response.read(), len(operation.documents))

    async def decide(self, operation: Decide) -> Decisions:
        async with self._ask(lambda name: bodies.decide(operation, name)) as response:
            return results.decisions(await response.read(), operation)

    async def generate_image(self, operation: GenerateImage) -> GeneratedImage:
        raise ContractError("capability_unavailable", f"image_generation of {self.alias}: model_task_mismatch")

    async def probe(self) -> None:
        """Try again now: a managed program from quarantine, any other by observing it."""
        if self._server is not None:
            try:
                await self._server.probe()
            except (SynapseError, OSError) as error:
                raise ContractError("capability_unavailable", f"{self.alias}: {error}") from error
        await self._observe()
        if self._failure is not None:
            raise self._failure

    def forward(self, route: str, body: bytes) -> AbstractAsyncContextManager[Passed] | None:
        return self._forward(route, body) if route in FORWARDED else None

    @asynccontextmanager
    async def _forward(self, route: str, body: bytes) -> AsyncIterator[Passed]:
        name = await self._admit()
        async with self._upstream.request(b"POST", route.encode(), bodies.with_model(body, name)) as response:
            yield Passed(response)


class Passed:
    """pumas.providers.base.Forwarded: status, type and bytes as they come, bounded as a response is."""

    def __init__(self, response: UpstreamResponse) -> None:
        self.status, self.content_type, self._response = response.status, response.content_type, response

    def chunks(self) -> AsyncGenerator[bytes, None]:
        return self._response.chunks()
