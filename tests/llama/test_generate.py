"""Generation with real models: the engine's own continuation, the same in any company, whole characters."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from synapse.wire import messages as m
from tests import models
from tests.llama import reference
from tests.llama.driver import Driver, Result, Run, Stream, tokens, worker
from tests.promises.scale import measured

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
WORDS = (
    "The ship left the harbour before dawn and nobody on the pier could say where it was bound for, although the "
    "captain had spoken of islands in the south, of warm rain, of a market where pepper is sold by the handful. "
)
LENGTHS = (20, 24, 30, 42, 64, 90, 140, 650)


@cache
def smol_ids(text: str) -> tuple[int, ...]:
    return tuple(tokens(models.smollm2(), text))


def prompts(model: Path, lengths: Sequence[int] = LENGTHS) -> list[list[int]]:
    """Prompts of these lengths in tokens, each with a beginning of its own."""
    text = WORDS * 20
    return [tokens(model, f"Story {i}. {text}")[:n] for i, n in enumerate(lengths)]


def outcome(result: Result) -> tuple[object, ...]:
    return result.text, result.ids, result.finish_reason, result.error


def joined_at_random(driver: Driver, streams: Sequence[Stream], seed: int) -> None:
    """Run them to their ends, joining and being held at random, in quanta of random size and threads."""
    r = random.Random(seed)
    run, waiting = Run(driver), list(enumerate(streams))
    r.shuffle(waiting)
    while waiting or run.busy:
        for _ in range(r.randint(0, 3)):
            if waiting:
                run.add(*waiting.pop())
        hold = [place for place in run.running if r.random() < 0.1]
        run.quantum(
            max_steps=r.randint(1, 4), target_ms=r.choice([20.0, 60.0, 1000.0]), hold=hold, threads=r.choice([1, 2])
        )


def test_greedy_equals_the_plain_engine(smol: Driver) -> None:
    asked = [list(smol_ids(CHAT.format("What is the capital of France?"))), prompts(models.smollm2(), [90])[0]]
    wanted = reference.ask("greedy", models.smollm2(), asked, n=24, context=1024, threads=2)
    found = smol.run(*(Stream(ids, 24) for ids in asked))
    assert [result.ids for result in found] == wanted
    assert "Paris" in found[0].text
    text = smol.generate(asked[0], 24)
    assert (text.text, text.finish_reason) == (found[0].text, found[0].finish_reason)


@pytest.mark.parametrize("n", [32, pytest.param(200, marks=pytest.mark.proof)])
def test_eight_streams_equal_each_alone(smol: Driver, n: int) -> None:
    """Greedy and sampled, prompts of 20 to 650 tokens, joining at random, at one thread and two."""
    sampled = [m.Sampling(temperature=0.8, seed=100 + i) for i in range(8)]
    rounds = [[m.Sampling() if i % 2 else sampled[i] for i in range(8)]]
    if n > 32:
        rounds = [[m.Sampling()] * 8, sampled]
    for samplings in rounds:
        streams = [Stream(ids, n, sampling) for ids, sampling in zip(prompts(models.smollm2()), samplings, strict=True)]
        joined_at_random(smol, streams, seed=n)
        for place, stream in enumerate(streams):
            smol.decode(drop=list(range(8)))
            (alone,) = smol.run(stream.again(), places=[(place + 3) % 8], threads=1 + place % 2)
            assert outcome(stream.result) == outcome(alone)
    measured("G2", f"{8 * len(rounds)} streams of {n} tokens (SmolLM2), each equal to itself alone")


def test_a_chats_second_turn_evaluates_only_its_new_tokens(smol: Driver) -> None:
    first_turn = list(smol_ids(CHAT.format("Name a colour.")))
    smol.decode(drop=list(range(8)))
    (first,) = smol.run(Stream(first_turn, 24))
    second_turn = [*first_turn, *first.ids, *smol_ids("\n" + CHAT.format("And another one?"))]
    (reused,) = smol.run(Stream(second_turn, 24, reuse=(0, len(second_turn))))
    assert reused.n_reused == len(first_turn) + len(first.ids) - 1
    smol.decode(drop=list(range(8)))
    (fresh,) = smol.run(Stream(second_turn, 24))
    assert fresh.n_reused == 0
    assert outcome(reused) == outcome(fresh)


def test_a_stop_string_across_three_tokens(smol: Driver) -> None:
    asked = Stream(smol_ids(CHAT.format("What is the capital of France?")), 24)
    (plain,) = smol.run(asked.again())
    pieces = plain.deltas if len(plain.deltas) > 3 else [plain.text]
    assert "The capital of France is Paris" in "".join(pieces)
    stopped = asked.again(stop=["al of Fr"])
    run = Run(smol)
    run.add(0, stopped)
    while run.busy:
        run.quantum(max_steps=1)
    result = stopped.result
    assert (result.text, result.finish_reason) == ("The capit", "stop")
    assert "".join(result.deltas[:-1]) in ("The", "The capit")


def test_emoji_and_cjk_leave_whole(smol: Driver) -> None:
    wanted = "数据科学 😀👩‍👩‍👧 für naïve Ωμέγα"
    stream = Stream(smol_ids("x"), 120, grammar=f'root ::= "{wanted}"')
    run = Run(smol)
    run.add(0, stream)
    while run.busy:
        run.quantum(max_steps=1)
    assert stream.result.text == wanted
    assert len(stream.result.ids) > len(wanted) / 2
    assert all("\ufffd" not in delta for delta in stream.result.deltas)
    assert any(delta == "" for delta in stream.result.deltas)  # a character takes several tokens


def test_a_schema_makes_a_chat_model_answer_in_json(smol: Driver) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "population": {"type": "integer", "minimum": 1}},
        "required": ["city", "population"],
        "additionalProperties": False,
    }
    asked = smol_ids(CHAT.format("Describe Paris as JSON with city and population."))
    (result,) = smol.run(Stream(asked, 100, json_schema=json.dumps(schema)))
    assert result.error is None
    if result.finish_reason == "stop":
        value = json.loads(result.text)
        assert set(value) == {"city", "population"}
    (sampled,) = smol.run(
        Stream(asked, 60, m.Sampling(temperature=1.0, seed=5), json_schema='{"enum": ["red", "green"]}', logprobs=2)
    )
    assert sampled.text in ('"red"', '"green"')
    assert len(sampled.logprobs) == len(sampled.ids)


@pytest.mark.proof
def test_gemma_in_strict_is_the_same_in_any_company() -> None:
    """K-quantized weights and sliding windows: 8 streams of 200 tokens, at one thread and two."""
    with worker() as driver:
        found = driver.load(models.gemma3(), context=1024, deterministic="strict", threads=2).measured
        assert found.deterministic
        assert found.reuse_equal
        assert found.threads_equal
        for samplings in ([m.Sampling()] * 8, [m.Sampling(temperature=0.8, seed=i) for i in range(8)]):
            streams = [
                Stream(ids, 200, sampling) for ids, sampling in zip(prompts(models.gemma3()), samplings, strict=True)
            ]
            joined_at_random(driver, streams, seed=1)
            for place, stream in enumerate(streams):
                driver.decode(drop=list(range(8)))
                (alone,) = driver.run(stream.again(), threads=1 + place % 2)
                assert outcome(stream.result) == outcome(alone)
    measured("G2", "16 streams of 200 tokens (Gemma 3 Q4_K_M, strict), each equal to itself alone")
