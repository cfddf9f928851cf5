"""Models behind other servers through `pumas serve`: consumers see no difference but the descriptors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.upstream.gateway import Upstreams
from tests.upstream.media import audio_part, image_part, text_part

GREEDY = {"kind": "text_generation", "temperature": 0, "max_tokens": 12}


def user(*parts: Any) -> dict[str, Any]:
    return {"kind": "messages", "messages": [{"role": "user", "content": list(parts) if len(parts) > 1 else parts[0]}]}


def error(reply: Any) -> dict[str, Any]:
    return reply.json()["error"] | {"status": reply.status}  # type: ignore[no-any-return]


def served(upstreams: Upstreams) -> dict[str, Any]:
    return {m["model"]: m for m in upstreams.gateway.get("/v1/served-models").json()["models"]}


def available(model: dict[str, Any]) -> set[str]:
    return {c["capability"] for c in model["capabilities"] if c["availability"]["state"] == "available"}


def test_discovery_shows_what_each_server_said(upstreams: Upstreams) -> None:
    found = served(upstreams)
    text = {"chat_generation", "text_generation"}
    assert {name: available(model) for name, model in found.items()} == {
        "local": text,
        "eyes": {*text, "image_to_text"},
        "vectors": {"text_embedding", "multimodal_embedding"},
        "judge": {"decision"},
        "headless": set(),
        "elsewhere": text,
        "smol-there": text,
        "minilm-there": {"text_embedding"},
        "ranker-there": {"rerank"},
        "faked": text,
        "faked-vectors": {"text_embedding", "rerank"},
    }
    for model in found.values():
        assert len(model["capabilities"]) == 10
    assert found["eyes"]["provider"] == "llama.cpp"
    assert {"text", "image", "audio"} <= set(found["eyes"]["modalities"]["input"])
    assert found["eyes"]["context_tokens"] == 2048
    assert found["eyes"]["model_id"] == found["local"]["model_id"], "the same file"
    assert found["elsewhere"]["model_id"] == "tiny.gguf", "not the path that it has there"
    assert found["vectors"]["modalities"]["output"] == ["vector"]
    assert found["judge"]["modalities"]["output"] == ["json"]
    assert found["elsewhere"]["profile_required"] is True
    assert found["headless"]["load_state"] == "failed"
    assert "ranking head" in found["headless"]["detail"]["error"]


def test_a_probe_asks_again_and_says_what_is_still_wrong(upstreams: Upstreams) -> None:
    failed = upstreams.gateway.post("/admin/probe", {"model": "headless"})
    assert (failed.status, failed.json()["error"]["code"]) == (503, "capability_unavailable")
    assert "ranking head" in failed.json()["error"]["message"]
    for model in ("judge", "smol-there"):
        assert upstreams.gateway.post("/admin/probe", {"model": model}).json()["load_state"] == "loaded"


def test_health_shows_every_upstream(upstreams: Upstreams) -> None:
    body = upstreams.gateway.get("/health").json()
    lanes = {lane["model"]: lane for lane in body["lanes"]}
    assert body["status"] == "degraded", "headless has failed"
    assert lanes["headless"]["state"] == "failed"
    assert {lanes[name]["state"] for name in ("eyes", "elsewhere", "smol-there", "faked")} == {"loaded"}
    assert set(lanes["faked"]["detail"]) == {"running", "queued"}


def test_descriptors_bound_what_the_server_reported(upstreams: Upstreams) -> None:
    capabilities = {c["capability"]: c for c in served(upstreams)["eyes"]["capabilities"]}
    bounds = {b["option"]: b["maximum"] for b in capabilities["chat_generation"]["option_bounds"]}
    assert (bounds["max_tokens"], bounds["image_count"], bounds["audio_count"]) == (2048, 4, 4)
    assert "messages_audio" in capabilities["chat_generation"]["input_formats"]
    assert capabilities["image_to_text"]["input_modalities"] == ["text", "image"]
    dimensions = {c["capability"]: c for c in served(upstreams)["vectors"]["capabilities"]}["text_embedding"]
    assert {b["option"]: b["maximum"] for b in dimensions["option_bounds"]}["dimensions"] == 64


# --- a llama-server of our own ----------------------------------------------------------------------------------------


def test_images_and_audio_change_what_the_model_says(upstreams: Upstreams) -> None:
    """The generated projector gives tokens: the answers differ, and the prompt is longer by as many."""

    def said(*parts: Any, **fields: Any) -> tuple[str, int]:
        result = upstreams.ask(model="eyes", input=user(*parts), output="text", options=GREEDY, **fields)
        return result["text"], result["usage"]["prompt_tokens"]

    plain, n_plain = said(text_part("Describe"), text_part("it"), capability="chat_generation")
    seen, n_seen = said(text_part("Describe"), image_part())
    again, _ = said(text_part("Describe"), image_part(), capability="chat_generation")
    heard, n_heard = said(text_part("Describe"), audio_part())
    both, n_both = said(text_part("Describe"), image_part(), audio_part())
    assert seen == again
    assert len({plain, seen, heard, both}) == 4
    assert n_seen > n_plain
    assert n_both > n_heard > n_plain + 100, "an audio clip is 150 tokens here"


def test_an_image_alone_is_described(upstreams: Upstreams) -> None:
    result = upstreams.ask(model="eyes", input=image_part(), output="text", options=GREEDY)
    assert result["finish_reason"] in ("stop", "length")


def test_a_stream_is_projected(upstreams: Upstreams) -> None:
    fields = {"model": "eyes", "capability": "chat_generation", "input": user("Hi"), "output": "text"}
    whole = upstreams.ask(**fields, options=GREEDY)
    reply = upstreams.gateway.operation(**fields, options=GREEDY, stream=True)
    events = [msgspec.json.decode(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: ")]
    assert [e["kind"] for e in events][0 :: len(events) - 1] == ["started", "completed"]
    assert "".join(e.get("text", "") for e in events) == whole["text"]
    assert events[-1]["finish_reason"] == whole["finish_reason"]
    assert events[-1]["usage"] == whole["usage"]


def test_content_batch_gives_vectors_in_the_space_of_the_texts(upstreams: Upstreams) -> None:
    items = [{"parts": [text_part("hello")]}, {"parts": [text_part("hello"), image_part()]}]
    batch = {"kind": "content_batch", "items": items}
    found = upstreams.ask(model="vectors", input=batch, output="embeddings_float32")["vectors"]
    text = {"kind": "text", "text": "hello"}
    alone = upstreams.ask(model="vectors", capability="text_embedding", input=text, output="embeddings_float32")
    both, one = np.array(found, np.float32), np.array(alone["vectors"][0], np.float32)
    assert both.shape == (2, 64)
    np.testing.assert_allclose(both[0], one, atol=1e-5)
    assert float(both[1] @ one) < 0.9
    cut = upstreams.ask(
        model="vectors", input=batch, output="embeddings_float32", options={"kind": "embeddings", "dimensions": 8}
    )
    np.testing.assert_allclose(np.linalg.norm(np.array(cut["vectors"]), axis=1), 1, atol=1e-5)


QUESTIONS = {
    "route": {"type": "choice", "instructions": "Which team?", "criteria": {"billing": "money", "shipping": None}},
    "urgency": {"type": "score", "instructions": "How urgent?", "criteria": ["can wait", "today", "now"]},
    "angry": {"type": "noul", "instructions": "Is the customer angry?"},
}


def test_a_decision_model_decides(upstreams: Upstreams) -> None:
    content = {"kind": "decision", "state": {"ticket": "charged twice"}, "questions": QUESTIONS}
    result = upstreams.ask(model="judge", input=content, output="decisions")
    answers = result["answers"]
    assert list(answers) == list(QUESTIONS)
    assert answers["route"]["choice"] in ("billing", "shipping")
    assert sum(answers["route"]["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    assert answers["urgency"]["legend"] == {"0": "can wait", "1": "today", "2": "now"}
    assert 0 <= answers["urgency"]["score"] <= 2
    assert 0 <= answers["angry"]["noul"] <= 1
    assert result["input_tokens"] > 0


def test_a_decision_model_does_nothing_else_and_takes_no_smuggled_images(upstreams: Upstreams) -> None:
    refused = upstreams.gateway.operation(model="judge", input=user("Hi"), output="text")
    assert (error(refused)["status"], error(refused)["outcome"]) == (503, "not_admitted")
    chat = upstreams.gateway.post("/v1/chat/completions", {"model": "judge", "messages": user("Hi")["messages"]})
    assert (chat.status, chat.json()["error"]["outcome"]) == (503, "not_admitted")
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    content = {"kind": "decision", "state": [{"role": "user", "content": [url]}], "questions": QUESTIONS}
    refused = upstreams.gateway.operation(model="judge", input=content, output="decisions")
    assert (error(refused)["status"], error(refused)["outcome"]) == (400, "not_admitted")
    assert "`images`" in error(refused)["message"]


def test_openai_routes_of_our_own_llama_server(upstreams: Upstreams) -> None:
    body = {"model": "eyes", "messages": [{"role": "user", "content": "Hi"}], "temperature": 0, "max_tokens": 12}
    whole = upstreams.gateway.post("/v1/chat/completions", body)
    assert whole.status == 200
    stream = upstreams.gateway.post("/v1/chat/completions", body | {"stream": True})
    assert stream.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in stream.body.decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    text = "".join(msgspec.json.decode(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines[:-1])
    assert text == whole.json()["choices"][0]["message"]["content"]
    typed = upstreams.ask(model="eyes", capability="chat_generation", input=user("Hi"), output="text", options=GREEDY)
    assert typed["text"] == text


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/x.png", "file:///etc/hostname", {"url": "https://a/x.png"}])
def test_our_own_llama_server_fetches_nothing_for_clients(upstreams: Upstreams, url: Any) -> None:
    part = {"type": "image_url", "image_url": url}
    body = {"model": "eyes", "messages": [{"role": "user", "content": [part]}], "max_tokens": 2}
    reply = upstreams.gateway.post("/v1/chat/completions", body)
    assert (reply.status, reply.json()["error"]["outcome"]) == (400, "not_admitted")
    data = "data:image/png;base64," + image_part()["data_base64"]
    part["image_url"] = {"url": data}
    assert upstreams.gateway.post("/v1/chat/completions", body).status == 200
    refused = upstreams.gateway.post(
        "/v1/embeddings", {"model": "vectors", "input": [{"content": [part | {"image_url": url}]}]}
    )
    assert refused.status == 400


# --- servers that run elsewhere ---------------------------------------------------------------------------------------


def test_one_file_says_the_same_wherever_it_runs(upstreams: Upstreams) -> None:
    """Our worker's Q8_0 cache is not llama-server's F16 one, so here only the two llama-servers are compared."""
    fields = {"capability": "chat_generation", "input": user("Name a colour"), "output": "text", "options": GREEDY}
    texts = {upstreams.ask(model="elsewhere", profile=p, **fields)["text"] for p in ("one", "two")}
    assert texts == {upstreams.ask(model="eyes", **fields)["text"]}


def test_another_pumas_gives_its_own_answers(upstreams: Upstreams) -> None:
    fields = {"capability": "chat_generation", "input": user("Name a colour"), "output": "text", "options": GREEDY}
    here = upstreams.ask(model="smol-there", **fields)
    there = upstreams.behind.operation(model="smol", **fields).json()["result"]
    assert here["text"] == there["text"]
    batch = {"kind": "text_batch", "texts": ["a puma", "tax form"]}
    vectors = upstreams.ask(model="minilm-there", input=batch, output="embeddings_float32")["vectors"]
    own = upstreams.behind.operation(model="minilm", input=batch, output="embeddings_float32").json()["result"]
    np.testing.assert_allclose(vectors, own["vectors"], atol=1e-6)
    documents = {"kind": "rerank", "query": "the cat", "documents": ["the dog sat", "paris"]}
    ranked = upstreams.ask(model="ranker-there", input=documents, output="relevance_scores")
    own = upstreams.behind.operation(model="ranker", input=documents, output="relevance_scores").json()["result"]
    assert ranked["results"] == own["results"]


def test_the_reason_of_a_refusal_reaches_the_caller(upstreams: Upstreams) -> None:
    long = {"kind": "text", "text": "a puma " * 2000}
    reply = upstreams.gateway.operation(model="minilm-there", input=long, output="embeddings_float32")
    found = error(reply)
    assert (found["status"], found["code"], found["outcome"]) == (502, "provider_failure", "unknown")
    assert "token" in found["message"]
    assert upstreams.behind.url not in found["message"]
