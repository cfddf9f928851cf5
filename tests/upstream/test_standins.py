"""llama-server's router mode, Ollama and vLLM, by stand-ins that answer as their documentation says.

Sources of truth: llama.cpp's `tools/server/README.md`, "Using multiple models" and "GET /models" (status objects; the
refusal of what is not loaded: `server-models.cpp`); Ollama's `docs/api.md`, "List Local Models", "Show Model
Information", "List Running Models", and `docs/openai.md`; vLLM's `/v1/models` (`max_model_len`).
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pumas.contract.descriptors import Available, ServedModel, Unavailable
from pumas.contract.errors import ContractError
from pumas.operations import Embed, GenerateText, Message
from pumas.providers.upstream.facts import Kind
from tests.upstream.fake import GOOD, SSE, Exchange, Fake, answers_json, fake, provider, sends

CHAT = GenerateText(capability="chat_generation", messages=(Message(role="user", content="Hi"),), stream=True)


def available(model: ServedModel) -> set[str]:
    return {c.capability for c in model.capabilities if c.availability == Available()}


def reasons(model: ServedModel) -> set[str]:
    return {c.availability.reason for c in model.capabilities if isinstance(c.availability, Unavailable)}


async def snapshot(server: Fake, name: str, kind: Kind, recorded: tuple[str, ...] = ()) -> ServedModel:
    async with provider(server, kind, recorded, name) as made:
        return made.snapshot()


# --- llama-server's router --------------------------------------------------------------------------------------------

ARGS = ["llama-server", "-ctx", "4096"]
GEMMA = "ggml-org/gemma-3-4b-it-GGUF:Q4_K_M"
TEXT = {"input_modalities": ["text"], "output_modalities": ["text"]}


def router_model(name: str, status: dict[str, Any], architecture: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "id": name,
        "aliases": [],
        "tags": ["local"],
        "object": "model",
        "owned_by": "llamacpp",
        "created": 1_780_000_000,
        "status": status,
        "architecture": architecture or TEXT,
        "source": "models_dir",
        "can_remove": False,
    } | more


ROUTER = [
    router_model(
        GEMMA,
        {"value": "loaded", "args": ARGS},
        {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
        meta={
            "n_embd": 2560,
            "n_params": 3_880_099_328,
            "size": 2_489_757_696,
            "n_vocab": 262_208,
            "n_ctx_train": 131072,
        },
    ),
    router_model("asleep", {"value": "sleeping", "args": ARGS}),
    router_model("cold", {"value": "unloaded"}),
    router_model("booting", {"value": "loading", "args": ARGS}),
    router_model("coming", {"value": "downloading", "progress": {"https://x/m.gguf": {"done": 1, "total": 2}}}),
    router_model("broken", {"value": "unloaded", "args": ARGS, "failed": True, "exit_code": 1}),
    router_model("judge", {"value": "unloaded"}, {"input_modalities": ["text"], "output_modalities": ["decisions"]}),
    router_model("named", {"value": "unloaded"}, aliases=["its-alias"]),
]


async def router_props(exchange: Exchange) -> None:
    """`/props?model=`: of a loaded model its own, else the router's refusal."""
    query = exchange.path.partition(b"?")[2]
    assert b"autoload=false" in query, "asking what a model is must not load it"
    if b"model=ggml-org%2Fgemma-3-4b-it-GGUF%3AQ4_K_M" in query or b"model=asleep" in query:
        await exchange.send_json({"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4, "modalities": {}})
    else:
        error = {"code": 400, "message": "model is not loaded", "type": "invalid_request_error"}
        await exchange.send_json({"error": error}, b"400 Bad Request")


def router(server: Fake) -> None:
    server.answers[b"/v1/models"] = answers_json({"object": "list", "data": ROUTER})
    server.answers[b"/props"] = router_props


ROUTED = {
    GEMMA: ("loaded", 4096, {"chat_generation", "text_generation", "image_to_text"}),
    "asleep": ("loaded", 4096, {"chat_generation", "text_generation"}),
    "cold": ("unloaded", None, {"chat_generation", "text_generation"}),
    "booting": ("loading", None, set()),
    "coming": ("loading", None, set()),
    "broken": ("failed", None, set()),
    "judge": ("unloaded", None, {"decision"}),
    "its-alias": ("unloaded", None, {"chat_generation", "text_generation"}),
}


@pytest.mark.parametrize("name", ROUTED)
async def test_a_router_says_status_window_and_modalities(name: str) -> None:
    """What is not loaded can be had where the router loads it when it is asked; it is described without loading it."""
    async with fake() as server:
        router(server)
        model = await snapshot(server, name, "llama-server")
    assert (model.load_state, model.context_tokens, available(model)) == ROUTED[name]
    if not available(model):
        assert ("runtime_unavailable" if name == "broken" else "model_loading") in reasons(model)


async def test_a_router_is_asked_for_the_model_by_its_name() -> None:
    async with fake() as server:
        router(server)
        server.answers[b"/v1/chat/completions"] = sends(SSE + GOOD)
        async with provider(server, name=GEMMA) as made, made.generate(CHAT) as stream:
            assert "".join([delta.text async for delta in stream]) == "Hello"
        assert msgspec.json.decode(server.requests[0][1])["model"] == GEMMA


async def test_a_router_without_the_model_and_its_errors() -> None:
    async with fake() as server:
        router(server)
        async with provider(server, name="elsewhere") as made:
            assert made.snapshot().load_state == "failed"
            with pytest.raises(ContractError, match="does not have the model elsewhere") as caught:
                async with made.generate(CHAT):
                    pass
            assert caught.value.outcome == "not_admitted"
        error = {"code": 400, "message": "model name=cold failed to load", "type": "invalid_request_error"}
        server.answers[b"/v1/chat/completions"] = answers_json({"error": error}, b"400 Bad Request")
        async with provider(server, name="cold") as made:
            with pytest.raises(ContractError, match="failed to load") as caught:
                async with made.generate(CHAT):
                    pass
    assert (caught.value.code, caught.value.outcome) == ("provider_failure", "unknown")


async def test_a_dedicated_server_with_another_model_is_not_taken_for_the_one_that_was_named() -> None:
    async with fake() as server:
        model = await snapshot(server, "another", "llama-server")
    assert (model.load_state, available(model)) == ("failed", set())


# --- Ollama -----------------------------------------------------------------------------------------------------------

DIGESTS = {
    "llama3.2:latest": "a80c4f17acd55265feec403c7aef86be0c25983ab279d83f3bcd3abbcb5b8b72",
    "all-minilm:33m": "1b226e2802dbb772b5fc32a58f103ca1804ef7501331012de126ab22f67475ef",
    "tuned:latest": "2ae6f6dd7a3dd734790bbbf58b8909a606e0e7e97e94b7604e0aa7ae4490e6d8",
}
SHOWN: dict[str, dict[str, Any]] = {
    "llama3.2": {
        "parameters": 'num_keep                       24\nstop                           "<|eot_id|>"',
        "capabilities": ["completion", "tools"],
        "model_info": {"general.architecture": "llama", "llama.context_length": 131072, "llama.embedding_length": 3072},
    },
    "all-minilm:33m": {
        "capabilities": ["embedding"],
        "model_info": {"general.architecture": "bert", "bert.context_length": 512, "bert.embedding_length": 384},
    },
    "tuned": {
        "parameters": "num_ctx                        8192",
        "capabilities": ["completion", "vision"],
        "model_info": {"general.architecture": "llama", "llama.context_length": 131072},
    },
}


async def ollama_show(exchange: Exchange) -> None:
    name = msgspec.json.decode(exchange.body)["model"]
    if name in SHOWN:
        details = {"parent_model": "", "format": "gguf", "family": "llama", "families": ["llama"]}
        await exchange.send_json({"modelfile": "FROM x", "template": "", "details": details} | SHOWN[name])
    else:
        await exchange.send_json({"error": f"model '{name}' not found"}, b"404 Not Found")


def ollama(server: Fake, *running: dict[str, Any]) -> None:
    tags = [{"name": n, "model": n, "size": 1, "digest": d, "details": {}} for n, d in DIGESTS.items()]
    server.answers = {
        b"/api/tags": answers_json({"models": tags}),
        b"/api/show": ollama_show,
        b"/api/ps": answers_json({"models": list(running)}),
    }


def process(name: str, context: int | None = 4096) -> dict[str, Any]:
    more = {} if context is None else {"context_length": context}
    return {"name": name, "model": name, "digest": DIGESTS[name], "size_vram": 1} | more


async def test_ollama_says_window_and_abilities() -> None:
    """The window that it runs with where it runs, else the configured one, else the trained one."""
    async with fake() as server:
        ollama(server, process("llama3.2:latest"))
        model = await snapshot(server, "llama3.2", "ollama")
        assert (model.load_state, model.context_tokens, model.provider) == ("loaded", 4096, "fake")
        assert available(model) == {"chat_generation", "text_generation"}
        assert "model_task_mismatch" in reasons(model)
        ollama(server, process("llama3.2:latest", None))
        assert (await snapshot(server, "llama3.2", "ollama")).context_tokens == 131072
        tuned = await snapshot(server, "tuned", "ollama")
        assert (tuned.load_state, tuned.context_tokens) == ("unloaded", 8192)
        async with provider(server, "ollama", name="tuned") as made:
            assert made.health().state == "loaded", "it is loaded when it is asked"
        embedder = await snapshot(server, "all-minilm:33m", "ollama")
        assert available(embedder) == {"text_embedding"}
        bounds = {b.option: b.maximum for b in embedder.capability("text_embedding").option_bounds}
        assert bounds["dimensions"] == 384
        gone = await snapshot(server, "nothing", "ollama")
        assert (gone.load_state, available(gone)) == ("failed", set())


async def test_ollama_answers_over_its_openai_routes() -> None:
    async with fake() as server:
        ollama(server, process("llama3.2:latest"))
        server.answers[b"/v1/chat/completions"] = sends(SSE + GOOD)
        vector = {"object": "embedding", "embedding": [3.0, 0.0, 4.0], "index": 0}
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        answer = {"object": "list", "data": [vector], "model": "all-minilm:33m", "usage": usage}
        server.answers[b"/v1/embeddings"] = answers_json(answer)
        async with provider(server, "ollama", name="llama3.2") as made, made.generate(CHAT) as stream:
            assert "".join([delta.text async for delta in stream]) == "Hello"
        async with provider(server, "ollama", name="all-minilm:33m") as made:
            found = await made.embed(Embed(inputs=("why",)))
            assert found.vectors[0].tolist() == pytest.approx([0.6, 0, 0.8])
            assert found.input_tokens == 5
            cut = await made.embed(Embed(inputs=("why",), dimensions=2))  # which Ollama would ignore
            assert cut.vectors[0].tolist() == pytest.approx([1, 0])
            error = {"message": 'model "x" not found', "type": "api_error", "param": None, "code": None}
            server.answers[b"/v1/embeddings"] = answers_json({"error": error}, b"404 Not Found")
            with pytest.raises(ContractError, match="not found"):
                await made.embed(Embed(inputs=("why",)))
        assert [msgspec.json.decode(body)["model"] for _, body in server.requests] == [
            "llama3.2",
            "all-minilm:33m",
            "all-minilm:33m",
            "all-minilm:33m",
        ]


async def test_another_model_behind_the_same_name_is_found_out_at_admission() -> None:
    """`ollama pull` may put another file behind a tag: its digest says so."""
    async with fake() as server:
        ollama(server, process("llama3.2:latest"))
        server.answers[b"/v1/chat/completions"] = sends(SSE + GOOD)
        async with provider(server, "ollama", name="llama3.2") as made:
            tags = [{"name": "llama3.2:latest", "model": "llama3.2:latest", "digest": "0" * 64}]
            server.answers[b"/api/tags"] = answers_json({"models": tags})
            made._seen -= 60  # as if the last observation were a minute old
            made._tried -= 60
            with pytest.raises(ContractError, match="another model") as caught:
                async with made.generate(CHAT):
                    pass
            assert (caught.value.code, caught.value.outcome) == ("capability_unavailable", "not_admitted")
            assert caught.value.retry_after is not None
        assert server.requests == []


# --- OpenAI-compatible servers ----------------------------------------------------------------------------------------


async def test_an_openai_compatible_server_is_described_by_list_and_configuration() -> None:
    async with fake() as server:
        card = {"id": "Qwen/Qwen3-8B", "object": "model", "owned_by": "vllm", "max_model_len": 40960, "permission": []}
        server.answers[b"/v1/models"] = answers_json(
            {"object": "list", "data": [card, {"id": "lora", "object": "model"}]}
        )
        model = await snapshot(server, "Qwen/Qwen3-8B", "openai")
        assert (model.context_tokens, available(model)) == (40960, {"chat_generation", "text_generation"})
        bound = model.capability("chat_generation").bound("max_tokens")
        assert bound is not None
        assert bound.maximum == 40960
        recorded = await snapshot(server, "lora", "openai", ("text_embedding", "rerank"))
        assert (recorded.context_tokens, available(recorded)) == (None, {"text_embedding", "rerank"})
        assert recorded.modalities.output == ("vector", "json")
