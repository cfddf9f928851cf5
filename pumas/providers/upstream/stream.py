"""An upstream's SSE body as checked text: it completes only on a coherent terminal choice, `[DONE]` and a clean end.

Whatever else happens (a cut, an error object, a malformed event, text behind the terminal) is a ContractError out of
the iteration, never a quiet end (contract, streams).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from pumas.contract.errors import ContractError
from pumas.contract.events import EventReader
from pumas.contract.results import invalid_result
from pumas.operations import TextDelta, Usage
from pumas.providers.upstream.client import UpstreamResponse
from pumas.providers.upstream.results import event

DONE = "[DONE]"


class UpstreamTextStream:
    """pumas.operations.TextStream over one response; iterate it inside the request's block only."""

    def __init__(self, response: UpstreamResponse, provider: str) -> None:
        self._response, self._provider = response, provider
        self._finish: str | None = None
        self._usage = Usage(prompt_tokens=0)
        self.seed: int | None = None

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self._deltas()

    async def _deltas(self) -> AsyncGenerator[TextDelta, None]:
        reader, finish, done = EventReader(), None, False
        async with aclosing(self._response.chunks()) as chunks:
            async for chunk in chunks:
                # What one read brought leaves as one delta: fewer events, the same text.
                pieces = []
                for _, data in reader.feed(chunk):
                    if done:
                        raise invalid_result("the provider sent an event behind [DONE]")
                    if data == DONE:
                        done = True
                        continue
                    said = event(data, self._provider)
                    if said.usage is not None:
                        self._usage = said.usage
                    if said.delta is not None:
                        if finish is not None:
                            raise invalid_result("the provider sent text behind its finish reason")
                        pieces.append(said.delta.text)
                    if said.finish_reason is not None:
                        if finish is not None:
                            raise invalid_result("the provider sent two finish reasons")
                        finish = said.finish_reason
                if pieces:
                    yield TextDelta("".join(pieces))
        reader.finish()
        if not done or finish is None:
            raise ContractError(
                "transport_lost", "the provider's stream ended before it was complete", outcome="unknown"
            )
        self._finish = finish

    @property
    def finish_reason(self) -> str:
        """After the iteration only; a bug of the caller's otherwise."""
        assert self._finish is not None, "the stream was not iterated to its end"
        return self._finish

    @property
    def usage(self) -> Usage:
        return self._usage


class FiniteText:
    """pumas.operations.TextStream over a finite answer: one delta."""

    def __init__(self, text: str, finish_reason: str, usage: Usage) -> None:
        self._text, self.finish_reason, self.usage = text, finish_reason, usage
        self.seed: int | None = None

    def __aiter__(self) -> AsyncIterator[TextDelta]:
        return self._deltas()

    async def _deltas(self) -> AsyncGenerator[TextDelta, None]:
        yield TextDelta(self._text)
