"""POST /v1/images/generations: its validation, and the answer where a served model can draw."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pumas.contract.errors import ContractError
from pumas.openai.fields import IMAGES
from pumas.openai.request import Target, decode
from pumas.operations import GeneratedImage, GenerateImage


class _Body(Target, kw_only=True):
    prompt: str
    size: str | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    response_format: Literal["b64_json", "url"] | None = None


class ImageRequest(msgspec.Struct, frozen=True, kw_only=True):
    operation: GenerateImage
    ignored: tuple[str, ...]


def parse_image(data: Mapping[str, Any]) -> ImageRequest:
    """Check a decoded body against the route.

    Raises: ContractError.
    """
    body, ignored = decode(data, IMAGES, _Body)
    if not body.prompt.strip():
        raise ContractError("invalid_request", "prompt: the text is empty", field="prompt")
    if body.response_format == "url":
        raise ContractError("invalid_request", "response_format: images are given as b64_json", field="response_format")
    size = re.fullmatch(r"([1-9][0-9]{0,4})x([1-9][0-9]{0,4})", body.size or "512x512", re.ASCII)
    if size is None:
        raise ContractError("invalid_request", "size: expected WIDTHxHEIGHT in pixels, such as 512x512", field="size")
    return ImageRequest(
        operation=GenerateImage(
            prompt=body.prompt, width=int(size.group(1)), height=int(size.group(2)), seed=body.seed
        ),
        ignored=ignored,
    )


def image_answer(result: GeneratedImage, created: int) -> dict[str, Any]:
    return {
        "created": created,
        "data": [{"b64_json": base64.b64encode(result.png).decode("ascii")}],
        "output_format": "png",
        "seed": result.seed,
    }
