"""A real llama-server (the xllamacpp package's), run and supervised by us: the same answers as our worker, the same
failures as a worker's."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from pumas.contract.errors import ContractError
from pumas.operations import Embed, GenerateText, Message, Rerank, TextOptions
from pumas.providers.synapse import SynapseProvider
from pumas.providers.upstream.managed import ManagedLlama, ServerOptions, private_socket
from pumas.providers.upstream.provider import UpstreamProvider
from synapse import Limits, Profile, Quarantined, SetupError, Supervisor, SupervisorConfig, open_supervisor
from synapse.server import ManagedServer
from tests.models import minilm_f16_gguf, smollm2, tiny_llama, tiny_reranker

BOUND_S = 120


@asynccontextmanager
async def supervisor(folder: Path, **limits: float) -> AsyncIterator[Supervisor]:
    config = SupervisorConfig(state_dir=folder / "state", cache_dir=folder / "cache", limits=Limits(**limits))
    async with open_supervisor(config) as opened:
        yield opened


@asynccontextmanager
async def served(
    owner: Supervisor, options: ServerOptions, wanted: Sequence[str] = ()
) -> AsyncIterator[tuple[UpstreamProvider, ManagedServer]]:
    """A managed llama-server that is ready, and its provider."""
    async with AsyncExitStack() as stack:
        socket = stack.enter_context(private_socket())
        managed = ManagedLlama(owner, "model", options, socket, wanted)
        made = UpstreamProvider("model", "default", "llama-server", managed.upstream, managed=managed)
        nursery = await stack.enter_async_context(trio.open_nursery())
        with trio.fail_after(BOUND_S):
            nursery.start_soon(made.watch)
            assert await made.settled() is None
        assert managed.server is not None
        yield made, managed.server
        nursery.cancel_scope.cancel()


def chat(stream: bool = False, tokens: int = 32) -> GenerateText:
    message = Message(role="user", content="Name three colours of the rainbow.")
    options = TextOptions(max_tokens=tokens, temperature=0.0)
    return GenerateText(capability="chat_generation", messages=(message,), options=options, stream=stream)


async def text_of(provider: UpstreamProvider | SynapseProvider, operation: GenerateText) -> tuple[str, str]:
    with trio.fail_after(BOUND_S):
        async with provider.generate(operation) as stream:
            return "".join([delta.text async for delta in stream]), stream.finish_reason


async def test_the_same_model_gives_the_same_greedy_text_as_our_worker(tmp_path: Path) -> None:
    """32 tokens, the same KV type, finite and streamed."""
    path = str(smollm2())
    options = ServerOptions(path=path, context=1024, threads=1, cache_type="q8_0")
    async with supervisor(tmp_path) as owner:
        lane = await owner.load(path, Profile(context=1024, threads=1))
        wanted = await text_of(SynapseProvider("model", "default", lane, owner), chat())
        async with served(owner, options) as (provider, _):
            assert await text_of(provider, chat()) == wanted
            assert await text_of(provider, chat(stream=True)) == wanted
            snapshot = provider.snapshot()
    assert snapshot.load_state == "loaded"
    assert snapshot.context_tokens == 1024
    offered = {c.capability for c in snapshot.capabilities if c.availability.__class__.__name__ == "Available"}
    assert offered == {"chat_generation", "text_generation"}


async def test_the_same_vectors_as_our_worker(tmp_path: Path) -> None:
    path, texts = str(minilm_f16_gguf()), ("a puma", "a mountain lion runs", "tax form 1040")
    async with supervisor(tmp_path) as owner:
        lane = await owner.load(path, Profile(threads=1))
        wanted = await SynapseProvider("m", "default", lane, owner).embed(Embed(inputs=texts))
        async with served(owner, ServerOptions(path=path, threads=1)) as (provider, _):
            found = await provider.embed(Embed(inputs=texts))
            cut = await provider.embed(Embed(inputs=texts, dimensions=8))
            assert provider.snapshot().modalities.output == ("vector",)
    assert np.sum(found.vectors * wanted.vectors, axis=1).min() > 0.9999
    assert cut.vectors.shape == (3, 8)
    np.testing.assert_allclose(np.linalg.norm(cut.vectors, axis=1), 1, atol=1e-6)


async def test_the_same_scores_as_our_worker(tmp_path: Path) -> None:
    """Of a model that is no WordPiece one: there our pairs are as trained, and llama-server's are not (D10)."""
    path = tmp_path / "ranker.gguf"
    tiny_reranker(path, vocabulary="bpe")
    operation = Rerank(query="the old mill", documents=("a river", "the mill stood there", "storms"))
    async with supervisor(tmp_path) as owner:
        lane = await owner.load(path)
        wanted = await SynapseProvider("m", "default", lane, owner).rerank(operation)
        async with served(owner, ServerOptions(path=str(path))) as (provider, _):
            found = await provider.rerank(operation)
            assert provider.snapshot().modalities.output == ("json",)
    np.testing.assert_allclose(found.scores, wanted.scores, atol=1e-3)


