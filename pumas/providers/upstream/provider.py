"""One model behind an upstream server, as a provider: observed now and then, asked once for each operation.

`admitted` is the first byte that is written to the server's connection (see client); nothing is ever sent twice.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec
import trio

from pumas.contract.descriptors import Available, LoadState, ServedModel
from pumas.contract.errors import ContractError
from pumas.contract.redact import redact
from pumas.contract.resolve import unavailable
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
from pumas.providers.upstream.facts import Kind, Observed, served, short_digest
from pumas.providers.upstream.managed import ManagedLlama
from pumas.providers.upstream.observe import OBSERVERS, Wanted
from pumas.providers.upstream.stream import FiniteText, UpstreamTextStream
from synapse import Limits, SynapseError
from synapse.server import ManagedServer

logger = logging.getLogger("pumas.upstream")

FRESH_S = 1.0
"""An observation so old is made again before an operation is handed over: the same identity must still be served."""
RETRY_S = 1.0
"""After so long a server that did not answer is asked again."""
MAX_REFUSAL_BYTES = 1024 * 1024
FORWARDED = {
    "/v1/chat/completions": "chat_generation",
    "/v1/completions": "text_generation",
    "/v1/embeddings": "text_embedding",
    "/v1/rerank": "rerank",
}
"""The OpenAI routes that are passed on as they come (D13), and what the model must be able to do for each."""
STATES: dict[str, LoadState] = {
    "quarantined": "quarantined",
    "model_loading": "loading",
    "model_restarting": "loading",
}
"""Load state by the reason why our program takes no work; `failed` for the rest."""
END_MARK = re.compile(rb"(?:^|[\r\n])data: ?\[DONE\]\s*$")
TAIL_BYTES = 64
Request = tuple[bytes, bytes]
"""(path, body)."""
T = TypeVar("T")


class UpstreamProvider:
    """See pumas.providers.base.Provider. `watch` must run for as long as it is used; it is one of two that write what
    was seen, the other is the check before an operation: both replace it whole, one at a time."""

    def __init__(
        self,
        alias: str,
        profile: str,
        kind: Kind,
        upstream: Upstream,
        *,
        name: str | None = None,
        recorded: tuple[str, ...] = (),
        managed: ManagedLlama | None = None,
        requests: int = 256,
        limits: Limits | None = None,
    ) -> None:
        """Args:
        managed: the program behind `upstream`, where we run it; it then says what is recorded.
        requests: operations that are handed over at the same time; more wait for `limits.max_queue_s`.
        """
        self.alias, self.profile, self.kind = alias, profile, kind
        self._upstream, self._wanted, self._recorded = upstream, Wanted(name or alias, name is not None), recorded
        self._managed, self._limits = managed, limits or Limits()
        self._observed: Observed | None = None
        self._failure: ContractError | None = None
        self._seen = trio.current_time()
        self._tried = -math.inf
        self._asked = trio.Event()
        self._failed = trio.Event()
        self._observing = trio.Lock()
        self._permits = trio.CapacityLimiter(requests)

    # --- observation --------------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Start our program, if it is one; observe the server again and again. Never raises for what they do."""
        managed = self._managed
        if managed is not None:
            await managed.start()
        while True:
            while managed is not None and managed.unavailable() is not None:
                await managed.changed()
            await self._observe()
            if self._failure is not None:
                await trio.sleep(RETRY_S)
                continue
            self._failed = trio.Event()
            with trio.move_on_after(self._limits.ping_every_s):
                if managed is None:
                    await self._failed.wait()
                else:
                    await managed.changed()

    async def settled(self) -> str | None:
        """Wait until it was observed for the first time, or its program failed. Returns why it takes no work."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._until_failed, nursery.cancel_scope)
            await self._asked.wait()
            nursery.cancel_scope.cancel()
        return self._why()

    async def _until_failed(self, scope: trio.CancelScope) -> None:
        if self._managed is None:
            return
        try:
            while True:
                await self._managed.ready()
                await self._managed.changed()
        except SynapseError:
            scope.cancel()

    async def _observe(self, newer_than: float = math.inf) -> None:
        """Ask what the model is, unless somebody did, and was answered or not, after `newer_than` in trio's time.

        Bounded by the limit of a PING: asking what a model is does no work.
        """
        async with self._observing:
            if self._tried > newer_than:
                return
            recorded = self._recorded if self._managed is None else self._managed.recorded
            try:
                with trio.fail_after(self._limits.ping_s):
                    observed = await OBSERVERS[self.kind](self._upstream, self._wanted, recorded)
            except ContractError as error:
                self._fail(error)
            except trio.TooSlowError:
                message = f"the provider {self._upstream.provider} did not answer within {self._limits.ping_s:g} s"
                self._fail(ContractError("capability_unavailable", message))
            else:
                self._observed, self._failure, self._seen = observed, None, trio.current_time()
            self._tried = trio.current_time()
            self._asked.set()

    def _fail(self, error: ContractError) -> None:
        if self._failure is None:
            logger.warning("%s: %s", self.alias, redact(error.message))
        self._failure = error
        self._failed.set()

    def _state(self) -> tuple[LoadState, str | None]:
        """(load state, why it takes no work)."""
        if self._managed is not None and (gone := self._managed.unavailable()) is not None:
            return STATES.get(gone.reason, "failed"), gone.reason
        if self._failure is not None:
            return "failed", "runtime_unavailable"
        if self._observed is None:
            return "loading", "model_loading"
        state = self._observed.load_state
        return state, {"failed": "runtime_unavailable", "loading": "model_loading"}.get(state)

    def _why(self) -> str | None:
        """For the operator: why it takes no work."""
        if self._managed is not None and (gone := self._managed.unavailable()) is not None:
            return redact(str(gone))
        return None if self._failure is None else redact(self._failure.message)

    def snapshot(self) -> ServedModel:
        state, reason = self._state()
        why = self._why()
        made = served(self.alias, self.profile, self._upstream.provider, self.kind, self._observed, state, reason)
        if self._managed is not None and self._managed.digest:
            made = msgspec.structs.replace(made, model_id=short_digest(self._managed.digest))
        return made if why is None else msgspec.structs.replace(made, detail={"error": why})

    def health(self) -> LaneHealth:
        """`loaded` also where the server loads the model when it is asked: it takes work."""
        state, reason = self._state()
        server = None if self._managed is None else self._managed.server
        seen = self._seen if server is None else max(self._seen, server.seen)
        detail = {} if reason is None else {"reason": reason}
        if server is not None and server.pid is not None:
            detail["pid"] = str(server.pid)
        detail["running"] = str(self._permits.borrowed_tokens)
        detail["queued"] = str(self._permits.statistics().tasks_waiting)
        if reason is None and state != "loaded":
            detail["load_state"], state = state, "loaded"
        return LaneHealth(
            model=self.alias,
            profile=self.profile,
            state=state,
            age_s=trio.current_time() - seen,
            degraded=server is not None and server.degraded,
            detail=detail,
        )

    async def _admit(self, capability: str) -> str:
        """The model's name there, if it is still the one that the caller resolved against, seen no longer than FRESH_S
        ago (contract, Endpoints: admission checks the same serving identity again).

        Raises: ContractError, not_admitted.
        """
        if self._managed is not None and (gone := self._managed.unavailable()) is not None:
            raise ContractError("capability_unavailable", f"{gone.reason}: {gone}", retry_after=gone.retry_after)
        before = self._observed
        if before is None or self._failure is not None or trio.current_time() - self._seen > FRESH_S:
            now = trio.current_time()
            await self._observe(now - FRESH_S if self._failure is None else now)
        if self._failure is not None or self._observed is None:
            why = "it was not observed" if self._failure is None else self._failure.message
            raise ContractError("capability_unavailable", f"runtime_unavailable: {why}", retry_after=1.0)
        if before is not None and not before.is_same(self._observed):
            raise ContractError("capability_unavailable", f"`{self.alias}` is another model now", retry_after=1.0)
        descriptor = self.snapshot().capability(capability)
        if not isinstance(descriptor.availability, Available):
            raise unavailable(self.snapshot(), [descriptor])
        return self._observed.name

    # --- operations ---------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _ask(self, capability: str, request: Callable[[str], Request]) -> AsyncIterator[UpstreamResponse]:
        """Wait for a permit, which is kept to the end of the block; then as `_sent`."""
        holder = object()
        with trio.move_on_after(self._limits.max_queue_s) as patience:
            await self._permits.acquire_on_behalf_of(holder)
        if patience.cancelled_caught:
            most = int(self._permits.total_tokens)
            message = f"`{self.alias}` has {most} requests at its server; there was no place within max_queue"
            raise ContractError("capability_unavailable", message, retry_after=1.0)
        try:
            async with self._sent(capability, request) as response:
                yield response
        finally:
            self._permits.release_on_behalf_of(holder)

    @asynccontextmanager
    async def _sent(self, capability: str, request: Callable[[str], Request]) -> AsyncIterator[UpstreamResponse]:
        """Admit, send, enter with the answer's head. Where our own program died meanwhile, that is the failure (D4)."""
        name = await self._admit(capability)
        path, body = await off_loop(request, name)
        server = None if self._managed is None else self._managed.server
        generation = 0 if server is None else server.generation
        try:
            async with self._upstream.request(b"POST", path, body) as response:
                yield response
        except ContractError as error:
            if error.code == "transport_lost" and server is not None and await self._died(server, generation):
                message = f"the server of `{self.alias}` crashed"
                raise ContractError("provider_failure", message, outcome="unknown") from error
            raise

    async def _died(self, server: ManagedServer, generation: int) -> bool:
        """Whether the program of `generation` is gone, which its supervisor may notice a moment after us."""
        with trio.move_on_after(self._limits.ping_s) as patience:
            await server.gone(generation)
        return not patience.cancelled_caught

    @asynccontextmanager
    async def _answered(self, capability: str, request: Callable[[str], Request]) -> AsyncIterator[UpstreamResponse]:
        """Enter with a 200; another status is the provider's refusal."""
        async with self._ask(capability, request) as response:
            if response.status != 200:
                data = await response.read(MAX_REFUSAL_BYTES)
                raise results.refusal(self._upstream.provider, response.status, data)
            yield response

    @asynccontextmanager
    async def generate(self, operation: GenerateText) -> AsyncIterator[TextStream]:
        async with self._answered(operation.capability, lambda name: bodies.generate(operation, name)) as response:
            if not operation.stream:
                said = await off_loop(results.text, await response.read())
                assert said.delta is not None
                assert said.finish_reason is not None
                assert said.usage is not None
                yield FiniteText(said.delta.text, said.finish_reason, said.usage)
                return
            if not response.is_stream:
                raise invalid_result("the provider did not answer with an event stream")
            yield UpstreamTextStream(response, self._upstream.provider)

    async def embed(self, operation: Embed) -> Embeddings:
        async with self._answered(operation.capability, lambda name: bodies.embed(operation, name)) as response:
            data = await response.read()
        found = await off_loop(results.embeddings, data, len(operation.inputs))
        if operation.dimensions is None:
            return found
        return Embeddings(cut(found.vectors, operation.dimensions), found.input_tokens)

    async def rerank(self, operation: Rerank) -> Scores:
        async with self._answered("rerank", lambda name: bodies.rerank(operation, name)) as response:
            data = await response.read()
        return await off_loop(results.scores, data, len(operation.documents))

    async def decide(self, operation: Decide) -> Decisions:
        async with self._answered("decision", lambda name: bodies.decide(operation, name)) as response:
            data = await response.read()
        return await off_loop(results.decisions, data, operation)

    async def generate_image(self, operation: GenerateImage) -> GeneratedImage:
        raise ContractError("capability_unavailable", f"image_generation of `{self.alias}`: model_task_mismatch")

    async def probe(self) -> None:
        """Try again now: a managed program from quarantine, any other by observing it."""
        if self._managed is not None:
            try:
                await self._managed.probe()
            except (SynapseError, OSError) as error:
                raise ContractError("capability_unavailable", f"`{self.alias}`: {error}") from error
        await self._observe()
        if self._failure is not None:
            raise ContractError("capability_unavailable", self._failure.message, retry_after=1.0)

    def forward(self, route: str, body: bytes) -> AbstractAsyncContextManager[Passed] | None:
        return self._forward(route, body) if route in FORWARDED else None

    @asynccontextmanager
    async def _forward(self, route: str, body: bytes) -> AsyncIterator[Passed]:
        request = partial(bodies.forwarded, route, self._managed is not None, body)
        async with self._ask(FORWARDED[route], request) as response:
            if response.status in (401, 403, 407):  # about our key, not the client's
                raise results.refusal(self._upstream.provider, response.status, b"")
            yield Passed(response, self._upstream.provider)


class Passed:
    """pumas.providers.base.Forwarded: status, type and bytes as they come, bounded as a response is."""

    def __init__(self, response: UpstreamResponse, provider: str) -> None:
        self.status, self.content_type, self.retry_after = response.status, response.content_type, response.retry_after
        self.is_stream = response.is_stream
        self._response, self._provider = response, provider

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes; an event stream that ends without its own end mark was cut, whatever its framing says."""
        tail = b""
        async with aclosing(self._response.chunks()) as chunks:
            async for chunk in chunks:
                tail = (tail + chunk)[-TAIL_BYTES:]
                yield chunk
        if self.is_stream and not END_MARK.search(tail):
            raise ContractError(
                "transport_lost",
                f"the stream of the provider {self._provider} ended before it was complete",
                outcome="unknown",
            )


async def off_loop(work: Callable[..., T], first: Any, *more: Any) -> T:
    """Run `work` in a thread: its time grows with a request or an answer, which may have 32 MiB."""
    return await trio.to_thread.run_sync(work, first, *more)
