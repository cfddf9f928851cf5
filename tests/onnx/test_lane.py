"""ONNX models as lanes: the same tokenizer, scheduler, supervision and errors as the llama worker's."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from pumas.operations import Embed
from pumas.providers.synapse import SynapseProvider
from synapse import InputTooLarge, InvalidInput, Lane, Limits, Profile, Supervisor, SupervisorConfig, open_supervisor
from synapse.errors import EngineRefused, SynapseError
from tests.models import minilm_f16_gguf, minilm_onnx_served
from tests.onnx.graphs import INT32, WIDTH, encoder, nan_table, table, tiny_encoder

BOUND_S = 120
ONNX = Profile(engine="onnx")
PATIENT = Limits(boot_s=60, unit_min_s=60, text_s=60, backoff_first_s=0.01, backoff_max_s=0.01)


@asynccontextmanager
async def supervisor(folder: Path) -> AsyncIterator[Supervisor]:
    config = SupervisorConfig(state_dir=folder / "state", cache_dir=folder / "cache", text_processes=1, limits=PATIENT)
    async with open_supervisor(config) as opened:
        with trio.fail_after(BOUND_S):
            yield opened


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, np.int32)


def unit(vector: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    return vector / np.linalg.norm(vector)


TEXTS = tuple(
    text * times
    for times in (1, 6)
    for text in (
        "a puma ",
        "The mountain lion runs across the ridge. ",
        "Form 1040 is due in April! ",
        "naïve café, 中文 and emoji 🙂 ",
        "SELECT name FROM users WHERE id = 7; ",
        "It was the best of times, it was the worst of times. ",
        "antidisestablishmentarianism ",
        "1,234.56 euros per m² ",
        "HTTP/1.1 200 OK ",
        "don't stop — believing ",
    )
)


async def test_int8_minilm_agrees_with_the_llama_worker(tmp_path: Path) -> None:
    """Cosine of at least 0.997 for 20 texts; and each text's vector is the same alone as among others, bit for bit."""
    async with supervisor(tmp_path) as owner:
        here = SynapseProvider("a", "default", await owner.load(minilm_onnx_served(), ONNX), owner)
        there = SynapseProvider("b", "default", await owner.load(minilm_f16_gguf(), Profile(threads=1)), owner)
        found, wanted = await here.embed(Embed(inputs=TEXTS)), await there.embed(Embed(inputs=TEXTS))
        alone = [(await here.embed(Embed(inputs=(text,)))).vectors[0] for text in TEXTS[:4]]
    assert len(TEXTS) == 20
    assert np.sum(found.vectors * wanted.vectors, axis=1).min() >= 0.997
    assert found.input_tokens == wanted.input_tokens, "the same tokenizer"
    np.testing.assert_array_equal(found.vectors[:4], alone)


POOLED = encoder(table(), op=("ReduceMax", {"axes": [1], "keepdims": 0}), output=("n", WIDTH))
SERVED: dict[str, tuple[dict[str, str], bytes, Profile, str]] = {
    "mean": ({}, encoder(table()), ONNX, "mean"),
    "cls": ({"pooling": "cls_token"}, encoder(table()), ONNX, "cls"),
    "last": ({"pooling": "lasttoken"}, encoder(table()), ONNX, "last"),
    "profile": ({"pooling": "cls_token"}, encoder(table()), Profile(engine="onnx", pooling="mean"), "mean"),
    "fixed length": ({}, encoder(table(), shape=(1, 16)), ONNX, "mean"),
    "int32": ({}, encoder(table(), kind=INT32), ONNX, "mean"),
    "pooled by the graph": ({}, POOLED, ONNX, "max"),
}


async def test_vectors_are_those_of_the_graph(tmp_path: Path) -> None:
    vectors, rows = table(), ([2, 10, 11, 3], [2, 3])
    async with supervisor(tmp_path) as owner:
        lanes = {
            name: owner.start(tiny_encoder(tmp_path / name, graph, **beside), profile)
            for name, (beside, graph, profile, _) in SERVED.items()
        }
        for name, lane in lanes.items():
            await lane.ready()
            found = await lane.embed([ids(*row) for row in rows])
            for vector, row in zip(found, rows, strict=True):
                hidden, how = vectors[row], SERVED[name][3]
                wanted = {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.max(0)}[how]
                np.testing.assert_allclose(vector, unit(wanted), atol=1e-6, err_msg=name)


