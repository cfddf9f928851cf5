"""The hand-written part of docs/contract.md: enough to write a client. Its examples are sent by a test."""

# ruff: noqa: E501 - lines of a page
from __future__ import annotations

from typing import Any

import msgspec

_PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"  # one red pixel


def _request(model: str, content: dict[str, Any], output: str, **more: Any) -> dict[str, Any]:
    return {"contract_version": 1, "request_id": "example:1", "model": model, "input": content, "output": output} | more


def _answer(result: dict[str, Any]) -> dict[str, Any]:
    return {"contract_version": 1, "request_id": "example:1", "result": result}


_USAGE = {"prompt_tokens": 31, "completion_tokens": 8, "cached_tokens": 0}
_TEXT = {"kind": "text", "text": "Paris.", "finish_reason": "stop", "seed": 7, "usage": _USAGE}
_IMAGE = {"kind": "image", "encoding": "png", "data_base64": _PNG}
_AUDIO = {
    "encoding": "pcm_s16le",
    "sample_rate_hz": 8000,
    "channels": 1,
    "sample_count": 2,
    "data_base64": "AAAAAA==",
}

EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "chat_generation": (
        _request(
            "smol",
            {
                "kind": "messages",
                "messages": [
                    {"role": "system", "content": "Answer in one word."},
                    {"role": "user", "content": [{"kind": "text", "text": "What is the capital of France?"}]},
                ],
            },
            "text",
            capability="chat_generation",
            options={"kind": "text_generation", "max_tokens": 8, "temperature": 0, "stop": ["\n"]},
        ),
        _answer(_TEXT),
    ),
    "text_generation": (
        _request(
            "smol",
            {"kind": "text", "text": "The capital of France is"},
            "text",
            profile="default",
            capability="text_generation",
            options={"kind": "text_generation", "max_tokens": 8, "temperature": 0.7, "top_p": 0.9, "seed": 7},
        ),
        _answer(_TEXT),
    ),
    "text_embedding": (
        _request(
            "minilm",
            {"kind": "text_batch", "texts": ["a puma", "a tax form"]},
            "embeddings_float32",
            options={"kind": "embeddings", "dimensions": 2},
        ),
        _answer({"kind": "embeddings", "vectors": [[0.6, -0.8], [1.0, 0.0]], "input_tokens": 9}),
    ),
    "rerank": (
        _request(
            "ranker",
            {"kind": "rerank", "query": "capital of France", "documents": ["a banana", "Paris"]},
            "relevance_scores",
            options={"kind": "rerank", "top_n": 1},
        ),
        _answer({"kind": "relevance_scores", "results": [{"index": 1, "relevance_score": 4.5}], "input_tokens": 21}),
    ),
    "image_to_text": (
        _request("m", _IMAGE, "text", options={"kind": "text_generation", "max_tokens": 32}),
        _answer(_TEXT),
    ),
    "multimodal_embedding": (
        _request(
            "m",
            {"kind": "content_batch", "items": [{"parts": [{"kind": "text", "text": "a red dot"}, _IMAGE]}]},
            "embeddings_float32",
        ),
        _answer({"kind": "embeddings", "vectors": [[0.6, -0.8]], "input_tokens": 40}),
    ),
    "image_generation": (
        _request(
            "m",
            {"kind": "text", "text": "a puma"},
            "png_base64",
            options={"kind": "image_generation", "width": 512, "height": 512, "seed": 7},
        ),
        _answer({"kind": "image", "png_base64": _PNG, "seed": 7}),
    ),
    "decision": (
        _request(
            "m",
            {
                "kind": "decision",
                "state": {"temperature": 21.5},
                "questions": {
                    "mood": {"type": "choice", "instructions": "Which?", "criteria": {"warm": "over 20", "cold": None}},
                    "how": {"type": "score", "instructions": "How warm?", "criteria": ["cold", "mild", "hot"]},
                    "open": {"type": "noul", "instructions": "Open the window?"},
                },
                "audio": [_AUDIO],
            },
            "decisions",
        ),
        _answer(
            {
                "kind": "decisions",
                "answers": {
                    "mood": {
                        "type": "choice",
                        "choice": "warm",
                        "probabilities": {"warm": 0.9, "cold": 0.1},
                        "confidence": 0.9,
                    },
                    "how": {
                        "type": "score",
                        "score": 1.1,
                        "legend": ["cold", "mild", "hot"],
                        "probabilities": [0.1, 0.7, 0.2],
                        "confidence": 0.7,
                    },
                    "open": {"type": "noul", "noul": 0.4},
                },
                "input_tokens": 60,
            }
        ),
    ),
}
"""A request and an answer for each capability that is no reserved one. `m`: a model behind an `[[upstream]]`."""

