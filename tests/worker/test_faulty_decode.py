"""DECODE as the faulty engine serves it: what schedulers are tested against keeps the protocol's promises (W12, G5)."""

from __future__ import annotations

from array import array

from synapse.wire import messages as m
from worker_bin.faulty.arithmetic import token
from worker_bin.faulty.decode import Sequences


def start(seq: int, n_tokens: int, **settings: object) -> m.DecodeStart:
    sampling = m.Sampling(seed=int(settings.pop("seed", 0)))  # type: ignore[call-overload]
    settings = {"max_tokens": 20} | settings
    return m.DecodeStart(seq=seq, n_tokens=n_tokens, sampling=sampling, **settings)  # type: ignore[arg-type]


def quantum(
    engine: Sequences, prompts: list[list[int]] | None = None, **request: object
) -> dict[int, m.SequenceProgress]:
    ids = array("i", [token_id for prompt in prompts or [] for token_id in prompt])
    settings = {"max_steps": 5, "target_ms": 1e9} | request
    decode = m.Decode(req_id="d", model_ref="m", **settings)  # type: ignore[arg-type]
    return {progress.seq: progress for progress in engine.quantum(decode, ids).sequences}


def run_alone(prompt: list[int], seed: int = 0) -> str:
    engine = Sequences({})
    (progress,) = quantum(engine, [prompt], start=[start(0, len(prompt), seed=seed)], max_steps=100).values()
    assert progress.finish_reason == "length"
    return progress.text


def test_text_depends_on_prompt_and_seed_only() -> None:
    """Alone, in company, in pieces, in another place, with a reused prefix."""
    prompt = list(range(100))
    alone = run_alone(prompt)
    assert alone == "".join(chr(token(prompt, 0, at)) for at in range(20))
    assert alone != run_alone(prompt, seed=1)
    engine = Sequences({})
    got = quantum(engine, [prompt, [7]], start=[start(3, 100), start(5, 1)])
    text = got[3].text
    while got[3].finish_reason is None:
        got = quantum(engine, continue_=[3], max_steps=3)
        text += got[3].text
    assert text == alone
    got = quantum(engine, [prompt], start=[start(4, 100, reuse=m.Reuse(3, 64))], max_steps=100)
    assert (got[4].text, got[4].n_reused) == (alone, 64)


def test_a_held_sequence_keeps_its_state() -> None:
    engine = Sequences({})
    first = quantum(engine, [[1]], start=[start(0, 1)])[0].text
    assert quantum(engine, [[2]], start=[start(1, 1)]).keys() == {1}
    rest = quantum(engine, continue_=[0], max_steps=100)[0]
    assert first + rest.text == run_alone([1])
    assert rest.n_gen == 20


def test_stop_strings_are_never_shown() -> None:
    whole = run_alone([5])
    stop = whole[8:11]
    engine = Sequences({})
    progress = quantum(engine, [[5]], start=[start(0, 1, stop=[stop])], max_steps=1)[0]
    text = progress.text
    while progress.finish_reason is None:
        progress = quantum(engine, continue_=[0], max_steps=1)[0]
        text += progress.text
    assert text == whole[: whole.index(stop)]
    assert progress.finish_reason == "stop"


def test_one_sequences_failure_is_its_own() -> None:
    engine = Sequences({"parallel": "2", "context": "16"})
    got = quantum(
        engine,
        [[1], [2], [3] * 16, [4]],
        start=[start(0, 1), start(2, 1), start(1, 16), start(1, 1, grammar="root ::= x")],
        continue_=[7],
    )
    assert got[0].error is None
    assert got[2].error is not None
    assert got[1].error == m.SequenceError("unsupported", "no grammars here")
    assert got[7].error is not None
    assert quantum(engine, [[1]], start=[start(0, 1)])[0].error is not None  # taken
    quantum(engine, drop=[0])
    assert quantum(engine, [[1]], start=[start(0, 1)])[0].error is None


def test_an_empty_quantum_is_an_answer() -> None:
    assert quantum(Sequences({})) == {}