async def test_limits_are_measured_and_enforced(tmp_path: Path) -> None:
    """The model's own, the graph's fixed length, the profile's: the smallest holds."""
    async with supervisor(tmp_path) as owner:
        own = await owner.load(tiny_encoder(tmp_path / "own", context=24), ONNX)
        fixed = await owner.load(tiny_encoder(tmp_path / "fixed", encoder(table(), shape=(1, 16)), context=24), ONNX)
        asked = await owner.load(tmp_path / "own" / "model.onnx", Profile(engine="onnx", context=8))
        beyond = await owner.load(tmp_path / "own" / "model.onnx", Profile(engine="onnx", context=4000))
        for lane, limit in ((own, 24), (fixed, 16), (asked, 8), (beyond, 24)):
            provider = SynapseProvider("m", "default", lane, owner)
            bounds = {b.option: b.maximum for b in provider.snapshot().capability("text_embedding").option_bounds}
            assert bounds == {"dimensions": WIDTH, "input_count": 2048, "input_tokens": limit}
            assert (await lane.embed([ids(*[5] * limit)])).shape == (1, WIDTH)
            with pytest.raises(InputTooLarge) as caught:
                await lane.embed([ids(*[5] * (limit + 1))])
            assert (caught.value.value, caught.value.limit) == (limit + 1, limit)


BROKEN: dict[str, tuple[bytes, str]] = {
    "no protobuf": (b"\xff" * 100, "cannot load"),
    "empty": (b"", "cannot load|empty"),
    "cut": (encoder(table())[:-40], "cannot load"),
    "foreign inputs": (encoder(table(), inputs=("input_ids", "pixels")), "inputs are"),
    "no token ids": (encoder(table(), inputs=("ids",)), "inputs are"),
    "float ids": (encoder(table(), kind=1), "cannot load|not int64"),
    "a fixed batch": (encoder(table(), shape=(4, "length")), "batches of 4"),
    "no vector for each token": (
        encoder(table(), op=("Transpose", {}), output=(WIDTH, "length", "n")),
        "has the shape|gave 8 results",
    ),
    "a scalar": (
        encoder(table(), op=("ReduceMax", {"keepdims": 0}), output=()),
        "cannot be run|has the shape|dimensions",
    ),
}


async def test_what_cannot_be_served_is_refused_by_name(tmp_path: Path) -> None:
    """A refusal is no crash: the lane has failed, nothing is quarantined."""
    paths = {name: tiny_encoder(tmp_path / name, graph) for name, (graph, _) in BROKEN.items()}
    async with supervisor(tmp_path) as owner:
        lanes = {name: owner.start(path, ONNX) for name, path in paths.items()}
        for name, lane in lanes.items():
            with pytest.raises(SynapseError, match=BROKEN[name][1]):
                await lane.ready()
            assert lane.state == "failed", name


async def test_what_stands_beside_the_graph_is_checked(tmp_path: Path) -> None:
    paths = {name: tiny_encoder(tmp_path / name) for name in ("vocabulary", "cut", "configuration", "file")}
    (tmp_path / "vocabulary" / "vocab.txt").unlink()
    (tmp_path / "cut" / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (tmp_path / "configuration" / "config.json").write_text('{"max_position_embeddings": "many"')
    paths["file"].unlink()
    async with supervisor(tmp_path) as owner:
        for path in paths.values():
            with pytest.raises(InvalidInput):
                await owner.load(path, ONNX)


async def test_what_is_not_finite_costs_its_request_and_no_worker(tmp_path: Path) -> None:
    async with supervisor(tmp_path) as owner:
        lane = await owner.load(tiny_encoder(tmp_path / "m", encoder(nan_table())), ONNX)
        provider = SynapseProvider("m", "default", lane, owner)
        good = await provider.embed(Embed(inputs=("the cat",)))
        pid = worker_pid(lane)
        (bad,) = await owner.text.tokenize(lane.file, ["paris"])
        with pytest.raises(EngineRefused, match="not finite"):
            await lane.embed([bad])
        np.testing.assert_array_equal((await provider.embed(Embed(inputs=("the cat",)))).vectors, good.vectors)
        assert worker_pid(lane) == pid


def worker_pid(lane: Lane) -> int:
    return lane.health().workers[0].pid or 0


async def kill_worker(lane: Lane) -> None:
    """And wait until that is noticed."""
    crashes = lane.health().crashes
    os.kill(worker_pid(lane), signal.SIGKILL)
    while lane.health().crashes == crashes:
        await trio.lowlevel.checkpoint()


async def test_a_killed_worker_is_replaced_and_a_changed_file_is_not_loaded(tmp_path: Path) -> None:
    """The digest is checked on the bytes that are loaded: what was ingested is what runs, or nothing."""
    path = tiny_encoder(tmp_path / "m")
    async with supervisor(tmp_path) as owner:
        lane = await owner.load(path, ONNX)
        before = await lane.embed([ids(2, 10, 3)])
        await kill_worker(lane)
        np.testing.assert_array_equal(await lane.embed([ids(2, 10, 3)], max_queue=None), before)
        path.write_bytes(encoder(table(seed=1)))
        await kill_worker(lane)
        with pytest.raises(SynapseError):
            await lane.embed([ids(2, 10, 3)], max_queue=None)
        assert lane.state == "failed"
        assert "changed" in (lane.error or "")
