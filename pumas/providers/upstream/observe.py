"""How each kind of server is asked what a model is. One function a kind; each raises ContractError.

Sources: llama-server's README ("GET /props", "GET /v1/models", "Using multiple models"); Ollama's API documentation
("List Local Models", "Show Model Information",
"List Running Models"); the OpenAI API ("List models").
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from pumas.contract.descriptors import LoadState
from pumas.contract.errors import ContractError
from pumas.providers.upstream.client import Upstream
from pumas.providers.upstream.facts import Kind, Observed
from pumas.providers.upstream.results import decode, refusal

MODALITIES = ("text", "image", "audio", "video")
"""Words that a server may use for what a model takes; it may use others, which mean nothing here."""
ABOUT_MAX_BYTES = 4 * 1024 * 1024
"""How much a server may say about its models."""


class Wanted(NamedTuple):
    """The model that is meant."""

    name: str
    """Its name there."""
    exact: bool = True
    """False: nobody named it; the only model of a dedicated server will do."""


Observer = Callable[[Upstream, Wanted, tuple[str, ...]], Awaitable[Observed]]
"""(server, model, capabilities that the configuration records) → what it is."""


async def ask(upstream: Upstream, method: bytes, path: bytes, type_: type[Any], body: bytes | None = None) -> Any:
    """One finite question. Raises ContractError; a status other than 200 is `provider_failure`."""
    async with upstream.request(method, path, body) as response:
        data = await response.read(ABOUT_MAX_BYTES)
        if response.status != 200:
            raise refusal(upstream.provider, response.status, data)
    return decode(data, type_)


def unknown(upstream: Upstream, name: str) -> ContractError:
    return ContractError("capability_unavailable", f"the provider {upstream.provider} does not have the model {name}")


class _Architecture(msgspec.Struct):
    input_modalities: list[str] = []
    output_modalities: list[str] = []


class _Status(msgspec.Struct):
    value: str = "loaded"
    failed: bool = False


class _Model(msgspec.Struct):
    id: str
    aliases: list[str] = []
    architecture: _Architecture | None = None
    status: _Status | None = None
    meta: dict[str, Any] | None = None
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Settings(msgspec.Struct):
    n_ctx: int | None = None


class _Props(msgspec.Struct):
    default_generation_settings: _Settings | None = None
    modalities: dict[str, bool] = {}


async def observe_llama_server(upstream: Upstream, wanted: Wanted, recorded: tuple[str, ...]) -> Observed:
    """`/v1/models` says which models there are and what they take; `/props` the window of a slot.

    A dedicated server (no model has a `status`) answers whatever name a request gives: so its one model must be the
    one that is meant, unless nobody named one. A router's unloaded model is described without loading it.
    """
    name = wanted.name
    models = (await ask(upstream, b"GET", b"/v1/models", _Models)).data
    router = any(model.status is not None for model in models)
    found = next((m for m in models if name == m.id or name in m.aliases), None)
    if found is None and not wanted.exact and not router and len(models) == 1:
        found = models[0]
    if found is None:
        raise unknown(upstream, name)
    state = _router_state(found.status)
    about = found.architecture or _Architecture()
    inputs, outputs = list(about.input_modalities), list(about.output_modalities)
    context = None
    if state == "loaded":
        query = b"?autoload=false&model=" + quote(found.id, safe="").encode() if router else b""
        props: _Props = await ask(upstream, b"GET", b"/props" + query, _Props)
        settings = props.default_generation_settings
        context = None if settings is None else _positive(settings.n_ctx)
        if found.architecture is None:
            media = {"vision": "image", "audio": "audio"}
            inputs = ["text", *(media[name] for name, on in props.modalities.items() if on and name in media)]
            outputs = ["text"]
    meta = found.meta or {}
    width = meta.get("n_embd")
    return Observed(
        name=found.id,
        inputs=tuple(word for word in MODALITIES if word in inputs),
        outputs=tuple(word for word in ("text", "decisions") if word in outputs),
        context=context,
        load_state=state,
        recorded=recorded,
        dimensions=_positive(width),
        fingerprint=" ".join(str(meta[key]) for key in ("n_params", "size", "n_vocab") if key in meta),
    )


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _router_state(status: _Status | None) -> LoadState:
    """A router loads a model when it is asked for, so an unloaded one can be had."""
    if status is None or status.value in ("loaded", "sleeping"):
        return "loaded"
    if status.failed:
        return "failed"
    return "loading" if status.value in ("loading", "downloading") else "unloaded"


class _Tag(msgspec.Struct):
    name: str = ""
    model: str = ""
    digest: str = ""


class _Tags(msgspec.Struct):
    models: list[_Tag] | None = None


class _Shown(msgspec.Struct):
    capabilities: list[str] | None = None
    model_info: dict[str, Any] | None = None
    parameters: str = ""
    """The Modelfile's, a line each, as in `num_ctx    4096`."""


