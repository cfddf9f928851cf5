"""Every message of worker protocol v1 and of its additive types, as msgspec structs.

A control frame is one JSON object. HELLO and HELLO_ACK are the first two frames of a connection and carry no tag; every
later one has its name in `"type"` (decision W1). Requests are closed (an unknown key is refused), replies are open (an
unknown key is ignored). v1 types fix whether a raw frame follows; every type added later says so in `"raw"` (W4).

All integers are unsigned unless said otherwise, all token ids are little-endian i32, all vectors little-endian f32.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

PROTOCOL_VERSION = 1
DEFAULT_MAX_FRAME_BYTES = 64 * 1024 * 1024
"""Bound of a raw frame before the handshake lowers it (worker protocol, Transport; D15)."""
MAX_JSON_FRAME_BYTES = 8 * 1024 * 1024
"""Bound of a control frame (W5, D15)."""

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Pooling = Literal["mean", "cls", "last"]
FinishReason = Literal["stop", "length"]


# --- handshake (untagged: position identifies them) ------------------------------------------------------------------


class EngineInfo(msgspec.Struct):
    """What runs in the worker, for logs and `--build-info`."""

    name: str
    version: str
    build_flags: dict[str, str] = {}


class Hello(msgspec.Struct):
    """Worker → module, first frame. `v` is the version byte; `nonce` must equal the spawn nonce."""

    v: int
    nonce: str
    engine: EngineInfo
    pid: int
    max_frame: int


class HelloAck(msgspec.Struct):
    """Module → worker, second frame. Afterwards both sides use the smaller max_frame (W5)."""

    v: int
    accept: bool
    max_frame: int


# --- requests --------------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=False):
    """Base of what the module sends after the handshake."""

    req_id: str


class Load(Request, tag="LOAD", kw_only=True):
    artifact_path: str
    artifact_digest: str
    """`sha256:` and 64 hex digits."""
    format: str
    """`gguf` or `onnx`."""
    runtime_config: dict[str, str] = {}


class EmbedItem(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    n_tokens: Count


class EmbedBatch(Request, tag="EMBED_BATCH", kw_only=True):
    """+ one raw frame: the items' ids, one behind the other."""

    model_ref: str
    pooling: Pooling
    normalize: bool
    items: list[EmbedItem]


class Candidate(msgspec.Struct, forbid_unknown_fields=True):
    n_tokens: Count


class Rerank(Request, tag="RERANK", kw_only=True):
    """+ one raw frame: the query's ids, then the candidates'. The worker builds the pairs (D10)."""

    model_ref: str
    query_n_tokens: Count
    candidates: list[Candidate]


class Generate(Request, tag="GENERATE", kw_only=True):
    """+ one raw frame: the prompt's ids (its length gives their number)."""

    model_ref: str
    max_tokens: Count
    grammar: str | None = None


class Unload(Request, tag="UNLOAD", kw_only=True):
    model_ref: str


class Ping(Request, tag="PING", kw_only=True):
    pass


class Shutdown(msgspec.Struct, tag="SHUTDOWN", forbid_unknown_fields=True):
    """The worker exits 0 after its current request; there is no reply."""


# --- additive: generation in quanta (W12, G5) ------------------------------------------------------------------------


