"""What is served: (alias, profile) → provider. Built once at start-up; afterwards only read."""

from __future__ import annotations

import time
from collections.abc import Callable

import trio

from pumas import log
from pumas.announce import label
from pumas.config import Config, Model
from pumas.contract.descriptors import ServedModel
from pumas.contract.redact import redact
from pumas.providers.base import Provider
from pumas.providers.synapse import SynapseProvider
from synapse import InvalidInput, Lane, Profile, Quarantined, Supervisor, SynapseError

Report = Callable[[str], None]
"""Shows one line of progress to the person who started the gateway."""


class Served:
    """The served models, in the order of the configuration."""

    def __init__(self) -> None:
        self._providers: dict[tuple[str, str], Provider] = {}

    def add(self, alias: str, profile: str, provider: Provider) -> None:
        assert (alias, profile) not in self._providers, "the configuration was checked"
        self._providers[alias, profile] = provider

    def snapshots(self) -> list[ServedModel]:
        """All of them as they are now. Never waits."""
        return [provider.snapshot() for provider in self._providers.values()]

    def providers(self) -> list[Provider]:
        return list(self._providers.values())

    def provider(self, model: str, profile: str) -> Provider:
        """The provider of a pair that a snapshot named."""
        return self._providers[model, profile]


def profile_of(model: Model) -> Profile:
    """How synapse is to run a configured model."""
    engine = model.engine or ("onnx" if model.path.endswith(".onnx") else "llama")
    return Profile(
        parallel=model.parallel,
        context=model.context,
        threads=model.threads,
        workers=model.workers,
        deterministic=model.deterministic,
        pooling=model.pooling,
        micro_batch=model.micro_batch,
        env=dict(model.env),
        require_sandbox=model.require_sandbox,
        injection=model.injection,
        chat_template=model.chat_template,
        engine=engine,
        argv=model.argv,
    )


Lanes = list[tuple[Model, Lane]]


async def start_models(config: Config, supervisor: Supervisor, served: Served, report: Report) -> Lanes:
    """Begin to load every configured model and serve it: it waits for none."""
    lanes: Lanes = []
    for model in config.models:
        size = (await trio.Path(model.path).stat()).st_size
        report(f"loading {label(model.alias, model.profile)} ({model.path}, {size / 1e6:.0f} MB)")
        lane = supervisor.start(model.path, profile_of(model))
        provider = SynapseProvider(model.alias, model.profile, lane, supervisor, config.limits.max_queue_s)
        served.add(model.alias, model.profile, provider)
        lanes.append((model, lane))
    return lanes


async def wait_for_models(lanes: Lanes, report: Report, *, alone: bool = False) -> list[str]:
    """Wait until each is loaded or has failed (D7). A failure leaves the others served.

    Args:
        alone: nothing else is to be served: whoever gets the failure says it, so it is not reported here.

    Returns: why those that failed did, with what to do about it. Blocks for as long as that takes.
    """
    failures: list[str] = []

    async def watch(model: Model, lane: Lane) -> None:
        failure = await _watch(model, lane, report, quiet=alone)
        if failure is not None:
            failures.append(failure)

    async with trio.open_nursery() as nursery:
        for model, lane in lanes:
            nursery.start_soon(watch, model, lane)
    return failures


async def _watch(model: Model, lane: Lane, report: Report, *, quiet: bool) -> str | None:
    began = time.monotonic()
    name = label(model.alias, model.profile)
    try:
        await lane.ready()
    except SynapseError as error:
        failure = f"{name}: {redact(str(error))}; {_remedy(error, model)}"
        if not quiet:
            report(f"failed  {failure}")
        if not quiet or isinstance(error, Quarantined):
            log.progress("load_failed", model=model.alias, profile=model.profile, error=str(error))
        return failure
    measured = lane.measured
    assert measured is not None
    what = f"{measured.architecture}, window {measured.context}"
    report(f"loaded  {name} in {time.monotonic() - began:.1f} s ({what})")
    log.progress("loaded", model=model.alias, profile=model.profile, seconds=time.monotonic() - began)
    return None


def _remedy(error: SynapseError, model: Model) -> str:
    if isinstance(error, Quarantined):
        return f"to try again once it runs: pumas probe {model.alias}"
    if isinstance(error, InvalidInput):
        return f"check that {model.path} is a whole model file (a download may have been cut short)"
    return "change its options, or name another model"
