"""From a plan of the contract to the operation that its provider is asked to do."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pumas import operations as ask
from pumas.contract import media
from pumas.contract.requests import (
    ContentBatchInput,
    DecisionInput,
    EmbeddingsOptions,
    ImageInput,
    ImageMessagesInput,
    ImageOptions,
    ImagePart,
    MessagesInput,
    Part,
    RerankInput,
    TextBatchInput,
    TextInput,
    TextOptions,
    TextPart,
)
from pumas.contract.resolve import Plan

Operation = ask.GenerateText | ask.Embed | ask.Rerank | ask.Decide | ask.GenerateImage


def to_operation(plan: Plan) -> Operation:
    """The operation of a plan. Options that were not given stay None: the provider's default (G7)."""
    images, clips = map(_image, plan.images), map(_clip, plan.clips)
    name = plan.capability.capability
    match name, plan.request.input:
        case "text_generation", TextInput() as content:
            return _generate(plan, prompt=content.text)
        case "chat_generation", TextInput() as content:
            return _generate(plan, messages=(ask.Message(role="user", content=content.text),))
        case "chat_generation" | "image_to_text", MessagesInput() | ImageMessagesInput() as content:
            messages = (
                ask.Message(
                    role=message.role,
                    content=message.content
                    if isinstance(message.content, str)
                    else _parts(message.content, images, clips),
                )
                for message in content.messages
            )
            return _generate(plan, messages=tuple(messages))
        case "image_to_text", ImageInput():
            return _generate(plan, messages=(ask.Message(role="user", content=tuple(images)),))
        case "text_embedding", TextInput() as content:
            return ask.Embed(capability=name, inputs=(content.text,), dimensions=_dimensions(plan))
        case "text_embedding", TextBatchInput() as content:
            return ask.Embed(capability=name, inputs=content.texts, dimensions=_dimensions(plan))
        case "multimodal_embedding", ImageInput():
            return ask.Embed(capability=name, inputs=(tuple(images),), dimensions=_dimensions(plan))
        case "multimodal_embedding", ContentBatchInput() as content:
            items = tuple(_parts(item.parts, images, clips) for item in content.items)
            return ask.Embed(capability=name, inputs=items, dimensions=_dimensions(plan))
        case "rerank", RerankInput() as content:
            return ask.Rerank(query=content.query, documents=content.documents)
        case "decision", DecisionInput() as content:
            questions = msgspec.to_builtins(content.questions)
            return ask.Decide(state=content.state, questions=questions, images=tuple(images), audio=tuple(clips))
        case "image_generation", TextInput() as content:
            options = plan.request.options
            assert isinstance(options, ImageOptions)  # resolve requires them
            return ask.GenerateImage(prompt=content.text, width=options.width, height=options.height, seed=options.seed)
        case _:
            raise AssertionError(f"no operation for {name} from {type(plan.request.input).__name__}")


def _generate(plan: Plan, *, messages: tuple[ask.Message, ...] = (), prompt: str | None = None) -> ask.GenerateText:
    given = plan.request.options
    options = ask.TextOptions()
    if isinstance(given, TextOptions):
        fields = given.given()
        if given.json_schema is not None:
            fields["json_schema"] = msgspec.json.encode(given.json_schema).decode()
        options = ask.TextOptions(**fields)
    return ask.GenerateText(
        capability=plan.capability.capability,
        messages=messages,
        prompt=prompt,
        options=options,
        stream=plan.request.stream,
    )


def _parts(
    parts: tuple[Part, ...], images: Iterator[ask.ImagePart], clips: Iterator[ask.AudioPart]
) -> tuple[ask.Part, ...]:
    """The parts with their checked media, which come in the request's order."""
    return tuple(
        ask.TextPart(part.text)
        if isinstance(part, TextPart)
        else next(images)
        if isinstance(part, ImagePart)
        else next(clips)
        for part in parts
    )


def _image(image: media.Image) -> ask.ImagePart:
    return ask.ImagePart(image.encoding, image.data)


def _clip(clip: media.Clip) -> ask.AudioPart:
    return ask.AudioPart(clip.encoding, clip.sample_rate_hz, clip.channels, clip.sample_count, clip.data)


def _dimensions(plan: Plan) -> int | None:
    options = plan.request.options
    return options.dimensions if isinstance(options, EmbeddingsOptions) else None
