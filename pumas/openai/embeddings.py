"""POST /v1/embeddings: texts or token ids; vectors as JSON numbers or, as the SDKs ask by default, base64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pumas.contract.errors import ContractError
from pumas.contract.results import bounded, floats_json, vector_base64
from pumas.openai.fields import EMBEDDINGS
from pumas.openai.request import Target, TokenId, decode
from pumas.operations import Embed, Embeddings


class _Body(Target, kw_only=True):
    input: str | list[str | TokenId | list[TokenId]]
    dimensions: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None


class EmbeddingsRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: Embed
    base64: bool
    ignored: tuple[str, ...]


def parse_embeddings(data: Mapping[str, Any]) -> EmbeddingsRequest:
    """Check a decoded body against the route.

    Raises: ContractError.
    """
    body, ignored = decode(data, EMBEDDINGS, _Body)
    return EmbeddingsRequest(
        operation=Embed(inputs=_inputs(body.input), dimensions=body.dimensions),
        base64=body.encoding_format == "base64",
        ignored=ignored,
    )


def _inputs(given: str | list[Any]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        given = [given]
    if not given:
        raise _bad("input: the list is empty")
    if all(isinstance(item, int) for item in given):
        return (tuple(given),)
    inputs: list[str | tuple[int, ...]] = []
    for index, item in enumerate(given):
        if isinstance(item, str):
            if not item.strip():
                raise _bad(f"input[{index}]: the text is empty")
            inputs.append(item)
        elif isinstance(item, list):
            if not item:
                raise _bad(f"input[{index}]: the list is empty")
            inputs.append(tuple(item))
        else:
            raise _bad("input: expected a text, a list of texts, token ids, or a list of lists of token ids")
    return tuple(inputs)


def _bad(message: str) -> ContractError:
    return ContractError("invalid_request", message, field="input")


def embeddings_answer(request: EmbeddingsRequest, result: Embeddings, model: str) -> bytes:
    """The answer's JSON; numbers are encoded once, straight from the array.

    Raises: ContractError(response_limit).
    """
    items = b",".join(
        b'{"object":"embedding","index":%d,"embedding":%b}'
        % (index, b'"%b"' % vector_base64(row).encode() if request.base64 else floats_json(row))
        for index, row in enumerate(result.vectors)
    )
    usage = msgspec.json.encode({"prompt_tokens": result.input_tokens, "total_tokens": result.input_tokens})
    return bounded(b'{"object":"list","data":[%b],"model":%b,"usage":%b}' % (items, msgspec.json.encode(model), usage))
