"""Discovery and health: /v1/served-models, /v1/capabilities, /v1/models, /health. Only stamped state is read (W10)."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec

from pumas.contract.descriptors import ServedModel, capabilities_response, select, served_models_response
from pumas.contract.errors import ContractError
from pumas.contract.redact import redact
from pumas.http.exchange import AsgiApp, Receive, Scope
from pumas.http.guard import trusted
from pumas.http.stream import Answer
from pumas.routes.common import Registry, json_answer


class Discovery:
    """The handlers. `created` is when this gateway started, in seconds since 1970: OpenAI's clients want a number."""

    def __init__(self, registry: Registry, created: int) -> None:
        self._registry, self._created = registry, created

    async def served_models(self, scope: Scope, receive: Receive) -> AsgiApp:
        return json_answer(served_models_response(self._registry.snapshots()))

    async def capabilities(self, scope: Scope, receive: Receive) -> AsgiApp:
        query = scope["query_string"].decode("ascii", "replace")
        try:
            pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), errors="strict")
        except ValueError as error:
            raise ContractError("invalid_request", f"the query string is malformed: {error}") from error
        return json_answer(capabilities_response(self._registry.snapshots(), pairs))

    async def models(self, scope: Scope, receive: Receive) -> AsgiApp:
        """The OpenAI-compatible list: each ID once, with its profiles."""
        aliases: dict[str, list[ServedModel]] = {}
        for model in self._registry.snapshots():
            aliases.setdefault(model.model, []).append(model)
        return json_answer({"object": "list", "data": [self._model(group) for group in aliases.values()]})

    async def model(self, scope: Scope, receive: Receive) -> AsgiApp:
        wanted = scope["path_params"]["id"]
        group = [model for model in self._registry.snapshots() if model.model == wanted]
        if not group:
            select(self._registry.snapshots(), wanted[:256], None)  # which names what is served
            raise ContractError("model_not_found", f"model {wanted[:256]!r} is not served", field="model")
        return json_answer(self._model(group))

    def _model(self, group: list[ServedModel]) -> dict[str, Any]:
        first = group[0]
        return {
            "id": first.model,
            "object": "model",
            "created": self._created,
            "owned_by": first.provider,
            "load_state": first.load_state,
            "context_tokens": first.context_tokens,
            "profiles": [
                {"profile": model.profile, "load_state": model.load_state, "context_tokens": model.context_tokens}
                for model in group
            ],
        }

    async def health(self, scope: Scope, receive: Receive) -> AsgiApp:
        """ok, degraded or unavailable; lanes with state and age for those who may see them (D8)."""
        lanes = [provider.health() for provider in self._registry.providers()]
        ready = any(lane.state in ("loaded", "restarting") for lane in lanes)
        impaired = any(lane.degraded or lane.state not in ("loaded", "loading") for lane in lanes)
        status = "unavailable" if not ready else "degraded" if impaired else "ok"
        body: dict[str, Any] = {"status": status}
        if trusted(scope):
            body["lanes"] = [
                msgspec.structs.replace(
                    lane,
                    age_s=round(lane.age_s, 3),
                    detail={name: redact(text) for name, text in lane.detail.items()},
                )
                for lane in lanes
            ]
        return Answer(msgspec.json.encode(body), status=200 if ready else 503)