async def test_a_reranker_without_a_head_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "headless.gguf"
    tiny_reranker(path, head="none")
    async with supervisor(tmp_path) as owner:
        with private_socket() as socket:
            managed = ManagedLlama(owner, "m", ServerOptions(path=str(path)), socket, ("rerank",))
            await managed.start()
            with pytest.raises(SetupError, match="ranking head"):
                await managed.ready()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_killed_or_hung_in_mid_stream_is_a_crash_and_the_next_request_is_served(
    tmp_path: Path, number: signal.Signals
) -> None:
    """SIGSTOP: health does not answer within the bound of a PING, so it is killed; the stream fails, unknown."""
    path = tmp_path / "tiny.gguf"
    tiny_llama(path)
    async with supervisor(tmp_path, ping_every_s=0.2, ping_s=2.0, backoff_first_s=0.05) as owner:
        async with served(owner, ServerOptions(path=str(path), context=2048)) as (provider, server):
            generation = server.generation
            with pytest.raises(ContractError) as caught:
                await cut_off(provider, server, number)
            assert (caught.value.code, caught.value.outcome) == ("provider_failure", "unknown")
            with trio.fail_after(BOUND_S):
                await server.gone(generation)
                await server.ready()
            assert server.last_crash is not None
            assert server.generation == generation + 1
            text, finish = await text_of(provider, chat(tokens=4))
            assert finish in ("stop", "length")


async def cut_off(provider: UpstreamProvider, server: ManagedServer, number: signal.Signals) -> None:
    """Signal the program itself when the first text has come; read on."""
    with trio.fail_after(BOUND_S):
        async with provider.generate(chat(stream=True, tokens=1900)) as stream:
            async for _ in stream:
                if number is not None and server.pid is not None:
                    os.killpg(server.pid, number)
                    number = None  # type: ignore[assignment]


async def test_one_that_is_never_ready_spends_its_budget_too(tmp_path: Path) -> None:
    """The boot has a deadline, which grows with the file; the program ignores SIGTERM and is killed."""
    path = tmp_path / "tiny.gguf"
    tiny_llama(path)
    program = tmp_path / "waits"
    program.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 3600; done\n")
    program.chmod(0o755)
    async with supervisor(tmp_path, backoff_first_s=0.01, load_base_s=0.1) as owner:
        with private_socket() as socket:
            managed = ManagedLlama(owner, "m", ServerOptions(path=str(path), program=str(program)), socket)
            with trio.fail_after(BOUND_S):
                await managed.start()
                with pytest.raises(Quarantined, match="was not ready after"):
                    await managed.ready()
            assert managed.server is not None
            assert managed.server.last_crash is not None
            assert managed.server.last_crash.stage == "timeout"


async def test_one_that_dies_at_each_start_is_quarantined_until_it_is_probed(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tiny_llama(path)
    program = tmp_path / "dies"
    program.write_text("#!/bin/sh\necho no device >&2\nexit 3\n")
    program.chmod(0o755)
    async with supervisor(tmp_path, backoff_first_s=0.01) as owner:
        with private_socket() as socket:
            options = ServerOptions(path=str(path), program=str(program))
            managed = ManagedLlama(owner, "m", options, socket)
            with trio.fail_after(BOUND_S):
                await managed.start()
                server = managed.server
                assert server is not None
                with pytest.raises(Quarantined) as caught:
                    await managed.ready()
                assert caught.value.crashes == 3
                assert server.generation == 3
                assert server.last_crash is not None
                assert server.last_crash.exit_status == 3
                assert "no device" in server.last_crash.log_tail
                with pytest.raises(Quarantined):
                    await managed.probe()
                assert server.generation == 6
