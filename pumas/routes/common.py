"""What all routes share: the models they may ask for, bodies, and what becomes of a bug of ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
import trio

from pumas import log
from pumas.contract import strict
from pumas.contract.descriptors import Available, ServedModel, select
from pumas.contract.errors import ContractError
from pumas.contract.resolve import unavailable
from pumas.http.body import read_body
from pumas.http.exchange import AnswerCut, AsgiApp, ClientGone, Receive, Scope, Send
from pumas.http.stream import Answer
from pumas.providers.base import Provider


class Registry(Protocol):
    """The served models, as `pumas.served` keeps them. Nothing here waits."""

    def snapshots(self) -> Sequence[ServedModel]: ...

    def providers(self) -> Sequence[Provider]: ...

    def provider(self, model: str, profile: str) -> Provider: ...


Handler = Callable[[Scope, Receive], Awaitable[AsgiApp]]


class Endpoint:
    """A handler as an ASGI application. Whatever it raises that is no ContractError is our bug: logged, never shown."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            answer = await self._handler(scope, receive)
            await answer(scope, receive, send)
        except (ContractError, ClientGone, AnswerCut):
            raise
        except Exception as error:
            if isinstance(error, ExceptionGroup) and not _bugs(error):
                raise
            log.bug("route_failed", error, path=scope["path"])
            raise ContractError("provider_failure", "internal error", outcome="unknown") from error


def _bugs(group: ExceptionGroup[Exception]) -> bool:
    _, rest = group.split((ContractError, ClientGone, AnswerCut))
    return rest is not None


def json_answer(body: Any, headers: Sequence[tuple[bytes, bytes]] = ()) -> Answer:
    """A value, or JSON that was encoded already, as an answer."""
    return Answer(body if isinstance(body, bytes) else msgspec.json.encode(body), headers=headers)


async def read_json(receive: Receive) -> tuple[bytes, dict[str, Any]]:
    """The body, and the JSON object it is. Large ones are decoded in a thread.

    Raises: ContractError(request_limit, invalid_request), ClientGone.
    """
    body = await read_body(receive)
    if strict.is_large(len(body)):
        data = await trio.to_thread.run_sync(strict.load, body)
    else:
        data = strict.load(body)
    if not isinstance(data, dict):
        raise ContractError("invalid_request", "the body is not a JSON object")
    return body, data


def addressed(registry: Registry, data: dict[str, Any]) -> tuple[ServedModel, Provider]:
    """The served model that a body's `model` and optional `profile` name.

    Raises: ContractError(invalid_request, model_not_found, ambiguous_model).
    """
    model, profile = data.get("model"), data.get("profile")
    if not isinstance(model, str) or not model:
        raise ContractError("invalid_request", "model: expected the alias of a served model", field="model")
    if not isinstance(profile, str | None):
        raise ContractError("invalid_request", "profile: expected a string", field="profile")
    served = select(registry.snapshots(), model, profile)
    return served, registry.provider(served.model, served.profile)


def require(served: ServedModel, name: str) -> None:
    """Raises: ContractError(capability_unavailable) with the reason, unless `name` can be had now."""
    capability = served.capability(name)
    if not isinstance(capability.availability, Available):
        raise unavailable(served, [capability])
