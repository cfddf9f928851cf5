"""What the OpenAI-compatible routes take, ignore and refuse, by name; no server needed."""

from __future__ import annotations

from typing import Any

import pytest

from pumas.contract.descriptors import ServedModel
from pumas.contract.errors import ContractError
from pumas.openai.chat import parse_chat
from pumas.openai.completions import parse_completion
from pumas.openai.embeddings import parse_embeddings
from pumas.openai.errors import error_body, error_headers, status_of
from pumas.openai.images import parse_image
from pumas.openai.rerank import parse_rerank
from tests.contract.samples import SERVED

PLAIN = ServedModel(model="m", profile="default", model_id="x", provider="p", load_state="loaded")
TOOLED = ServedModel(
    model="m", profile="default", model_id="x", provider="p", load_state="loaded", detail={"tools_format": "hermes"}
)
SEEING = next(served for served in SERVED if served.model == "all")
USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def chat(served: ServedModel = TOOLED, **fields: Any) -> Any:
    return parse_chat({"model": "m", "messages": [USER]} | fields, served)


def test_sampling_is_taken_over() -> None:
    options = chat(
        temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, seed=-1, stop="x", max_completion_tokens=7,
        presence_penalty=1, frequency_penalty=-1, repeat_penalty=1.1, logit_bias={"5": -100}, logprobs=True,
        top_logprobs=2,
    ).operation.options  # fmt: skip
    assert (options.temperature, options.top_p, options.top_k, options.min_p) == (0.5, 0.9, 3, 0.1)
    assert options.seed == 2**63 - 1, "a negative seed is folded into the range that seeds have here"
    assert (options.stop, options.max_tokens, options.logit_bias, options.logprobs) == (("x",), 7, ((5, -100.0),), 2)


def test_what_cannot_change_the_result_is_ignored_and_named() -> None:
    request = chat(user="u", store=False, metadata={"a": "b"}, n=1, service_tier=None, audio=None)
    assert request.ignored == ("metadata", "store", "user")


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"n": 2}, "n", "one choice"),
        ({"n": True}, "n", "one choice"),
        ({"temprature": 1}, "temprature", "did you mean temperature?"),
        ({"audio": {}}, "audio", "only text"),
        ({"functions": [{}]}, "functions", "use tools"),
        ({"temperature": "1"}, "temperature", "expected"),
        ({"temperature": 3}, "temperature", "<= 2.0, got `3`"),
        ({"top_logprobs": 2}, "top_logprobs", "logprobs true"),
        ({"max_tokens": 0}, "max_tokens", ">= 1, got `0`"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_completion_tokens", "differ"),
        ({"stop": ""}, "stop", "empty"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "token id"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream true"),
        ({"stream": True, "stream_options": {"x": 1}}, "stream_options", "'x'"),
        ({"messages": []}, "messages", ">= 1"),
        ({"messages": [{"role": "usr", "content": "x"}]}, "messages", "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "content[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "tool_call_id"),
        ({"messages": [USER | {"x": 1}]}, "messages", "'x'"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_object"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format", "schema"),
        ({"tools": [{"type": "web"}]}, "tools", "functions"),
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "maybe"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "'g'"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format", "tool_choice none"),
        ({"grammar": "x", "response_format": {"type": "json_object"}}, "grammar", "response_format"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], field: str, words: str) -> None:
    with pytest.raises(ContractError) as caught:
        chat(**fields)
    assert (caught.value.code, caught.value.field) == ("invalid_request", field)
    assert words in caught.value.message


def test_tools_need_a_template_that_teaches_them() -> None:
    with pytest.raises(ContractError, match="tools: the chat template of m"):
        chat(PLAIN, tools=[TOOL])
    assert chat(PLAIN, tools=[TOOL], tool_choice="none").operation.tools == ()
    request = chat(tools=[TOOL])
    assert (request.tools_form, request.forced, request.operation.tools) == ("hermes", False, (TOOL,))
    forced = chat(tools=[TOOL], tool_choice="required")
    assert forced.forced
    assert '"const":"f"' in forced.operation.options.json_schema


def test_messages_of_a_tool_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2", "tool_call_id": "c1"},
    ]
    found = chat(messages=messages).operation.messages
    assert [message.role for message in found] == ["system", "user", "assistant", "tool"]
    assert found[2].content is None
    assert found[2].tool_calls == (call,)
    assert found[3].tool_call_id == "c1"


def test_images_are_data_uris_and_checked() -> None:
    def message(url: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    for url in ("https://example.org/x.png", "data:image/gif;base64,AAAA", "data:image/png;base64,!"):
        with pytest.raises(ContractError) as caught:
            chat(SEEING, messages=message(url))
        assert caught.value.code == "invalid_request"
    with pytest.raises(ContractError) as caught:
        chat(messages=message("data:image/png;base64,!"))
    assert caught.value.code == "unsupported_modality", "what the model takes is judged before the media are"


@pytest.mark.parametrize(
    ("prompt", "text", "ids"),
    [("a", "a", None), (["a"], "a", None), ([1, 2], None, (1, 2)), ([[1, 2]], None, (1, 2))],
)
def test_prompts(prompt: Any, text: str | None, ids: tuple[int, ...] | None) -> None:
    operation = parse_completion({"model": "m", "prompt": prompt}).operation
    assert (operation.prompt, operation.prompt_ids) == (text, ids)


@pytest.mark.parametrize("prompt", [["a", "b"], [], "", [1, "a"], [[1], [2]], [-1], [2**31], None, [[]]])
def test_bad_prompts(prompt: Any) -> None:
    with pytest.raises(ContractError) as caught:
        parse_completion({"model": "m", "prompt": prompt})
    assert caught.value.field == "prompt"


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3)))],
)
def test_embedding_inputs(given: Any, inputs: Any) -> None:
    assert parse_embeddings({"model": "m", "input": given}).operation.inputs == inputs


