"""POST /admin/probe: try a quarantined or failed model again, on purpose (decisions W9, D6)."""

from __future__ import annotations

from pumas.contract.errors import ContractError
from pumas.http.exchange import AsgiApp, Receive, Scope
from pumas.http.guard import trusted
from pumas.routes.common import Registry, addressed, json_answer, read_json


class Admin:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def probe(self, scope: Scope, receive: Receive) -> AsgiApp:
        """`{model, profile?}` → its state afterwards. Blocks until it is loaded or has failed."""
        if not trusted(scope):
            raise ContractError("forbidden", "probing is for callers on this machine or with the API key")
        _, data = await read_json(receive)
        for name in data:
            if name not in ("model", "profile"):
                raise ContractError("invalid_request", f"unknown field {name[:100]!r}; known: model, profile")
        served, provider = addressed(self._registry, data)
        await provider.probe()
        after = provider.snapshot()
        return json_answer({"model": served.model, "profile": served.profile, "load_state": after.load_state})
