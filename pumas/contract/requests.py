"""The request grammar: closed records for every input, option and field, and `decode_operation`.

Field names are those of decision C11. A record that carries a rule of its own checks it in `__post_init__`, so that the
refusal names the place. Where a field is optional, null means absent. Ranges that depend on the model, and media, are
checked later (`resolve`), in the order of decision C1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pumas.contract.descriptors import CAPABILITIES, SEMANTIC_TASKS
from pumas.contract.errors import ContractError
from pumas.contract.explain import Schema, explain, nearest, quote
from pumas.contract.limits import CONTRACT_VERSION
from pumas.contract.media import AudioEncoding, ImageEncoding
from pumas.contract.names import check_model_name, check_profile_name
from pumas.contract.strict import load, valid_request_id

Output = Literal[
    "text", "embeddings_float32", "png_base64", "decisions", "relevance_scores", "labels", "pcm_s16le", "pcm_f32le"
]
OUTPUTS: tuple[str, ...] = get_args(Output)
Language = Literal["en", "de", "fr", "it", "es", "pt", "el", "nl", "pl", "vi", "zh", "ar", "ja", "ko"]


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every request record: closed."""


def _require_text(what: str, text: str) -> None:
    if not text or text.isspace():
        raise ValueError(f"{what} is empty or only white space")


# --- parts and messages ----------------------------------------------------------------------------------------------


class TextPart(Record, tag="text", tag_field="kind"):
    text: str

    def __post_init__(self) -> None:
        _require_text("text", self.text)


class ImagePart(Record, tag="image", tag_field="kind"):
    encoding: ImageEncoding
    data_base64: str


class AudioPart(Record, tag="audio", tag_field="kind"):
    """Raw little-endian PCM; `sample_count` is frames per channel."""

    encoding: AudioEncoding
    sample_rate_hz: int
    channels: Literal[1, 2]
    sample_count: int
    data_base64: str


Part = TextPart | ImagePart | AudioPart


