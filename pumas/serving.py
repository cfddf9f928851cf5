"""`pumas serve`: listen, load, say what is ready, and end everything on the first signal.

The order of the end is the order of the nurseries: the HTTP side first (its clients have the shutdown grace), then the
supervisor with its workers. A second signal cancels both at once; a third ends the process.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio

from pumas import log
from pumas.app import build_app
from pumas.config import Config, UserError
from pumas.contract.descriptors import Available, ServedModel
from pumas.http.listen import Listening
from pumas.http.serve import serve
from pumas.served import Lanes, Served, start_models, wait_for_models
from pumas.upstreams import Started, connect_upstreams, start_upstreams, wait_for_upstreams
from synapse import SupervisorConfig, open_supervisor


class StartError(UserError):
    """The gateway has nothing to serve."""


def run_gateway(config: Config, api_key: str | None) -> int:
    """Serve until a signal. Returns the exit status.

    Raises: HttpSetupError, SynapseError, StartError.
    """
    log.install()
    log.start()
    try:
        trio.run(_until_signal, config, api_key)
    except BaseExceptionGroup as group:
        error = first_of(group)
        raise error from error.__cause__
    finally:
        log.stop()
    return 0


def first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of a group: what the user is told about."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def say(line: str) -> None:
    """One line for the person who started the gateway. Nobody has to read it: a closed pipe stops nothing."""
    with contextlib.suppress(OSError):
        print(" ".join(line.splitlines()), flush=True)  # a model's own words may be several


async def _until_signal(config: Config, api_key: str | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, stop, nursery.cancel_scope)
            await _serve(config, api_key, stop)
            nursery.cancel_scope.cancel()


async def _obey(signals: AsyncIterator[int], stop: trio.Event, everything: trio.CancelScope) -> None:
    await anext(signals)
    say("stopping; once more to stop at once")
    stop.set()
    await anext(signals)
    everything.cancel()
    number = await anext(signals)
    os._exit(128 + number)


async def _serve(config: Config, api_key: str | None, stop: trio.Event) -> None:
    """Everything between the first line and the last; when it returns, all of it is gone."""
    served = Served()
    app = build_app(served, config, api_key)
    clients = connect_upstreams(config)
    with ExitStack() as places:
        async with open_supervisor(_supervisor_config(config)) as supervisor, trio.open_nursery() as nursery:
            listening = await nursery.start(partial(serve, app, config.http, shutdown=stop))
            async with _until_left() as watchers:
                lanes = await start_models(config, supervisor, served, say)
                upstreams = start_upstreams(config, clients, supervisor, served, watchers, places, say)
                loaded = await _load(lanes, upstreams, stop)
                if stop.is_set():
                    return
                # `pumas probe` needs us where a model is quarantined.
                waiting = any(model.load_state == "quarantined" for model in served.snapshots())
                if not loaded and not waiting:
                    raise StartError("no model could be loaded; the lines above say why")
                _announce(listening, served)
                await stop.wait()


@asynccontextmanager
async def _until_left() -> AsyncIterator[trio.Nursery]:
    """A nursery for tasks that end with the block."""
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()


async def _load(lanes: Lanes, upstreams: Started, stop: trio.Event) -> int:
    """How many models can be served; a signal ends the loading."""
    loaded = 0
    async with trio.open_nursery() as nursery:

        async def load() -> None:
            nonlocal loaded
            loaded = await wait_for_models(lanes, say) + await wait_for_upstreams(upstreams, say)
            nursery.cancel_scope.cancel()

        nursery.start_soon(load)
        await stop.wait()
        nursery.cancel_scope.cancel()
    return loaded


def _announce(listening: Listening, served: Served) -> None:
    """What is served, how to ask it, and the word that a first request would be served now."""
    models = served.snapshots()
    for model in models:
        available = _available(model)
        what = ", ".join(available) if available else model.detail.get("error", "unavailable")
        if model.load_state == "quarantined":
            what += f"; to try again: pumas probe {shlex.quote(model.model)} --url {listening.urls[0]}"
        say(f"  {model.model}  {model.profile}  {model.load_state}  {what}")
    url = next((url for url in listening.urls if url.startswith("http")), None)
    for line in _examples(url, models) if url else ():
        say(line)
    for url in listening.urls:
        say(f"ready on {url}")


def _available(model: ServedModel) -> list[str]:
    return [c.capability for c in model.capabilities if c.availability == Available()]


def _examples(url: str, models: list[ServedModel]) -> list[str]:
    """Lines for a shell that work as they are printed: one for each kind of model, and the list."""
    lines = []
    asked = set[str]()
    for model in models:
        for capability, (route, body) in _EXAMPLES.items():
            if capability in _available(model) and capability not in asked:
                asked.add(capability)
                data = msgspec.json.encode({"model": model.model, **body}).decode().replace("'", "'\\''")
                lines.append(f"  curl {url}{route} -H 'Content-Type: application/json' -d '{data}'")
    return [*lines, f"  curl {url}/v1/served-models"]


_EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_generation": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}],
            "temperature": 0,
        },
    ),
    "text_embedding": ("/v1/embeddings", {"input": ["a first text", "a second one"], "dimensions": 8}),
    "rerank": ("/v1/rerank", {"query": "capital of France", "documents": ["Paris", "a banana"]}),
}


def _supervisor_config(config: Config) -> SupervisorConfig:
    chosen = config.synapse

    def path(text: str | None) -> Path | None:
        return None if text is None else Path(text)

    return SupervisorConfig(
        runtime_dir=path(chosen.runtime_dir),
        state_dir=path(chosen.state_dir),
        cache_dir=path(chosen.cache_dir),
        text_processes=chosen.text_processes,
        threads=chosen.threads,
        limits=config.limits,
    )
