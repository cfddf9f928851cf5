"""The request grammar: closed records for every input, option and field, and `decode_operation`.

Field names are those of decision C11. A record that carries a rule of its own checks it in `__post_init__`, so that the
refusal names the place. Where a field is optional, null means absent. Ranges that depend on the model, and media, are
checked later (`resolve`), in the order of decision C1.
"""

from __future__ import annotations

import difflib
import re
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import UNSET, Meta, UnsetType

from pumas.contract.descriptors import CAPABILITIES, SEMANTIC_TASKS
from pumas.contract.errors import ContractError
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
            raise ValueError(f"`request_id` is {_quote(self.request_id)}, not 1 to 128 of A-Z a-z 0-9 - _ . :")
        check_model_name(self.model)
        if self.profile is not None:
            check_profile_name(self.profile)
        _require_known("capability", self.capability, CAPABILITIES)
        _require_known("semantic_task", self.semantic_task, SEMANTIC_TASKS.values())
        if self.stream and (self.output != "text" or isinstance(self.input, AudioInput)):
            raise ValueError("`stream` is true, but only text generation streams")


def _require_known(field: str, value: str | None, known: Any) -> None:
    if value is not None and value not in known:
        raise ValueError(f"`{field}` is {_quote(value)}{_nearest(value, known)}")


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
        message = f"contract_version {_quote(version)} is not supported; supported: {CONTRACT_VERSION}"
        raise ContractError("unsupported_contract", message, field="contract_version")


def _convert(value: Any) -> OperationRequest:
    try:
        return msgspec.convert(value, OperationRequest)
    except msgspec.ValidationError as error:
        message, field = _explain(str(error), value)
        raise ContractError("invalid_request", f"request does not match the contract: {message}", field=field) from None


# --- refusals in words -----------------------------------------------------------------------------------------------

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(\$.*)`)?", re.S)
_INVALID_WORD = re.compile(r"Invalid (?:enum )?value '(.*)'", re.S)
_PATH_STEP = re.compile(r"\.([A-Za-z_0-9]+)|\[(\d+)\]|\[\.\.\.\]")
_RECORDS: tuple[type[Record], ...] = (
    OperationRequest, Message, BatchItem, NoulCriteria, DecisionImage, DecisionClip, TextPart, ImagePart, AudioPart,
    ChoiceQuestion, ScoreQuestion, NoulQuestion, TextInput, TextBatchInput, MessagesInput, ImageMessagesInput,
    ImageInput, ContentBatchInput, DecisionInput, RerankInput, AudioInput, TextOptions, EmbeddingsOptions, ImageOptions,
    DecisionOptions, RerankOptions, AudioOptions,
)  # fmt: skip


_WORDS: dict[str, tuple[str, ...]] = {
    "output": OUTPUTS,
    "role": ("system", "user", "assistant"),
    "encoding": get_args(ImageEncoding),
    "audio encoding": get_args(AudioEncoding),
    "language": get_args(Language),
    "type": ("choice", "score", "noul"),
    "kind": tuple(sorted({str(record.__struct_config__.tag) for record in _RECORDS if record.__struct_config__.tag})),
}
"""Fields whose values are words of the contract."""


def _explain(message: str, value: Any) -> tuple[str, str | None]:
    """A refusal of msgspec in the contract's words, and the field that it is about."""
    found = _UNKNOWN_FIELD.fullmatch(message)
    if not found:
        text, _, path = message.partition(" - at `$")
        field = path.rstrip("`").lstrip(".") or _named(text) or ""
        word = _INVALID_WORD.match(text)
        hint = _nearest(word[1], _words_at(value, field)) if word else ""
        return _clip(message, 600) + hint, field[:128] or None
    name, path = found[1], found[2] or "$"
    return f"unknown field {_quote(name)} at `{path}`{_nearest(name, _fields_at(value, path))}", name[:128]


def _named(text: str) -> str | None:
    found = re.search(r"`([a-z_]+)`", text)
    return found[1] if found else None


def _fields_at(value: Any, path: str) -> set[str]:
    """Names that would have been known at `path`: of the records with the object's tag, else of those without one."""
    if path == "$":
        return set(OperationRequest.__struct_fields__)
    holder = _value_at(value, path)
    tag = (holder.get("kind") or holder.get("type")) if isinstance(holder, dict) else None
    fields: set[str] = set()
    for record in _RECORDS:
        if record.__struct_config__.tag == (tag if isinstance(tag, str) else None):
            fields.update(record.__struct_fields__)
    return fields


def _words_at(value: Any, path: str) -> tuple[str, ...]:
    """Words that would have been known at `path`, where they are few."""
    before, _, name = path.rpartition(".")
    if name == "encoding":
        holder = _value_at(value, "." + before)
        if isinstance(holder, dict) and (holder.get("kind") == "audio" or "sample_rate_hz" in holder):
            name = "audio encoding"
    return _WORDS.get(name, ())


def _value_at(value: Any, path: str) -> Any:
    """The value at a path of msgspec's; a step through a caller's own key is not named there and is skipped."""
    for step in _PATH_STEP.finditer(path):
        if isinstance(value, dict) and step[1] in value:
            value = value[step[1]]
        elif isinstance(value, list) and step[2]:
            value = value[int(step[2])]
    return value


def _nearest(name: str, known: Any) -> str:
    match = difflib.get_close_matches(name[:64], list(known), n=1)
    if match:
        return f"; the nearest known is `{match[0]}`"
    return f"; known: {', '.join(f'`{word}`' for word in sorted(known))}" if known else ""


def _quote(value: object) -> str:
    return f"`{_clip(str(value), 64)}`"


def _clip(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."