class Message(Record):
    role: Literal["system", "user", "assistant"]
    content: str | Annotated[tuple[Part, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        if isinstance(self.content, str):
            _require_text("content", self.content)
        elif self.role != "user" and any(isinstance(part, AudioPart) for part in self.content):
            raise ValueError(f"an audio part is accepted in user messages only, not in a {self.role} message")

    @property
    def parts(self) -> tuple[Part, ...]:
        return (TextPart(text=self.content),) if isinstance(self.content, str) else self.content


Messages = Annotated[tuple[Message, ...], Meta(min_length=1)]


class BatchItem(Record):
    """What one vector of a content_batch is made from."""

    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]


# --- decisions -------------------------------------------------------------------------------------------------------


class ChoiceQuestion(Record, tag="choice", tag_field="type"):
    """`criteria`: option to description."""

    instructions: str
    criteria: Annotated[dict[str, str | None], Meta(min_length=1)]


class ScoreQuestion(Record, tag="score", tag_field="type"):
    """`criteria`: level descriptions, lowest first."""

    instructions: str
    criteria: Annotated[tuple[str, ...], Meta(min_length=1)]


class NoulCriteria(Record):
    true: str | None = None
    false: str | None = None


class NoulQuestion(Record, tag="noul", tag_field="type"):
    instructions: str
    criteria: NoulCriteria | None = None


Question = ChoiceQuestion | ScoreQuestion | NoulQuestion


class DecisionImage(Record):
    """An image of a decision; `kind` may stand there as in a message's part."""

    encoding: ImageEncoding
    data_base64: str
    kind: Literal["image"] = "image"


class DecisionClip(Record):
    """A clip of a decision: the audio part without `kind`."""

    encoding: AudioEncoding
    sample_rate_hz: int
    channels: Literal[1, 2]
    sample_count: int
    data_base64: str


# --- inputs ----------------------------------------------------------------------------------------------------------


class Input(Record, tag_field="kind"):
    pass


class TextInput(Input, tag="text"):
    text: str

    def __post_init__(self) -> None:
        _require_text("text", self.text)


class TextBatchInput(Input, tag="text_batch"):
    texts: Annotated[tuple[str, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        for index, text in enumerate(self.texts):
            _require_text(f"texts[{index}]", text)


class MessagesInput(Input, tag="messages"):
    messages: Messages


class ImageMessagesInput(Input, tag="image_messages"):
    messages: Messages


class ImageInput(Input, tag="image"):
    encoding: ImageEncoding
    data_base64: str


class ContentBatchInput(Input, tag="content_batch"):
    items: Annotated[tuple[BatchItem, ...], Meta(min_length=1)]


class DecisionInput(Input, tag="decision"):
    """`state`: a string or any JSON value."""

    state: Any
    questions: Annotated[dict[str, Question], Meta(min_length=1)]
    images: tuple[DecisionImage, ...] | None = None
    audio: tuple[DecisionClip, ...] | None = None


class RerankInput(Input, tag="rerank"):
    query: str
    documents: Annotated[tuple[str, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        _require_text("query", self.query)
        for index, document in enumerate(self.documents):
            _require_text(f"documents[{index}]", document)


class AudioInput(Input, tag="audio"):
    """Reserved: no capability takes it in this release."""

    encoding: AudioEncoding
    sample_rate_hz: int
    channels: Literal[1, 2]
    sample_count: int
    data_base64: str


AnyInput = (
    TextInput
    | TextBatchInput
    | MessagesInput
    | ImageMessagesInput
    | ImageInput
    | ContentBatchInput
    | DecisionInput
    | RerankInput
    | AudioInput
)


# --- options ---------------------------------------------------------------------------------------------------------


class Options(Record, tag_field="kind"):
    def given(self) -> dict[str, Any]:
        """The options that the caller set."""
        pairs = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return {name: value for name, value in pairs if value is not None}


class TextOptions(Options, tag="text_generation"):
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1)] | None = None
    repeat_penalty: float | None = None
    grammar: Annotated[str, Meta(min_length=1)] | None = None
    json_schema: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.grammar is not None and self.json_schema is not None:
            raise ValueError("`grammar` and `json_schema` exclude each other")


class EmbeddingsOptions(Options, tag="embeddings"):
    dimensions: int | None = None


class ImageOptions(Options, tag="image_generation"):
    width: int
    height: int
    seed: int | None = None


class DecisionOptions(Options, tag="decision"):
    pass


class RerankOptions(Options, tag="rerank"):
    top_n: int | None = None


class AudioOptions(Options, tag="audio"):
    language: Language | None = None
    max_output_tokens: int | None = None


AnyOptions = TextOptions | EmbeddingsOptions | ImageOptions | DecisionOptions | RerankOptions | AudioOptions


# --- the request -----------------------------------------------------------------------------------------------------


class OperationRequest(Record):
    """One typed operation, checked against the schema; not yet against a model."""

    contract_version: Literal[1]
    request_id: str
    model: str
    input: AnyInput
    output: Output
    profile: str | None = None
    capability: str | None = None
    semantic_task: str | None = None
    options: AnyOptions | None = None
    stream: bool = False

    def __post_init__(self) -> None:
        if valid_request_id(self.request_id) is None:
            raise ValueError(f"`request_id` is {quote(self.request_id)}, not 1 to 128 of A-Z a-z 0-9 - _ . :")
        check_model_name(self.model)
        if self.profile is not None:
            check_profile_name(self.profile)
        _require_known("capability", self.capability, CAPABILITIES)
        _require_known("semantic_task", self.semantic_task, SEMANTIC_TASKS.values())
        if self.stream and (self.output != "text" or isinstance(self.input, AudioInput)):
            raise ValueError("`stream` is true, but only text generation streams")


def _require_known(field: str, value: str | None, known: Any) -> None:
    if value is not None and value not in known:
        raise ValueError(f"`{field}` is {quote(value)}{nearest(value, known)}")


_RECORDS: tuple[type[Record], ...] = (
    OperationRequest, Message, BatchItem, NoulCriteria, DecisionImage, DecisionClip, TextPart, ImagePart, AudioPart,
    ChoiceQuestion, ScoreQuestion, NoulQuestion, TextInput, TextBatchInput, MessagesInput, ImageMessagesInput,
    ImageInput, ContentBatchInput, DecisionInput, RerankInput, AudioInput, TextOptions, EmbeddingsOptions, ImageOptions,
    DecisionOptions, RerankOptions, AudioOptions,
)  # fmt: skip
_SCHEMA = Schema(
    records=_RECORDS,
    words={
        "output": OUTPUTS,
        "role": ("system", "user", "assistant"),
        "encoding": get_args(ImageEncoding),
        "audio encoding": get_args(AudioEncoding),
        "language": get_args(Language),
        "type": ("choice", "score", "noul"),
        "kind": tuple(
            sorted({str(record.__struct_config__.tag) for record in _RECORDS if record.__struct_config__.tag})
        ),
    },
)


def decode_operation(body: bytes) -> OperationRequest:
    """Decode the body of POST /v1/model-operations, in the order of decision C1: size, JSON, version, schema.

    Blocks: for a large body tens of milliseconds (`strict.is_large`).
    Raises: ContractError with its `request_id` set where the body was JSON with a valid one.
    """
    value = load(body)
    request_id = valid_request_id(value.get("request_id")) if isinstance(value, dict) else None
    try:
        if isinstance(value, dict):
            _check_version(value.get("contract_version", UNSET))
        return _convert(value)
    except ContractError as error:
        error.request_id = request_id
        raise


def _check_version(version: int | UnsetType | Any) -> None:
    if type(version) is int and version != CONTRACT_VERSION:
        message = f"contract_version {quote(version)} is not supported; supported: {CONTRACT_VERSION}"
        raise ContractError("unsupported_contract", message, field="contract_version")


def _convert(value: Any) -> OperationRequest:
    try:
        return msgspec.convert(value, OperationRequest)
    except msgspec.ValidationError as error:
        message, field = explain(str(error), value, _SCHEMA)
        raise ContractError("invalid_request", f"request does not match the contract: {message}", field=field) from None
