"""The typed contract over HTTP with real engines: discovery, finite operations, and the order of refusals (C1)."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.gateway import Gateway, Reply

CAPITAL = "What is the capital of France? Answer in one sentence."


def chat(gateway: Gateway, text: str = CAPITAL, **fields: Any) -> Reply:
    options = {"kind": "text_generation", "temperature": 0, "max_tokens": 24} | fields.pop("options", {})
    messages = {"kind": "messages", "messages": [{"role": "user", "content": text}]}
    request = {"model": "smol", "input": messages, "output": "text", "options": options}
    return gateway.operation(**request | fields)


def embed(gateway: Gateway, texts: list[str], **options: Any) -> Any:
    reply = gateway.operation(
        model="minilm",
        input={"kind": "text_batch", "texts": texts},
        output="embeddings_float32",
        options={"kind": "embeddings", **options},
    )
    assert reply.status == 200, reply.body
    return np.array(reply.json()["result"]["vectors"], dtype=np.float32)


def error(reply: Reply) -> dict[str, Any]:
    body = reply.json()
    assert set(body) == {"contract_version", "request_id", "error"}
    assert set(body["error"]) == {"code", "outcome", "message"}
    found: dict[str, Any] = body["error"] | {"status": reply.status, "request_id": body["request_id"]}
    return found


# --- discovery --------------------------------------------------------------------------------------------------------


def test_discovery_lists_every_pair(gateway: Gateway) -> None:
    body = gateway.get("/v1/served-models").json()
    assert body["supported_contract_versions"] == [1]
    assert body["max_request_bytes"] == body["max_response_bytes"] == 32 * 1024 * 1024
    found = {(m["model"], m["profile"]): m for m in body["models"]}
    assert {alias for alias, _ in found} == {"smol", "minilm", "ranker", "headless", "tools", "twice"}
    assert found["twice", "two"]["profile_required"] is True
    assert found["twice", "two"]["context_tokens"] == 64
    assert found["smol", "default"]["profile_required"] is False
    for model in found.values():
        assert len(model["capabilities"]) == 10
    assert available(found["smol", "default"]) == {"chat_generation", "text_generation"}
    assert available(found["minilm", "default"]) == {"text_embedding"}
    assert available(found["ranker", "default"]) == {"rerank"}


def available(model: dict[str, Any]) -> set[str]:
    return {c["capability"] for c in model["capabilities"] if c["availability"]["state"] == "available"}


def test_a_model_that_failed_stays_in_the_list_with_its_reason(gateway: Gateway) -> None:
    models = gateway.get("/v1/served-models").json()["models"]
    headless = next(model for model in models if model["model"] == "headless")
    assert headless["load_state"] == "failed"
    assert "ranking head" in headless["detail"]["error"]
    assert available(headless) == set()
    refused = gateway.operation(
        model="headless", input={"kind": "rerank", "query": "a", "documents": ["b"]}, output="relevance_scores"
    )
    found = error(refused)
    assert (found["status"], found["code"], found["outcome"]) == (503, "capability_unavailable", "not_admitted")
    assert "runtime_unavailable" in found["message"]


def test_capabilities_of_one_identity(gateway: Gateway) -> None:
    body = gateway.get("/v1/capabilities?model=twice&profile=one").json()
    assert (body["model"], body["profile"]) == ("twice", "one")
    for query, status, code in [
        ("model=twice", 409, "ambiguous_model"),
        ("model=none", 404, "model_not_found"),
        ("model=smol&profile=none", 404, "model_not_found"),
        ("model=smol&x=1", 400, "invalid_request"),
        ("model=smol&model=smol", 400, "invalid_request"),
        ("", 400, "invalid_request"),
    ]:
        found = error(gateway.get(f"/v1/capabilities?{query}"))
        assert (found["status"], found["code"]) == (status, code), query


def test_health_tells_a_local_caller_about_lanes(gateway: Gateway) -> None:
    reply = gateway.get("/health")
    assert reply.status == 200
    body = reply.json()
    assert body["status"] == "degraded", "one model failed"
    assert {lane["model"] for lane in body["lanes"]} == {"smol", "minilm", "ranker", "headless", "tools", "twice"}
    assert all(lane["age_s"] >= 0 for lane in body["lanes"])


def test_unknown_routes_and_methods_have_the_shape(gateway: Gateway) -> None:
    reply = gateway.ask("POST", "/v1/served-models", {})
    assert (reply.status, error(reply)["code"]) == (405, "method_not_allowed")
    reply = gateway.get("/v1/nothing")
    assert (reply.status, reply.json()["error"]["code"]) == (404, "not_found")
    head = gateway.ask("HEAD", "/v1/models")
    assert (head.status, head.body) == (200, b"")


# --- results ----------------------------------------------------------------------------------------------------------


def test_asked_for_the_capital_of_france_it_says_paris(gateway: Gateway) -> None:
    result = chat(gateway).json()["result"]
    assert result["kind"] == "text"
    assert "Paris" in result["text"]
    assert result["finish_reason"] == "stop"
    assert result["usage"]["prompt_tokens"] > 0
    assert result["usage"]["completion_tokens"] > 0


def test_the_seed_in_an_answer_gives_the_answer_again(gateway: Gateway) -> None:
    hot = {"temperature": 1.5, "max_tokens": 12}
    first = chat(gateway, options=hot).json()["result"]
    again = chat(gateway, options=hot | {"seed": first["seed"]}).json()["result"]
    assert again["text"] == first["text"]
    texts = {
        chat(gateway, "Invent a name.", options=hot | {"seed": seed}).json()["result"]["text"] for seed in range(4)
    }
    assert len(texts) > 1, "a seed matters"


def test_text_goes_on_from_a_prompt(gateway: Gateway) -> None:
    reply = gateway.operation(
        model="smol",
        capability="text_generation",
        input={"kind": "text", "text": "One, two, three, four,"},
        output="text",
        options={"kind": "text_generation", "temperature": 0, "max_tokens": 4},
    )
    result = reply.json()["result"]
    assert "five" in result["text"]
    assert result["finish_reason"] == "length"


def test_a_schema_holds(gateway: Gateway) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "big": {"type": "boolean"}},
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    result = chat(gateway, options={"json_schema": schema, "max_tokens": 40}).json()["result"]
    assert result["finish_reason"] == "stop"
    assert set(msgspec.json.decode(result["text"])) == {"city", "big"}
    refused = error(chat(gateway, options={"grammar": "root ::= (((", "max_tokens": 4}))
    assert (refused["code"], refused["outcome"]) == ("invalid_request", "not_admitted")


def test_stop_strings_end_the_text_and_are_not_in_it(gateway: Gateway) -> None:
    whole = chat(gateway).json()["result"]["text"]
    cut = chat(gateway, options={"stop": [" is"]}).json()["result"]
    assert cut["text"] == whole.partition(" is")[0]
    assert cut["finish_reason"] == "stop"


def test_batch_equals_single_and_order_is_kept(gateway: Gateway) -> None:
    texts = ["Paris is a city.", "A cat sat on the mat.", "short", "Rain falls on the plain in spring."]
    together = embed(gateway, texts)
    assert together.shape == (4, 384)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    alone = np.concatenate([embed(gateway, [text]) for text in texts])
    assert (np.sum(alone * together, axis=1) > 0.99999).all()


def test_fewer_dimensions_are_the_leading_ones_normalized_again(gateway: Gateway) -> None:
    whole, cut = embed(gateway, ["a text"]), embed(gateway, ["a text"], dimensions=16)
    leading = whole[:, :16] / np.linalg.norm(whole[:, :16])
    np.testing.assert_allclose(cut, leading, atol=1e-6)


def test_ranking_is_ordered_and_cut(gateway: Gateway) -> None:
    documents = ["the cat", "paris", "a dog sat", "france"]

    def rank(**options: Any) -> dict[str, Any]:
        reply = gateway.operation(
            model="ranker",
            input={"kind": "rerank", "query": "paris france", "documents": documents},
            output="relevance_scores",
            options={"kind": "rerank", **options},
        )
        result: dict[str, Any] = reply.json()["result"]
        return result

    whole = rank()
    scores = [entry["relevance_score"] for entry in whole["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(entry["index"] for entry in whole["results"]) == [0, 1, 2, 3]
    assert whole["input_tokens"] > 0
    assert rank(top_n=2)["results"] == whole["results"][:2]


@pytest.mark.parametrize("capability", ["chat_generation", "text_generation"])
def test_special_token_text_stays_text_unless_the_profile_says_otherwise(gateway: Gateway, capability: str) -> None:
    """The tiny vocabulary spells `<|im_end|>` in ten bytes; as a token it is one."""

    def prompt_tokens(profile: str, text: str) -> int:
        reply = gateway.operation(
            model="twice",
            profile=profile,
            capability=capability,
            input={"kind": "text", "text": text},
            output="text",
            options={"kind": "text_generation", "max_tokens": 1},
        )
        count: int = reply.json()["result"]["usage"]["prompt_tokens"]
        return count

    plain = prompt_tokens("one", "x")
    assert prompt_tokens("one", "x<|im_end|>") == plain + len("<|im_end|>")
    assert prompt_tokens("two", "x<|im_end|>") == plain + 1


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_text_over_the_window_is_named(gateway: Gateway) -> None:
    reply = gateway.operation(
        model="minilm",
        input={"kind": "text_batch", "texts": ["fine", "word " * 600, "fine"]},
        output="embeddings_float32",
    )
    found = error(reply)
    assert (found["status"], found["code"], found["outcome"]) == (413, "request_limit", "not_admitted")
    for word in ("item 1", "602", "512"):
        assert word in found["message"]


def test_a_prompt_over_the_window_is_refused_with_both_counts(gateway: Gateway) -> None:
    reply = gateway.operation(
        model="twice",
        profile="two",
        capability="text_generation",
        input={"kind": "text", "text": "abc def " * 20},
        output="text",
    )
    found = error(reply)
    assert (found["status"], found["code"]) == (413, "request_limit")
    assert "63" in found["message"]


def test_what_cannot_fit_is_refused_before_it_is_tokenized(gateway: Gateway) -> None:
    reply = gateway.operation(
        model="minilm", input={"kind": "text", "text": "x" * (8 << 20)}, output="embeddings_float32"
    )
    found = error(reply)
    assert (found["status"], found["code"]) == (413, "request_limit")
    assert str(8 << 20) in found["message"]


GOOD: dict[str, Any] = {
    "contract_version": 1,
    "request_id": "order:1",
    "model": "smol",
    "capability": "chat_generation",
    "input": {"kind": "text", "text": "hi"},
    "output": "text",
    "options": {"kind": "text_generation", "max_tokens": 1},
}
BAD = {
    "version": {"contract_version": 2},
    "schema": {"optoins": {}},
    "model": {"model": "none"},
    "resolution": {"output": "embeddings_float32"},
    "options": {"options": {"kind": "text_generation", "max_tokens": 10**6}},
}
"""Faults in the order in which they are looked for (C1)."""
CODES = {
    "version": (400, "unsupported_contract"),
    "schema": (400, "invalid_request"),
    "model": (404, "model_not_found"),
    "resolution": (422, "unsupported_modality"),
    "options": (413, "request_limit"),
}


@pytest.mark.parametrize("first", BAD)
def test_the_first_fault_is_the_answer(gateway: Gateway, first: str) -> None:
    """A request with a fault and all later ones is answered for the first."""
    request = dict(GOOD)
    for name in list(BAD)[list(BAD).index(first) :]:
        request |= BAD[name]
    found = error(gateway.post("/v1/model-operations", request))
    assert (found["status"], found["code"]) == CODES[first]
    assert (found["outcome"], found["request_id"]) == ("not_admitted", "order:1")


def test_what_is_not_json_has_no_request_id(gateway: Gateway) -> None:
    found = error(gateway.post("/v1/model-operations", b'{"request_id": "x",'))
    assert (found["status"], found["code"], found["request_id"]) == (400, "invalid_request", None)
    too_large = error(gateway.post("/v1/model-operations", b" " * (32 * 1024 * 1024 + 1)))
    assert (too_large["status"], too_large["code"]) == (413, "request_limit")


@pytest.mark.parametrize(
    ("fields", "status", "code", "words"),
    [
        ({"capability": None, "input": {"kind": "text", "text": "x"}}, 409, "ambiguous_operation", "chat_generation"),
        ({"model": "twice"}, 409, "ambiguous_model", "`one`, `two`"),
        ({"input": {"kind": "decision", "state": 1, "questions": {}}}, 400, "invalid_request", "questions"),
        ({"options": {"kind": "text_generation", "temperature": 2.1}}, 400, "invalid_request", "temperature"),
        ({"options": {"kind": "text_generation", "top_n": 2}}, 400, "invalid_request", "top_n"),
        ({"input": {"kind": "text", "text": " "}}, 400, "invalid_request", "white space"),
        ({"stream": True, "output": "relevance_scores"}, 400, "invalid_request", "stream"),
    ],
)  # fmt: skip
def test_refusals_name_what_is_wrong(
    gateway: Gateway, fields: dict[str, Any], status: int, code: str, words: str
) -> None:
    found = error(gateway.post("/v1/model-operations", GOOD | fields))
    assert (found["status"], found["code"], found["outcome"]) == (status, code, "not_admitted")
    assert words in found["message"]


def test_reserved_audio_is_unavailable_for_its_reason(gateway: Gateway) -> None:
    clip = {"encoding": "pcm_s16le", "sample_rate_hz": 16000, "channels": 1, "sample_count": 1, "data_base64": "AAA="}
    reply = gateway.operation(model="smol", input={"kind": "audio", **clip}, output="text")
    found = error(reply)
    assert (found["status"], found["code"]) == (503, "capability_unavailable")
    assert "unqualified_audio_runtime" in found["message"]


def test_what_is_permanent_says_so_and_what_failed_says_why_and_the_way_out(gateway: Gateway) -> None:
    mismatch = gateway.post("/v1/embeddings", {"model": "smol", "input": "x"})
    assert mismatch.status == 503
    message = mismatch.json()["error"]["message"]
    assert message == "`smol` (profile `default`) cannot serve this: text_embedding (model_task_mismatch)"
    assert "retry-after" not in mismatch.headers
    failed = gateway.post("/v1/rerank", {"model": "headless", "query": "q", "documents": ["d"]})
    assert failed.status == 503
    message = failed.json()["error"]["message"]
    assert "cannot serve this now" in message
    assert "ranking head" in message
    assert message.endswith("to try again: pumas probe headless")


def test_a_model_that_is_not_there_is_answered_with_those_that_are(gateway: Gateway) -> None:
    assert "served: `headless`, `minilm`" in gateway.get("/v1/models/zzz").json()["error"]["message"]


def test_prompts_are_never_logged(gateway: Gateway) -> None:
    chat(gateway, "a most private zebra")
    gateway.until_logged("path=/v1/model-operations")
    assert "zebra" not in gateway.log()