class _Running(msgspec.Struct):
    name: str = ""
    model: str = ""
    context_length: int | None = None


class _RunningModels(msgspec.Struct):
    models: list[_Running] | None = None


OLLAMA_CAPABILITIES = {"completion": ("chat_generation", "text_generation"), "embedding": ("text_embedding",)}


async def observe_ollama(upstream: Upstream, wanted: Wanted, recorded: tuple[str, ...]) -> Observed:
    """`/api/tags` lists the models; `/api/show` says what one can do and its trained window, `/api/ps` the window it
    runs with. A model that is not loaded is loaded when it is asked for."""
    name = wanted.name
    names = {name, name if ":" in name else f"{name}:latest"}
    tags: _Tags = await ask(upstream, b"GET", b"/api/tags", _Tags)
    listed = next((tag for tag in tags.models or () if tag.name in names or tag.model in names), None)
    if listed is None:
        raise unknown(upstream, name)
    shown: _Shown = await ask(upstream, b"POST", b"/api/show", _Shown, msgspec.json.encode({"model": name}))
    running: _RunningModels = await ask(upstream, b"GET", b"/api/ps", _RunningModels)
    live = next((m for m in running.models or () if m.name in names or m.model in names), None)
    configured = next((line.split()[1] for line in shown.parameters.splitlines() if _NUM_CTX.match(line)), None)
    context = _positive(live.context_length) if live is not None else None
    context = context or (int(configured) if configured else None) or _positive(_info(shown, ".context_length"))
    can = recorded or tuple(c for word in shown.capabilities or () for c in OLLAMA_CAPABILITIES.get(word, ()))
    return Observed(
        name=name,
        inputs=("text",),
        outputs=("text",),
        context=context,
        load_state="loaded" if live is not None else "unloaded",
        recorded=can,
        dimensions=_positive(_info(shown, ".embedding_length")) if "text_embedding" in can else None,
        fingerprint=listed.digest,
    )


_NUM_CTX = re.compile(r"\s*num_ctx\s+[1-9][0-9]{0,8}\s*$")


def _info(shown: _Shown, ending: str) -> Any:
    return next((value for key, value in (shown.model_info or {}).items() if key.endswith(ending)), None)


async def observe_openai(upstream: Upstream, wanted: Wanted, recorded: tuple[str, ...]) -> Observed:
    """`/v1/models` says which models there are (vLLM also the window). What they can do has to be configured; without
    that a model chats and completes."""
    models = (await ask(upstream, b"GET", b"/v1/models", _Models)).data
    found = next((model for model in models if model.id == wanted.name), None)
    if found is None:
        raise unknown(upstream, wanted.name)
    return Observed(
        name=found.id, inputs=("text",), outputs=("text",), context=_positive(found.max_model_len), recorded=recorded
    )


OBSERVERS: dict[Kind, Observer] = {
    "llama-server": observe_llama_server,
    "ollama": observe_ollama,
    "openai": observe_openai,
}