@pytest.mark.parametrize("given", [[], "", [" "], [[]], [1, "a"], ["a", 1], None, 5, [1.5]])
def test_bad_embedding_inputs(given: Any) -> None:
    with pytest.raises(ContractError) as caught:
        parse_embeddings({"model": "m", "input": given})
    assert caught.value.field == "input"


def test_rerank_takes_both_shapes() -> None:
    request = parse_rerank({"model": "m", "query": "q", "documents": ["a", {"text": "b"}], "priority": 1})
    assert request.operation.documents == ("a", "b")
    assert request.ignored == ("priority",)
    for bad in ({"documents": []}, {"documents": [" "]}, {"query": ""}, {"max_tokens_per_doc": 9}, {"top_n": 0}):
        with pytest.raises(ContractError):
            parse_rerank({"model": "m", "query": "q", "documents": ["a"]} | bad)


def test_images_are_validated() -> None:
    assert parse_image({"model": "m", "prompt": "p", "size": "64x32"}).operation.width == 64
    for bad in ({"size": "big"}, {"size": "0x1"}, {"n": 2}, {"response_format": "url"}, {"prompt": " "}):
        with pytest.raises(ContractError):
            parse_image({"model": "m", "prompt": "p"} | bad)


def test_errors_have_the_public_shape_and_ours() -> None:
    error = ContractError("request_limit", "too long", field="messages", kind="context_length")
    assert status_of(error) == 400
    assert error_body(error, "too long")["error"] == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
        "contract_code": "request_limit",
        "outcome": "not_admitted",
    }
    waits = dict(error_headers(ContractError("capability_unavailable", "x", retry_after=1.2)))
    assert waits == {"x-pumas-outcome": "not_admitted", "retry-after": "2"}
    unknown = dict(error_headers(ContractError("provider_failure", "x", outcome="unknown")))
    assert unknown == {"x-pumas-outcome": "unknown", "x-should-retry": "false"}


def test_a_wrong_word_is_answered_with_the_right_ones() -> None:
    with pytest.raises(ContractError) as refused:
        parse_embeddings({"model": "m", "input": "a", "encoding_format": "hex"})
    assert refused.value.message == "encoding_format: `hex` is none of float, base64"
    assert refused.value.field == "encoding_format"
