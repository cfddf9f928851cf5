"""POST /v1/rerank and /v2/rerank, in the shape that Jina's and Cohere's clients share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pumas.contract.errors import ContractError
from pumas.contract.results import rank
from pumas.openai.fields import RERANK
from pumas.openai.request import Target, decode, new_id
from pumas.operations import Rerank, Scores


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    text: str


class _Body(Target, kw_only=True):
    query: str
    documents: Annotated[list[str | _Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    return_documents: bool | None = None


class RerankRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: Rerank
    top_n: int | None
    return_documents: bool
    ignored: tuple[str, ...]


def parse_rerank(data: Mapping[str, Any]) -> RerankRequest:
    """Check a decoded body against the route.

    Raises: ContractError.
    """
    body, ignored = decode(data, RERANK, _Body)
    documents = tuple(item if isinstance(item, str) else item.text for item in body.documents)
    if not body.query.strip():
        raise ContractError("invalid_request", "query: the text is empty", field="query")
    for index, document in enumerate(documents):
        if not document.strip():
            raise ContractError("invalid_request", f"documents[{index}]: the text is empty", field="documents")
    return RerankRequest(
        operation=Rerank(query=body.query, documents=documents),
        top_n=body.top_n,
        return_documents=bool(body.return_documents),
        ignored=ignored,
    )


def rerank_answer(request: RerankRequest, result: Scores, model: str) -> dict[str, Any]:
    """Results best first, ties in document order, cut to top_n; the scores are the model's own."""
    results = []
    for index in rank(result.scores, request.top_n):
        entry: dict[str, Any] = {"index": index, "relevance_score": result.scores[index]}
        if request.return_documents:
            entry["document"] = {"text": request.operation.documents[index]}
        results.append(entry)
    return {
        "id": new_id("rerank"),
        "object": "list",
        "model": model,
        "results": results,
        "usage": {"prompt_tokens": result.input_tokens, "total_tokens": result.input_tokens},
        "meta": {"api_version": {"version": "2"}, "tokens": {"input_tokens": result.input_tokens}},
    }
