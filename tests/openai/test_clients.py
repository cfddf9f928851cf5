"""Real clients against real engines: the `openai` and `cohere` packages, and curl."""

from __future__ import annotations

import base64
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import cohere
import msgspec
import numpy as np
import openai
import pytest

from tests.gateway import BOUND_S, Gateway

CAPITAL = "What is the capital of France? Answer in one sentence."


@pytest.fixture
def client(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", timeout=BOUND_S, max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    ids = [model.id for model in client.models.list()]
    assert ids == ["smol", "minilm", "ranker", "headless", "tools", "twice"], "each alias once"
    assert client.models.retrieve("smol").owned_by == "llama.cpp"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_completion_tokens=24, user="u"
    )
    choice = answer.choices[0]
    assert "Paris" in (choice.message.content or "")
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream_makes_the_finite_text(client: openai.OpenAI) -> None:
    def ask(**more: object) -> object:
        return client.chat.completions.create(  # type: ignore[call-overload]
            model="smol", messages=[{"role": "user", "content": CAPITAL}], temperature=0, max_tokens=24, **more
        )

    whole = ask()
    text, reasons, usage = "", [], None
    with ask(stream=True, stream_options={"include_usage": True}) as chunks:  # type: ignore[attr-defined]
        for chunk in chunks:
            if chunk.usage is not None:
                usage = chunk.usage
                assert chunk.choices == []
            for choice in chunk.choices:
                text += choice.delta.content or ""
                reasons.append(choice.finish_reason)
    assert text == whole.choices[0].message.content  # type: ignore[attr-defined]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert usage is not None
    assert usage.completion_tokens == whole.usage.completion_tokens  # type: ignore[attr-defined]


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=4,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert len(logprobs.content) == 4
    assert "".join(entry.token for entry in logprobs.content) == answer.choices[0].message.content
    for entry in logprobs.content:
        assert entry.logprob <= 0
        assert entry.token == entry.top_logprobs[0].token, "greedy takes the likeliest"
        assert len(entry.top_logprobs) == 3


def test_structured_output(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"type": "string", "maxLength": 10}},
        "required": ["capital"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model="smol",
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=40,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}},
    )
    assert set(msgspec.json.decode(answer.choices[0].message.content or "")) == {"capital"}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
                "required": ["n"],
                "additionalProperties": False,
            },
        },
    }
]


def test_a_forced_tool_call_is_one(client: openai.OpenAI) -> None:
    """The model's weights are random: only the constraint makes its answer a call."""
    answer = client.chat.completions.create(
        model="tools",
        messages=[{"role": "user", "content": "look"}],
        tools=TOOLS,  # type: ignore[arg-type]
        tool_choice="required",
        max_tokens=200,
        seed=3,
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "look_up"
    assert 0 <= msgspec.json.decode(call.function.arguments)["n"] <= 9


def test_a_forced_tool_call_streams(client: openai.OpenAI) -> None:
    names, arguments, reasons = [], "", []
    with client.chat.completions.create(
        model="tools",
        messages=[{"role": "user", "content": "look"}],
        tools=TOOLS,  # type: ignore[arg-type]
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        max_tokens=200,
        seed=3,
        stream=True,
    ) as chunks:
        for chunk in chunks:
            reasons.append(chunk.choices[0].finish_reason)
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                names.append(call.function.name)
                arguments += call.function.arguments or ""
    assert names == ["look_up"]
    assert "n" in msgspec.json.decode(arguments)
    assert reasons[-1] == "tool_calls"


def test_a_conversation_with_a_tool_goes_on(client: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"n": 1}'}}
    turns = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "7", "tool_call_id": "c1"},
    ]
    answer = client.chat.completions.create(model="tools", messages=turns, tools=TOOLS, max_tokens=4, temperature=0)  # type: ignore[call-overload]
    assert answer.usage.completion_tokens == 4


def test_tools_are_refused_where_nothing_could_read_them(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(
            model="smol",
            messages=[{"role": "user", "content": "x"}],
            tools=TOOLS,  # type: ignore[arg-type]
        )
    assert caught.value.param == "tools"


def test_completions(client: openai.OpenAI, gateway: Gateway) -> None:
    answer = client.completions.create(model="smol", prompt="One, two, three, four,", temperature=0, max_tokens=4)
    assert "five" in answer.choices[0].text
    ids = answer.usage.prompt_tokens if answer.usage else 0
    assert ids > 0
    with client.completions.create(
        model="smol", prompt="One, two, three, four,", temperature=0, max_tokens=4, stream=True, logprobs=1
    ) as chunks:
        pieces = list(chunks)
    assert "".join(piece.choices[0].text for piece in pieces) == answer.choices[0].text
    legacy = [piece.choices[0].logprobs for piece in pieces if piece.choices[0].logprobs]
    assert sum(len(entry.tokens or []) for entry in legacy) == 4


def test_prompt_ids_are_taken_as_they_are(client: openai.OpenAI) -> None:
    from_ids = client.completions.create(model="smol", prompt=[504, 28, 827], temperature=0, max_tokens=4)
    assert from_ids.usage is not None
    assert from_ids.usage.prompt_tokens == 3
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="smol", prompt=[10**9])
    assert "vocabulary" in caught.value.message


