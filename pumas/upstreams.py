"""The `[[upstream]]` entries as providers: their clients, the programs run for them, what the operator is told."""

from __future__ import annotations

import time
from contextlib import ExitStack

import trio

from pumas import log
from pumas.config import Config, ConfigError
from pumas.config_upstream import Upstream
from pumas.contract.descriptors import Available
from pumas.keys import read_secret
from pumas.providers.upstream.client import Upstream as Client
from pumas.providers.upstream.managed import ManagedLlama, ServerOptions, private_socket
from pumas.providers.upstream.provider import UpstreamProvider
from pumas.served import Report, Served
from synapse import Supervisor

PROVIDERS = {"llama-server": "llama.cpp", "ollama": "ollama", "openai": "openai"}
"""What `provider` says in discovery and in messages, by kind."""
Started = list[tuple[Upstream, UpstreamProvider]]


def connect_upstreams(config: Config) -> dict[str, Client]:
    """The clients of the servers that run elsewhere, by URL and key file. Nothing is sent.

    Raises: ConfigError for a key file that cannot be used.
    """
    clients: dict[str, Client] = {}
    for upstream in config.upstreams:
        if upstream.url is not None:
            key = None if upstream.api_key_file is None else read_secret(upstream.api_key_file)
            try:
                clients[client_id(upstream)] = Client(PROVIDERS[upstream.kind], upstream.url, key=key)
            except ValueError as error:
                raise ConfigError(f"upstream {upstream.name}: {error}") from None
    return clients


def client_id(upstream: Upstream) -> str:
    return f"{upstream.name}/{upstream.profile}"


def start_upstreams(
    config: Config,
    clients: dict[str, Client],
    supervisor: Supervisor,
    served: Served,
    watchers: trio.Nursery,
    places: ExitStack,
    report: Report,
) -> Started:
    """Serve every upstream, each watched by a task of `watchers`; at once, whatever becomes of the servers.

    `places` holds the sockets of the programs that are run here: it must outlive the supervisor.
    """
    started: Started = []
    for upstream in config.upstreams:
        if upstream.path is not None:
            report(f"loading {upstream.name} ({upstream.path}, in llama-server)")
            socket = places.enter_context(private_socket())
            managed = ManagedLlama(supervisor, upstream.name, options_of(upstream), socket, upstream.capabilities)
            provider = UpstreamProvider(
                upstream.name,
                upstream.profile,
                upstream.kind,
                managed.upstream,
                managed=managed,
                requests=upstream.requests,
                limits=config.limits,
            )
        else:
            report(f"asking  {upstream.name} ({upstream.kind}, {upstream.url})")
            provider = UpstreamProvider(
                upstream.name,
                upstream.profile,
                upstream.kind,
                clients[client_id(upstream)],
                name=upstream.model,
                recorded=upstream.capabilities,
                requests=upstream.requests,
                limits=config.limits,
            )
        served.add(upstream.name, upstream.profile, provider)
        watchers.start_soon(provider.watch)
        started.append((upstream, provider))
    return started


async def wait_for_upstreams(started: Started, report: Report) -> int:
    """Wait until each was observed or has failed, and say which. Returns how many serve, or may yet: a server that
    runs elsewhere can come back. Blocks as long as the programs that are run here take to boot."""
    async with trio.open_nursery() as nursery:
        for upstream, provider in started:
            nursery.start_soon(_told, upstream, provider, report)
    return sum(upstream.url is not None or provider.health().state == "loaded" for upstream, provider in started)


async def _told(upstream: Upstream, provider: UpstreamProvider, report: Report) -> None:
    began = time.monotonic()
    why = await provider.settled()
    if why is not None:
        again = "" if upstream.url is None else "; it is asked again and again"
        report(f"failed  {upstream.name}: {why}{again}")
        log.progress("load_failed", model=upstream.name, profile=upstream.profile, error=why)
        return
    model = provider.snapshot()
    can = ", ".join(c.capability for c in model.capabilities if c.availability == Available())
    report(f"loaded  {upstream.name} in {time.monotonic() - began:.1f} s ({can or 'nothing that is known'})")
    log.progress("loaded", model=upstream.name, profile=upstream.profile, seconds=time.monotonic() - began)


def options_of(upstream: Upstream) -> ServerOptions:
    """How the llama-server of a configured upstream is started."""
    assert upstream.path is not None
    return ServerOptions(
        path=upstream.path,
        program=upstream.program,
        mmproj=upstream.mmproj,
        context=upstream.context,
        parallel=upstream.parallel,
        threads=upstream.threads,
        cache_type=upstream.cache_type,
        arguments=upstream.arguments,
    )