_ROUTES = """\
## Routes

| Route | Answer |
| --- | --- |
| `GET /v1/served-models` | `{models: [...]}` and the bounds below: every served (alias, profile) with its descriptors |
| `GET /v1/capabilities?model=ALIAS[&profile=PROFILE]` | one of them; `profile` where the alias has several |
| `POST /v1/model-operations` | one operation; the answer is JSON, or an event stream where `stream` is true |
| `GET /health` | `{status, lanes}`: 200 `ok`, `degraded`; 503 `unavailable`. Without a key elsewhere: `{status}` alone |
| `POST /admin/probe` | `{model, profile?}` → `{model, profile, load_state}`: load a failed or quarantined model again, on purpose; waits for it. From this machine or with the key |

Send `Content-Type: application/json`, and `Authorization: Bearer KEY` where the server has an API key. A lane of
`/health` has `model`, `profile`, `state`, `age_s` (seconds since it was last seen working), `degraded` and `detail`
(strings: `workers`, how many live now; `queued`, `running`, `crashes`, `error`, ...). `restarting` is a lane without a
live worker: requests wait for the next one.

A served model has `model`, `profile`, `profile_required` (the alias has several), `model_id`, `provider`, `load_state`
(`loading`, `loaded`, `unloaded`, `failed`, `quarantined`), `context_tokens` where it is known, `modalities`
(`{input, output}`), `capabilities` and `detail` (strings). A capability has `capability`, `semantic_task`,
`input_formats`, `output_formats`, `input_modalities`, `output_modalities`, `streaming`, `availability`
(`{state: "available"}` or `{state: "unavailable", reason}`), `option_bounds` (`[{option, minimum, maximum}]`) and
`options` (words). Clients ignore members that they do not know: more may be added.

The bounds are `supported_contract_versions`, `max_request_bytes`, `max_response_bytes`, `max_stream_event_bytes`.
"""

_ENVELOPES = """\
## Answers

`request_id` is chosen by the client: 1 to 128 of `A-Z a-z 0-9 - _ . :`. It comes back in the answer and is only a name:
nothing is remembered under it, and the same one may be sent again. A success is
`{contract_version, request_id, result}`; `result` has the `kind` of the examples. `seed` and `usage` are additive; with
the same prompt, options and `seed` a model whose descriptor says `deterministic` gives the same text again.

`finish_reason` is `stop` (the model's own end, or a stop text), `length` (`max_tokens`, or the window's end) or
`content_filter` (upstreams only). Vectors are float32 with norm 1; `dimensions` keeps the leading values and
renormalizes. Scores are the model's own, the best first; `index` is the document's place in the request.

Every error, on any of these routes, is

```json
{"contract_version": 1, "request_id": "example:1",
 "error": {"code": "request_limit", "outcome": "not_admitted", "message": "`max_tokens` is 9999, over the limit of 4096"}}
```

## When to send again

- `outcome` `not_admitted`: nothing has happened. With a `Retry-After` header (whole seconds) sending the same again
  after it makes sense; without one it does not: the request or the server must change first.
- `outcome` `unknown`: the work may have been done. The gateway never sends anything twice; whether the client may is for
  the client to know (for a text, an embedding or a score: nothing but the time is lost).
- A connection that breaks before an answer came is `unknown` as well.

Leaving is cancelling: a client that closes its connection ends its operation at once, queued or running.

## Streams

With `stream: true` (text output only) the answer is `text/event-stream`. An error before `started` is an ordinary
answer with its status. Each event has a name and one line of JSON whose `kind` is the name:

```
event: started
data: {"kind":"started","contract_version":1,"request_id":"example:1","capability":"text_generation","model":"smol","profile":"default"}

event: delta
data: {"kind":"delta","request_id":"example:1","text":" Paris"}

event: completed
data: {"kind":"completed","request_id":"example:1","finish_reason":"stop","usage":{"prompt_tokens":5,"completion_tokens":2,"cached_tokens":0},"seed":7}
```

`started` comes once the operation is admitted, before the first token; then any number of `delta`; then `completed`, only
after the engine's own end. After a fault the last event is `failed`, with the `error` record of above instead:
`{"kind":"failed","request_id":...,"error":{code, outcome, message}}`. A stream that ends with neither was cut: its
outcome is `unknown`. Lines that begin with `:` are comments that show that the stream is alive; skip them.
"""


_EXAMPLES_HEAD = """\
## Examples

What fits each capability, and what comes back. Models: `smol` chats, `minilm` embeds, `ranker` ranks, `m` is a model
behind an `[[upstream]]`. Options are optional but for image_generation; where they are given, `kind` is required.
`output` says what is wanted back; `labels`, `pcm_s16le` and `pcm_f32le` are reserved. Send one with

    curl http://127.0.0.1:8080/v1/model-operations -H 'Content-Type: application/json' -d @request.json
"""


def guide() -> str:
    """The sections, in Markdown."""
    parts = [_ROUTES, _EXAMPLES_HEAD]
    for name, (request, answer) in EXAMPLES.items():
        parts.append(f"### {name}\n\n```json\n{_json(request)}\n```\n\n```json\n{_json(answer)}\n```\n")
    return "\n".join([*parts, _ENVELOPES])


def _json(value: dict[str, Any]) -> str:
    """One member a line."""
    members = [
        f"  {msgspec.json.encode(name).decode()}: {msgspec.json.encode(item).decode()}" for name, item in value.items()
    ]
    return "{\n" + ",\n".join(members) + "\n}"
