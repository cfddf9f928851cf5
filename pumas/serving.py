"""`pumas serve`: listen, load, say what is ready, and end everything on the first signal.

The order of the end is the order of the nurseries: the HTTP side first (its clients have the shutdown grace), then the
supervisor with its workers. A second signal cancels both at once; a third ends the process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import trio

from pumas import log
from pumas.announce import announcement
from pumas.app import AccessLog, build_app
from pumas.config import Config, UserError
from pumas.http.serve import serve
from pumas.served import Served, start_models, wait_for_models
from pumas.upstreams import connect_upstreams, start_upstreams, wait_for_upstreams
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
        sys.stdout.write(" ".join(line.splitlines()) + "\n")  # a model's own words may be several lines
        sys.stdout.flush()


async def _until_signal(config: Config, api_key: str | None) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        stop, served = trio.Event(), Served()
        app = build_app(served, config, api_key)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, stop, nursery.cancel_scope, app, config.http.grace_s)
            await _serve(config, api_key, stop, served, app)
            nursery.cancel_scope.cancel()


async def _obey(
    signals: AsyncIterator[int], stop: trio.Event, everything: trio.CancelScope, app: AccessLog, grace_s: float
) -> None:
    await anext(signals)
    requests = "1 request" if app.running == 1 else f"{app.running} requests"
    waiting = f", waiting up to {grace_s:g} s for {requests}" if app.running else ""
    say(f"stopping{waiting}; once more to stop at once")
    stop.set()
    await anext(signals)
    everything.cancel()
    number = await anext(signals)
    os._exit(128 + number)


async def _serve(config: Config, api_key: str | None, stop: trio.Event, served: Served, app: AccessLog) -> None:
    """Everything between the first line and the last; when it returns, all of it is gone."""
    clients = connect_upstreams(config)
    with ExitStack() as places:
        async with open_supervisor(_supervisor_config(config)) as supervisor, trio.open_nursery() as nursery:
            listening = await nursery.start(partial(serve, app, config.http, shutdown=stop))
            async with _until_left() as watchers:
                lanes = await start_models(config, supervisor, served, say)
                upstreams = start_upstreams(config, clients, supervisor, served, watchers, places, say)
                alone = len(lanes) + len(upstreams) == 1
                loaded, failures = 0, list[str]()
                async with _until_stopped(stop):
                    failures = await wait_for_models(lanes, say, alone=alone)
                    loaded = len(lanes) - len(failures) + await wait_for_upstreams(upstreams, say)
                if stop.is_set():
                    return
                # `pumas probe` needs us where a model is quarantined.
                waiting = any(model.load_state == "quarantined" for model in served.snapshots())
                if not loaded and not waiting:
                    raise StartError(
                        failures[0] if alone and failures else "no model could be loaded; the lines above say why"
                    )
                for line in announcement(listening.urls, served.snapshots(), config, keyed=api_key is not None):
                    say(line)
                await stop.wait()


@asynccontextmanager
async def _until_left() -> AsyncIterator[trio.Nursery]:
    """A nursery for tasks that end with the block."""
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _until_stopped(stop: trio.Event) -> AsyncIterator[None]:
    """A block that a signal ends."""
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            await stop.wait()
            nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        yield
        nursery.cancel_scope.cancel()


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