class Sampling(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How a token is drawn, in llama.cpp's default order (G3). temperature 0 is greedy; the seed is always given."""

    temperature: float = 0.0
    top_k: int = 40
    """0: all tokens."""
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = 64
    """How many of the last tokens the penalties see."""
    seed: int = 0
    """0 .. 2**63 - 1."""
    logit_bias: list[tuple[int, float]] = []


class Reuse(msgspec.Struct, forbid_unknown_fields=True):
    """Take the first `n` tokens' KV from `seq`: parked, finished or running; may be the sequence's own place."""

    seq: Count
    n: Count


class DecodeStart(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One sequence that begins in this quantum. Its prompt's ids stand in the raw frame, in the order of `start`."""

    seq: Count
    """Its place, 0 .. parallel - 1, chosen by the scheduler. What was parked there is dropped, but for `reuse`."""
    n_tokens: Count
    max_tokens: Count
    sampling: Sampling
    stop: list[str] = []
    grammar: str | None = None
    json_schema: str | None = None
    logprobs: Count | None = None
    """None: none; n: the drawn token's log-probability and those of the n most likely ones."""
    reuse: Reuse | None = None


class Decode(Request, tag="DECODE", kw_only=True):
    """One bounded quantum over the resident sequences. + one raw frame: the started prompts' ids (may be empty).

    The quantum ends after `max_steps` steps or when `target_ms` have passed, whichever is first; it always makes
    progress. A sequence that is resident but neither in `continue_` nor started is held: it keeps its state untouched.
    """

    raw: Literal[1] = 1
    model_ref: str
    max_steps: Count
    target_ms: float
    threads: Count = 0
    """0: as many as the profile says."""
    start: list[DecodeStart] = []
    continue_: list[Count] = msgspec.field(name="continue", default_factory=list)
    drop: list[Count] = []
    """End these and free their KV."""
    park: list[Count] = []
    """End these, keep their KV for reuse. A sequence that finished by itself is parked already."""


# --- additive: the text processes (W13) ------------------------------------------------------------------------------


class ModelFile(msgspec.Struct, forbid_unknown_fields=True):
    """A model as the text processes know it: opened from the ingest cache by digest, else from the file."""

    path: str
    digest: str
    cache_dir: str


class Ingest(Request, tag="INGEST", kw_only=True):
    """Digest the file, read its header, build and probe its tokenizer, compile its template; cache all by digest."""

    raw: Literal[0] = 0
    path: str
    cache_dir: str
    header_only: bool = False
    """Digest and header only, for a model that another program tokenizes for: nothing is built, tried or cached."""


class Tokenize(Request, tag="TOKENIZE", kw_only=True):
    """+ one raw frame: the texts' UTF-8 bytes, one behind the other, as long as `lengths` says."""

    raw: Literal[1] = 1
    model: ModelFile
    lengths: list[Count]
    add_special: bool
    parse_special: bool


class Render(Request, tag="RENDER", kw_only=True):
    """Render a chat and tokenize it. + one raw frame: JSON {messages, tools?, add_generation_prompt, extras?}."""

    raw: Literal[1] = 1
    model: ModelFile
    n_bytes: Count
    template: str | None = None
    """A named fallback (a profile asked for it) instead of the model's own."""
    close_injection: bool = True
    """Special-token text inside message contents stays text, where that provably can be done."""


class CheckGrammar(Request, tag="CHECK_GRAMMAR", kw_only=True):
    """Can this grammar be honoured in full? + one raw frame: its UTF-8 text. No → ERR invalid_request (G1)."""

    raw: Literal[1] = 1
    kind: Literal["grammar", "json_schema"]
    n_bytes: Count


# --- replies ---------------------------------------------------------------------------------------------------------


class Reply(msgspec.Struct, kw_only=True):
    """Base of what a worker answers. Unknown keys are ignored."""

    req_id: str


class Measured(msgspec.Struct, kw_only=True):
    """What the loaded engine showed (D1). Descriptors come from it; nothing here is merely declared."""

    architecture: str = ""
    role: Literal["generate", "embed", "rerank"] = "generate"
    embeds: bool = False
    """A model for generation that embeds as well: texts of up to a micro-batch, pooled as `pooling` says."""
    context: int = 0
    """Tokens one sequence may hold; for encoders the longest input, special tokens included."""
    micro_batch: int = 0
    """Tokens of one engine call."""
    vocabulary: int = 0
    pooling: str | None = None
    ranking_head: bool = False
    parallel: int = 1
    """Sequences that may be resident at once."""
    cells: int = 0
    """KV cells that all resident sequences share, parked ones too; 0: each has `context` of its own."""
    max_texts: int = 0
    """Texts or candidates that one unit may hold; 0: as many as the module likes."""
    threads: int = 1
    decode: bool = False
    """The worker knows DECODE."""
    decode_step_ms: float = 0.0
    """One step of one sequence, as the smoke test measured it."""
    embed_budget: int = 0
    """Tokens of an embedding unit that were fastest in the short measurement at load."""
    deterministic: bool = False
    """The self-test found the same text alone, in company and chunked (G2)."""
    reuse_equal: bool = False
    """... and with a reused prefix."""
    threads_equal: bool = False
    """... and at one thread and all."""
    deterministic_detail: str = ""
    """Why not, in words."""
    add_bos: bool = False
    sandbox: dict[str, str] = {}
    """What harden.py could arm: feature → "on" or why not."""


class Loaded(Reply, tag="LOADED", kw_only=True):
    model_ref: str
    dims: int
    cold_load_ms: float
    measured: Measured = msgspec.field(default_factory=Measured)


class Vectors(Reply, tag="VECTORS", kw_only=True):
    """+ one raw frame: f32[n, dims]."""

    dims: Count
    n: Count


class Scores(Reply, tag="SCORES", kw_only=True):
    """+ one raw frame: f32, one for each candidate."""


class Text(Reply, tag="TEXT", kw_only=True):
    text: str
    n_prompt: Count
    n_gen: Count
    finish_reason: str


class Unloaded(Reply, tag="UNLOADED", kw_only=True):
    pass


class Pong(Reply, tag="PONG", kw_only=True):
    rss_mb: float
    models_loaded: int
    placement_share: float | None = None


class Err(Reply, tag="ERR", kw_only=True):
    code: str
    msg: str


class TokenLogprob(msgspec.Struct):
    id: int
    token: str
    """The token's text; bytes that are no UTF-8 alone are replaced, `bytes` has them."""
    bytes: list[int]
    logprob: float
    top: list[tuple[int, str, list[int], float]] = []
    """The most likely ones: id, text, bytes, log-probability."""


class SequenceError(msgspec.Struct):
    code: str
    msg: str


class SequenceProgress(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one sequence did in this quantum. `finish_reason` or `error` ends it."""

    seq: int
    text: str = ""
    """New text: whole UTF-8 only, stop strings removed, what was held back is flushed at the end."""
    ids: list[int] = []
    """The tokens generated in this quantum (for prefix reuse)."""
    n_prompt_done: int = 0
    """Prompt tokens evaluated or reused so far."""
    n_reused: int = 0
    n_gen: int = 0
    """Tokens generated so far."""
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] | None = None
    error: SequenceError | None = None


class Decoded(Reply, tag="DECODED", kw_only=True):
    raw: int = 0
    sequences: list[SequenceProgress] = []
    steps: int = 0
    elapsed_ms: float = 0.0


class ModelInfo(msgspec.Struct, kw_only=True):
    """What a model file is, read from its header (never from its name)."""

    digest: str
    size: int
    architecture: str = ""
    name: str = ""
    role: Literal["generate", "embed", "rerank"] = "generate"
    context_length: int = 0
    """As trained."""
    embedding_length: int = 0
    vocabulary: int = 0
    pooling: str | None = None
    ranking_head: bool = False
    faithful_pairs: bool = True
    """False: a reranker whose template llama.cpp does not reproduce (Qwen3 type); LOAD refuses it (D10)."""
    decision: bool = False
    """It declares itself a native decision model (`<architecture>.decision.type`)."""
    weights: str = ""
    """The weights' main type, as in `Q4_1`."""
    tokenizer: Literal["built", "engine"] = "built"
    tokenizer_type: str = ""
    """As in `tokenizer.ggml.model`: llama, bert, gpt2, t5, ..."""
    tokenizer_reason: str = ""
    """Why the engine's own vocabulary tokenizes this model's text."""
    longest_token_bytes: int = 0
    add_bos: bool = False
    add_eos: bool = False
    bos_id: int = -1
    eos_id: int = -1
    sep_id: int = -1
    bos_token: str = ""
    eos_token: str = ""
    chat_template: bool = False
    template_error: str = ""
    """Why the template does not compile."""
    injection_closed: bool = False
    """Special-token text in message contents stays text."""
    tools_format: Literal["hermes", "llama3"] | None = None
    """The tool call form that the template teaches and we can parse (D13)."""


class Ingested(Reply, tag="INGESTED", kw_only=True):
    raw: int = 0
    info: ModelInfo


class Tokenized(Reply, tag="TOKENIZED", kw_only=True):
    """+ one raw frame: the texts' ids, one behind the other, as many as `counts` says."""

    raw: int = 1
    counts: list[int]


class Rendered(Reply, tag="RENDERED", kw_only=True):
    """+ one raw frame: the prompt's ids."""

    raw: int = 1
    n_tokens: int
    n_chars: int = 0
    injection_closed: bool = False


class GrammarChecked(Reply, tag="GRAMMAR_CHECKED", kw_only=True):
    raw: int = 0


AnyRequest = (
    Load
    | EmbedBatch
    | Rerank
    | Generate
    | Unload
    | Ping
    | Shutdown
    | Decode
    | Ingest
    | Tokenize
    | Render
    | CheckGrammar
)
AnyReply = (
    Loaded
    | Vectors
    | Scores
    | Text
    | Unloaded
    | Pong
    | Err
    | Decoded
    | Ingested
    | Tokenized
    | Rendered
    | GrammarChecked
)