def test_a_chat_model_with_a_pooling_embeds_as_well(client: openai.OpenAI, gateway: Gateway) -> None:
    found = client.embeddings.create(model="tools", input=["a text", "another"])
    assert [len(entry.embedding) for entry in found.data] == [64, 64]
    assert client.completions.create(model="tools", prompt="a text", max_tokens=3).usage.completion_tokens == 3
    refused = gateway.post("/v1/embeddings", {"model": "smol", "input": "a text"})
    assert (refused.status, refused.json()["error"]["code"]) == (503, "capability_unavailable")


def test_embeddings_are_base64_for_the_sdk_and_equal_to_floats(client: openai.OpenAI, gateway: Gateway) -> None:
    texts = ["Paris is a city.", "A cat sat on the mat."]
    by_sdk = client.embeddings.create(model="minilm", input=texts)
    assert [entry.index for entry in by_sdk.data] == [0, 1]
    body = {"model": "minilm", "input": texts}
    floats = gateway.post("/v1/embeddings", body).json()["data"]
    encoded = gateway.post("/v1/embeddings", body | {"encoding_format": "base64"}).json()["data"]
    for entry, number, text in zip(by_sdk.data, floats, encoded, strict=True):
        exact = np.frombuffer(base64.b64decode(text["embedding"]), "<f4")
        np.testing.assert_array_equal(np.array(number["embedding"], np.float32), exact)
        np.testing.assert_array_equal(np.array(entry.embedding, np.float32), exact)
    cut = client.embeddings.create(model="minilm", input="x", dimensions=8)
    assert len(cut.data[0].embedding) == 8


def test_error_classes(client: openai.OpenAI) -> None:
    message = [{"role": "user", "content": "x"}]
    with pytest.raises(openai.NotFoundError) as not_found:
        client.chat.completions.create(model="none", messages=message)  # type: ignore[arg-type]
    assert not_found.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="smol", messages=message, n=2)  # type: ignore[arg-type]
    assert refused.value.param == "n"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="twice", prompt="abc " * 200, extra_body={"profile": "two"})
    assert too_long.value.code == "context_length_exceeded"
    assert too_long.value.response.headers["x-pumas-outcome"] == "not_admitted"
    with pytest.raises(openai.BadRequestError) as schema:
        client.chat.completions.create(  # type: ignore[call-overload]
            model="smol",
            messages=message,
            response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"pattern": "("}}},
        )
    assert schema.value.param == "response_format"
    with pytest.raises(openai.ConflictError):
        client.completions.create(model="twice", prompt="abc")
    with pytest.raises(openai.InternalServerError) as unavailable:
        client.chat.completions.create(model="minilm", messages=message)  # type: ignore[arg-type]
    assert unavailable.value.code == "capability_unavailable"
    with pytest.raises(openai.InternalServerError) as no_images:
        client.images.generate(model="smol", prompt="a cat")
    assert "image_generation (model_task_mismatch)" in no_images.value.message


def test_ignored_fields_are_named(gateway: Gateway) -> None:
    body = {"model": "smol", "prompt": "x", "max_tokens": 1, "user": "me", "store": True}
    reply = gateway.post("/v1/completions", body)
    assert reply.status == 200
    assert reply.headers["x-pumas-ignored"] == "store, user"


@pytest.mark.parametrize("route", ["/v1/rerank", "/v2/rerank"])
def test_rerank_of_cohere_and_jina(gateway: Gateway, route: str) -> None:
    documents = ["the cat", "paris", "a dog sat"]
    body = {"model": "ranker", "query": "paris france", "documents": documents, "return_documents": True}
    plain = gateway.post(route, body).json()
    scores = [entry["relevance_score"] for entry in plain["results"]]
    assert scores == sorted(scores, reverse=True)
    assert all(entry["document"]["text"] == documents[entry["index"]] for entry in plain["results"])
    assert plain["usage"]["total_tokens"] == plain["meta"]["tokens"]["input_tokens"] > 0
    make = cohere.Client if route == "/v1/rerank" else cohere.ClientV2
    with make(api_key="none", base_url=gateway.url, timeout=BOUND_S) as client:
        answer = client.rerank(model="ranker", query="paris france", documents=documents, top_n=2)
    assert [entry.relevance_score for entry in answer.results] == scores[:2]


def test_the_printed_curl_lines_work(gateway: Gateway) -> None:
    lines = [line.strip() for line in gateway.lines if line.strip().startswith("curl ")]
    assert len(lines) >= 3
    for line in lines:
        assert isinstance(msgspec.json.decode(_said_by(line, gateway)), dict)


def _said_by(line: str, gateway: Gateway) -> bytes:
    """What a printed curl line gets: from curl itself, or, on a machine without it, from the same request."""
    if shutil.which("curl") is not None:
        command = ["sh", "-c", f"{line} --silent --show-error --fail"]
        done = subprocess.run(command, capture_output=True, timeout=BOUND_S)
        assert done.returncode == 0, done.stderr
        return done.stdout
    words = shlex.split(line)
    assert words[1].startswith(gateway.url)
    data = words[words.index("-d") + 1].encode() if "-d" in words else None
    reply = gateway.ask("GET" if data is None else "POST", words[1].removeprefix(gateway.url), data)
    assert reply.status == 200
    return reply.body
