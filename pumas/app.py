"""The gateway as one ASGI application: the guard, the access log, and the table of routes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from pumas import log
from pumas.config import Config
from pumas.contract.errors import ContractError
from pumas.contract.redact import redact
from pumas.http.exchange import AsgiApp, Message, Receive, Scope, Send
from pumas.http.guard import LOOPBACK_NAMES, Guard, Headers, Policy, contract_error
from pumas.keys import is_loopback
from pumas.openai.errors import error_body, error_headers, status_of
from pumas.routes.admin import Admin
from pumas.routes.common import Endpoint, Registry
from pumas.routes.discovery import Discovery
from pumas.routes.openai import OpenAi
from pumas.routes.typed import Operations

TYPED_PATHS = frozenset({"/v1/served-models", "/v1/capabilities", "/v1/model-operations", "/health", "/admin/probe"})
"""These answer errors in the contract's shape; everything else under /v1 in OpenAI's."""


def build_app(registry: Registry, config: Config, api_key: str | None) -> AccessLog:
    """Everything between the serve loop and the providers."""
    return AccessLog(Guard(Routes(registry), _policy(config, api_key), render_error))


class Routes:
    """The table of routes. What is not in it is `not_found`, another method `method_not_allowed`."""

    def __init__(self, registry: Registry) -> None:
        discovery = Discovery(registry, int(time.time()))
        openai, admin = OpenAi(registry), Admin(registry)
        handlers: list[tuple[str, str, Callable[[Scope, Receive], Awaitable[AsgiApp]]]] = [
            ("GET", "/health", discovery.health),
            ("GET", "/v1/served-models", discovery.served_models),
            ("GET", "/v1/capabilities", discovery.capabilities),
            ("POST", "/v1/model-operations", Operations(registry)),
            ("POST", "/admin/probe", admin.probe),
            ("GET", "/v1/models", discovery.models),
            ("GET", "/v1/models/{id:path}", discovery.model),
            ("POST", "/v1/chat/completions", openai.chat),
            ("POST", "/v1/completions", openai.completions),
            ("POST", "/v1/embeddings", openai.embeddings),
            ("POST", "/v1/rerank", openai.rerank),
            ("POST", "/v2/rerank", openai.rerank),
            ("POST", "/v1/images/generations", openai.images),
        ]
        self._router = Router(
            [Route(path, Endpoint(handler), methods=[method]) for method, path, handler in handlers],
            redirect_slashes=False,
            default=_not_found,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise instead of answering 405 in its own words
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{scope['method']} is not allowed for {scope['path']}; use {allowed}"
            raise ContractError("method_not_allowed", message) from error


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    raise ContractError("not_found", f"there is no route {scope['path'][:200]}")


def render_error(scope: Scope, error: ContractError) -> tuple[int, Headers, bytes]:
    """An error as the route's clients expect it."""
    if error.code in ("provider_failure", "invalid_provider_result", "transport_lost") and not error.logged:
        log.event("operation_failed", path=scope["path"], code=error.code, outcome=error.outcome, message=error.message)
    scope["state"]["code"] = error.code
    if scope["path"] in TYPED_PATHS:
        return contract_error(scope, error)
    headers: Headers = [(b"content-type", b"application/json")]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(error)]
    return status_of(error), headers, msgspec.json.encode(error_body(error, redact(error.message)))


def _policy(config: Config, api_key: str | None) -> Policy:
    server = config.server
    names = set(LOOPBACK_NAMES) | set(server.allowed_hosts)
    if server.tcp and not is_loopback(server.host):
        # Who binds to every address is reached under names that nobody here knows; the key protects those.
        names.add("*" if server.host in ("0.0.0.0", "::") and not server.allowed_hosts else server.host)
    return Policy(
        hosts=frozenset(names),
        origins=frozenset(server.allowed_origins),
        api_keys=() if api_key is None else (api_key.encode("ascii"),),
    )


class AccessLog:
    """One line for each request: what was asked, how it ended, how long it took. Never what was said."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self.running = 0
        """Requests that are being served."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        state = scope.setdefault("state", {})
        status: int | None = None
        complete = False

        async def watched(message: Message) -> None:
            nonlocal status, complete
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)
            complete = complete or (message["type"] == "http.response.body" and not message.get("more_body", False))

        self.running += 1
        try:
            await self._app(scope, receive, watched)
        finally:
            self.running -= 1
            log.event(
                "request",
                method=scope["method"],
                path=scope["path"][:300],
                status=status,
                complete=None if complete else "no",
                seconds=time.monotonic() - began,
                code=state.get("code"),
                **state.get("log", {}),
            )
