"""Selection and resolution: which model, which capability, which refusal, in the order of decision C1."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pumas import operations as ask
from pumas.contract.describe import LaneFacts, Offer, capabilities, lane_capabilities
from pumas.contract.descriptors import (
    CAPABILITIES,
    ServedModel,
    Unavailable,
    capabilities_response,
    select,
    served_models_response,
)
from pumas.contract.errors import ContractError
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import resolve
from pumas.translate import to_operation
from tests.contract import samples
from tests.contract.samples import (
    CHAT,
    EMBED,
    LOCAL_OPTIONS,
    SERVED,
    audio_part,
    image_part,
    lane,
    request,
    text_part,
    user,
)

TEXT = text_part("Hello")
LOADING = lane("loading", LaneFacts(reason="model_loading"))
QUARANTINED = lane("quarantined", LaneFacts(role="embed", reason="quarantined", dimensions=4, context=8))
GENERATE_ONLY = lane("slow", LaneFacts(role="generate", context=64, decode=False, generate_tokens=40))
TWO = (lane("two", LaneFacts(role="embed", dimensions=4), "a"), lane("two", LaneFacts(role="embed", dimensions=4), "b"))
EVERY = (*SERVED, LOADING, QUARANTINED, GENERATE_ONLY, *TWO)


def messages(*parts: Any, kind: str = "messages") -> dict[str, Any]:
    return {"kind": kind, "messages": [user(list(parts))]}


def chosen(model: str, content: dict[str, Any], output: str = "text", **more: Any) -> str:
    body = msgspec.json.encode(request(model, content, output, **more))
    return resolve(decode_operation(body), EVERY).capability.capability


def refused(model: str, content: dict[str, Any], output: str = "text", **more: Any) -> ContractError:
    with pytest.raises(ContractError) as caught:
        chosen(model, content, output, **more)
    assert caught.value.outcome == "not_admitted"
    assert caught.value.request_id == "example:1"
    return caught.value


# --- model and profile -----------------------------------------------------------------------------------------------


def test_models_and_profiles() -> None:
    assert refused("nothing", TEXT).code == "model_not_found"
    assert refused("embed", TEXT, profile="other").code == "model_not_found"
    ambiguous = refused("two", TEXT, "embeddings_float32")
    assert ambiguous.code == "ambiguous_model"
    assert "`a`, `b`" in ambiguous.message
    assert chosen("two", TEXT, "embeddings_float32", profile="b") == "text_embedding"
    assert select(EVERY, "two", "b") is TWO[1]
    assert chosen("embed", TEXT, "embeddings_float32", profile="default") == "text_embedding"


# --- capability ------------------------------------------------------------------------------------------------------


def test_bare_text_is_ambiguous_on_a_model_that_chats_and_completes() -> None:
    error = refused("chat", TEXT)
    assert (error.code, error.status) == ("ambiguous_operation", 409)
    assert "`chat_generation`, `text_generation`" in error.message
    assert chosen("chat", TEXT, capability="text_generation") == "text_generation"
    assert chosen("chat", TEXT, semantic_task="chat_generation") == "chat_generation"
    assert chosen("slow", TEXT) == "text_generation"


def test_messages_are_chat() -> None:
    assert chosen("chat", {"kind": "messages", "messages": [user("Hi")]}) == "chat_generation"
    assert chosen("chat", messages(TEXT, TEXT), stream=True) == "chat_generation"


def test_image_messages_mean_image_to_text_unless_chat_is_named() -> None:
    for kind in ("messages", "image_messages"):
        content = messages(TEXT, image_part(), kind=kind)
        assert chosen("all", content) == "image_to_text"
        assert chosen("all", content, capability="chat_generation") == "chat_generation"
        assert chosen("all", content, capability="image_to_text") == "image_to_text"
        assert chosen("all", content, semantic_task="chat_generation") == "chat_generation"


def test_audio_messages_mean_chat() -> None:
    assert chosen("all", messages(TEXT, audio_part())) == "chat_generation"
    assert chosen("all", messages(image_part(), audio_part())) == "chat_generation"
    assert chosen("all", messages(image_part(), audio_part(), kind="image_messages")) == "chat_generation"
    assert (
        refused("all", messages(image_part(), audio_part()), capability="image_to_text").code == "unsupported_modality"
    )


def test_whole_images() -> None:
    assert chosen("all", image_part()) == "image_to_text"
    assert chosen("all", image_part(), "embeddings_float32") == "multimodal_embedding"


def test_a_modality_that_nothing_accepts_names_what_is_accepted() -> None:
    error = refused("chat", messages(TEXT, image_part()))
    assert (error.code, error.status) == ("unsupported_modality", 422)
    assert "chat_generation accepts text messages_text (text)" in error.message
    assert refused("embed", image_part(), "embeddings_float32").code == "unsupported_modality"
    assert refused("chat", TEXT, "pcm_s16le").code == "unsupported_modality"
    assert refused("chat", TEXT, capability="chat_generation", semantic_task="rerank").code == "unsupported_modality"
    assert refused("chat", TEXT, capability="rerank").code == "unsupported_modality"


def test_an_unavailable_capability_keeps_its_reason() -> None:
    error = refused("embed", {"kind": "messages", "messages": [user("Hi")]})
    assert (error.code, error.status, error.retry_after) == ("capability_unavailable", 503, None)
    assert "chat_generation (model_task_mismatch)" in error.message
    loading = refused("loading", TEXT, "embeddings_float32")
    assert "model_loading" in loading.message
    assert loading.retry_after
    assert "quarantined" in refused("quarantined", TEXT, "embeddings_float32").message


def test_a_runtime_that_has_declared_nothing_keeps_the_reason() -> None:
    silent = ServedModel(
        model="silent", profile="default", model_id="x", provider="llama-server", load_state="loaded",
        capabilities=capabilities((), {}, otherwise="runtime_unavailable"),
    )  # fmt: skip
    body = msgspec.json.encode(request("silent", messages(image_part()), "text"))
    with pytest.raises(ContractError) as caught:
        resolve(decode_operation(body), [silent])
    assert caught.value.code == "capability_unavailable"
    assert "runtime_unavailable" in caught.value.message


@pytest.mark.parametrize("model", ["chat", "embed", "all"])
@pytest.mark.parametrize("output", ["text", "labels"])
def test_reserved_audio_is_unavailable_by_name(model: str, output: str) -> None:
    error = refused(model, audio_part(), output)
    assert error.code == "capability_unavailable"
    assert "unqualified_audio_runtime" in error.message
    assert samples.RESERVED_AUDIO["options"]["language"] == "en"
    options = {"kind": "audio", "language": "xx"}
    assert refused(model, audio_part(), output, options=options).code == "invalid_request"


def test_streams() -> None:
    assert refused("embed", TEXT, "embeddings_float32", stream=True).code == "invalid_request"
    assert refused("chat", audio_part(), stream=True).code == "invalid_request"
    assert refused("slow", TEXT, capability="text_generation", stream=True).code == "unsupported_modality"


# --- options ---------------------------------------------------------------------------------------------------------


def options_error(model: str, content: dict[str, Any], output: str, options: dict[str, Any], **more: Any) -> str:
    return refused(model, content, output, options=options, **more).code


def test_options_of_another_kind() -> None:
    assert options_error("embed", TEXT, "embeddings_float32", {"kind": "rerank"}) == "invalid_request"
    assert refused("all", TEXT, "png_base64").code == "invalid_request"


def test_what_a_worker_does_not_offer_is_refused_by_name() -> None:
    for name, value in (("seed", 1), ("top_k", 1), ("stop", ["x"]), ("json_schema", {}), ("min_p", 0.1)):
        error = refused("slow", TEXT, options={"kind": "text_generation", name: value})
        assert error.code == "invalid_request"
        assert f"`{name}`" in error.message
    text = {"kind": "text_generation"}
    assert chosen("slow", TEXT, options=text | {"temperature": 0, "max_tokens": 40, "top_p": 1, "grammar": "x"})
    assert options_error("slow", TEXT, "text", text | {"max_tokens": 41}) == "request_limit"
    assert options_error("slow", TEXT, "text", text | {"temperature": 0.5}) == "request_limit"


def test_a_grammar_and_a_schema_exclude_each_other() -> None:
    options = {"kind": "text_generation", "grammar": "x", "json_schema": {}}
    assert options_error("chat", TEXT, "text", options, capability="text_generation") == "invalid_request"


def test_options_that_were_not_given_are_the_providers() -> None:
    body = msgspec.json.encode(request("chat", TEXT, "text", capability="chat_generation", options=LOCAL_OPTIONS))
    operation = to_operation(resolve(decode_operation(body), EVERY))
    assert isinstance(operation, ask.GenerateText)
    assert operation.messages == (ask.Message(role="user", content="Hello"),)
    assert (operation.options.seed, operation.options.top_k, operation.options.stop) == (7, 5, ("\n", "END"))
    assert operation.options.grammar is None
    plain = to_operation(resolve(decode_operation(msgspec.json.encode(request("slow", TEXT, "text"))), EVERY))
    assert isinstance(plain, ask.GenerateText)
    assert (plain.prompt, plain.options) == ("Hello", ask.TextOptions())


def test_null_is_absent_where_a_field_is_optional() -> None:
    body = request("chat", TEXT, "text", capability="text_generation") | {"profile": None, "semantic_task": None}
    body["options"] = {"kind": "text_generation", "max_tokens": None}
    decode_operation(msgspec.json.encode(body | {"options": None}))
    assert decode_operation(msgspec.json.encode(body)).profile is None
    for name in ("model", "stream", "input", "output", "contract_version"):
        with pytest.raises(ContractError) as caught:
            decode_operation(msgspec.json.encode(body | {name: None}))
        assert caught.value.code == "invalid_request"


# --- order (C1) ------------------------------------------------------------------------------------------------------

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("unsupported_contract", {"contract_version": 2}),
    ("invalid_request", {"optoins": 1}),
    ("model_not_found", {"model": "nothing"}),
    ("unsupported_modality", {"output": "decisions"}),
    ("request_limit", {"options": {"kind": "text_generation", "max_tokens": 10**9}}),
    ("invalid_request", {"input": messages(image_part(b"x"))}),
]
"""One mistake for each step, in the order in which they are found."""


@pytest.mark.parametrize("first", range(len(WRONG)))
def test_the_first_mistake_is_the_answer(first: int) -> None:
    body: dict[str, Any] = request("all", messages(image_part()), "text", capability="chat_generation")
    for _, change in reversed(WRONG[first:]):
        body = body | change
    with pytest.raises(ContractError) as caught:
        resolve(decode_operation(msgspec.json.encode(body)), EVERY)
    assert caught.value.code == WRONG[first][0]


# --- descriptors and discovery ---------------------------------------------------------------------------------------


def test_every_model_lists_all_ten() -> None:
    for served in EVERY:
        assert tuple(entry.capability for entry in served.capabilities) == CAPABILITIES


def reasons(model: ServedModel) -> dict[str, str | None]:
    return {c.capability: getattr(c.availability, "reason", None) for c in model.capabilities}


def test_availability_of_local_lanes() -> None:
    audio = {"audio_transcription": "unqualified_audio_runtime", "audio_classification": "unqualified_audio_runtime"}
    mismatch = dict.fromkeys(CAPABILITIES, "model_task_mismatch") | audio
    assert reasons(CHAT) == mismatch | {"chat_generation": None, "text_generation": None}
    assert reasons(EMBED) == mismatch | {"text_embedding": None}
    both = lane("both", LaneFacts(role="generate", context=2048, embeds=True, embed_tokens=512, dimensions=4))
    assert reasons(both) == mismatch | {"text_generation": None, "text_embedding": None}
    assert both.modalities.output == ("text", "vector")
    bound = both.capability("text_embedding").bound("input_tokens")
    assert bound is not None
    assert bound.maximum == 512
    assert reasons(samples.RERANK) == mismatch | {"rerank": None}
    assert set(reasons(QUARANTINED).values()) == {"quarantined"}
    assert set(reasons(LOADING).values()) == {"model_loading"}
    restarting = lane_capabilities(LaneFacts(role="embed", reason="model_restarting", dimensions=4, context=8))
    found = {entry.capability: getattr(entry.availability, "reason", None) for entry in restarting}
    assert found == mismatch | {"text_embedding": "model_restarting"}


def test_modalities_are_the_protocols_cut_to_the_declared() -> None:
    found = {entry.capability: entry for entry in capabilities(("text", "image"), {"chat_generation": Offer()})}
    assert found["chat_generation"].input_modalities == ("text", "image")
    assert found["chat_generation"].input_formats == ("text", "messages_text", "messages_image")
    assert found["chat_generation"].bound("image_bytes") is not None
    assert found["chat_generation"].bound("audio_count") is None
    assert found["text_generation"].input_modalities == ("text",)
    tokens = found["audio_transcription"].bound("max_output_tokens")
    assert tokens is not None
    assert (tokens.minimum, tokens.maximum) == (512, 512)
    assert isinstance(found["audio_classification"].availability, Unavailable)


def test_nothing_is_available_while_the_runtime_has_not_answered() -> None:
    found = {c.capability: c.availability for c in capabilities((), {"chat_generation": Offer()})}
    assert found["chat_generation"] == Unavailable("runtime_unavailable")


def test_served_models() -> None:
    answer = msgspec.json.decode(served_models_response(EVERY))
    assert answer["supported_contract_versions"] == [1]
    assert (answer["max_request_bytes"], answer["max_response_bytes"]) == (33_554_432, 33_554_432)
    assert answer["max_stream_event_bytes"] == 262_144
    required = {(entry["model"], entry["profile"]): entry["profile_required"] for entry in answer["models"]}
    assert required[("two", "a")] is required[("two", "b")] is True
    assert required[("chat", "default")] is False
    entry = answer["models"][0]
    assert (entry["context_tokens"], entry["modalities"]) == (2048, {"input": ["text"], "output": ["text"]})
    assert entry["capabilities"][0]["availability"] == {"state": "available"}
    assert entry["capabilities"][2]["availability"] == {"state": "unavailable", "reason": "model_task_mismatch"}


def test_capabilities_of_one_model() -> None:
    answer = msgspec.json.decode(capabilities_response(EVERY, [("model", "two"), ("profile", "a")]))
    assert (answer["model"], answer["profile"], answer["supported_contract_versions"]) == ("two", "a", [1])
    embedding = next(entry for entry in answer["capabilities"] if entry["capability"] == "text_embedding")
    assert embedding["option_bounds"][0] == {"option": "dimensions", "minimum": 1, "maximum": 4}


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ([], "invalid_request"),
        ([("profile", "a")], "invalid_request"),
        ([("model", "chat"), ("modle", "x")], "invalid_request"),
        ([("model", "chat"), ("model", "chat")], "invalid_request"),
        ([("model", "chat"), ("profile", "a b")], "invalid_request"),
        ([("model", "chat"), ("profile", "")], "invalid_request"),
        ([("model", "")], "invalid_request"),
        ([("model", " chat")], "invalid_request"),
        ([("model", "x" * 257)], "invalid_request"),
        ([("model", "a\nb")], "invalid_request"),
        ([("model", "\udc80")], "model_not_found"),
        ([("model", "two")], "ambiguous_model"),
        ([("model", "nothing")], "model_not_found"),
        ([("model", "chat"), ("profile", "other")], "model_not_found"),
    ],
)
def test_query_parameters_are_closed(query: list[tuple[str, str]], code: str) -> None:
    with pytest.raises(ContractError) as caught:
        capabilities_response(EVERY, query)
    assert caught.value.code == code
