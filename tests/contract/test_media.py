"""Image and audio payloads: headers, canonical base64, exact byte counts."""

from __future__ import annotations

import base64
import random
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

from pumas.contract.errors import ContractError
from pumas.contract.media import decode_base64, jpeg_size, png_size
from pumas.contract.requests import decode_operation
from pumas.contract.resolve import Plan, resolve
from tests.contract import samples
from tests.contract.samples import SERVED, audio_part, b64, image_part, jpeg, png, request, text_part, user


def plan(content: dict[str, Any], output: str = "text", **more: Any) -> Plan:
    return resolve(decode_operation(msgspec.json.encode(request("all", content, output, **more))), SERVED)


def messages(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "messages", "messages": [user(list(parts))]}


def code(content: dict[str, Any], output: str = "text") -> str:
    with pytest.raises(ContractError) as caught:
        plan(content, output)
    assert caught.value.request_id == "example:1"
    return caught.value.code


def test_sizes_come_from_the_header() -> None:
    assert png_size(png(640, 480)) == (640, 480)
    assert jpeg_size(jpeg(640, 480)) == (640, 480)
    checked = plan(messages(image_part(png(5, 6)), image_part(jpeg(7, 8), "jpeg"), text_part())).images
    assert [(image.encoding, image.width, image.height) for image in checked] == [("png", 5, 6), ("jpeg", 7, 8)]
    assert checked[0].data == png(5, 6)


def test_real_images_are_recognised() -> None:
    """A whole PNG written by hand; a progressive JPEG's beginning with fill bytes and a comment."""
    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\x00\x80")), (b"IEND", b""))
    whole = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    assert png_size(whole) == (1, 1)
    comment = b"\xff\xff\xff\xfe\x00\x06note"
    frame = b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, 9, 10, 1) + b"\x01\x11\x00"
    assert jpeg_size(b"\xff\xd8" + comment + frame) == (10, 9)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GIF89a" + bytes(40),
        jpeg(),
        png()[:32],
        png()[:-1] + b"\x00",
        png(0, 3),
        png(3, 0),
        b"\x89PNG\r\n\x1a\n" + bytes(40),
        b"\x89PNG\n\x1a\n" + png()[7:],
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IDAT" + bytes(17),
    ],
)
def test_what_is_no_png(data: bytes) -> None:
    assert png_size(data) is None
    assert code(image_part(data)) == "invalid_request"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        png(),
        b"\xff\xd8",
        b"\xff\xd8\xff\xd9",
        b"\xff\xd8" + b"\xff" * 5000,
        jpeg()[:30],
        jpeg(0, 3),
        jpeg(3, 0),
        b"\xff\xd8\xff\xe0\x00\x01",
        b"\xff\xd8\xff\xda\x00\x08" + jpeg()[2:],
        b"\xff\xd8" + b"\xff\xe1\x00\x02" * 2000 + jpeg()[2:],
        b"\xff\xd8\x00" + jpeg()[2:],
    ],
)
def test_what_is_no_jpeg(data: bytes) -> None:
    assert jpeg_size(data) is None
    assert code(image_part(data, "jpeg")) == "invalid_request"


def test_random_bytes_never_raise() -> None:
    rng = random.Random(1)
    for _ in range(5000):
        body = bytearray(rng.choice([png(), jpeg()]))
        for _ in range(rng.randint(0, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        for size in (png_size(bytes(body)), jpeg_size(bytes(body)), png_size(bytes(body[: rng.randrange(60)]))):
            assert size is None or min(size) > 0


@pytest.mark.parametrize("length", range(8))
def test_canonical_base64(length: int) -> None:
    data = bytes(range(200, 200 + length))
    assert decode_base64(base64.b64encode(data).decode(), "x") == data


@pytest.mark.parametrize(
    "text",
    [
        "A",
        "AA",
        "AAA",
        "AA=",
        "AB==",
        "AAB=",
        "AAAA=",
        "====",
        "AA==AA==",
        "A A=",
        "AA\n==",
        "AA-_",
        "\u00e9AAA",
        "=AAA",
    ],
)
def test_other_base64_is_refused(text: str) -> None:
    with pytest.raises(ContractError, match="canonical"):
        decode_base64(text, "x")


def test_base64_of_media_is_canonical() -> None:
    text = b64(png())
    for broken in (text.rstrip("=") + "=" * 3, text + "\n", text[:-1], text.replace(text[5], "-", 1)):
        assert code(image_part() | {"data_base64": broken}) == "invalid_request"


def samples_part(values: list[float], channels: int = 1) -> dict[str, Any]:
    data = np.array(values, "<f4").tobytes()
    return audio_part(len(values) // channels, channels, encoding="pcm_f32le", data=data)


def test_audio_parts_are_kept_as_they_came() -> None:
    checked = plan(
        messages(samples_part([-1.0, 1.0, 0.0, 0.5], 2), audio_part(3, data=b"\x01\x02\x03\x04\x05\x06"))
    ).clips
    assert [(clip.encoding, clip.channels, clip.sample_count) for clip in checked] == [
        ("pcm_f32le", 2, 2),
        ("pcm_s16le", 1, 3),
    ]
    assert checked[1].data == b"\x01\x02\x03\x04\x05\x06"


@pytest.mark.parametrize("value", [1.0000001, -1.5, float("nan"), float("inf"), -float("inf")])
def test_float_samples_are_finite_and_in_range(value: float) -> None:
    assert code(messages(samples_part([0.0, value]))) == "invalid_request"


def test_a_signalling_nan_is_refused_without_a_warning() -> None:
    data = np.array([0x7FA00000, 0], "<u4").tobytes()
    assert code(messages(audio_part(2, encoding="pcm_f32le", data=data))) == "invalid_request"


@pytest.mark.parametrize(
    "change",
    [
        {"sample_count": 79}, {"sample_count": 81}, {"channels": 2}, {"encoding": "pcm_f32le"}, {"sample_count": 0},
        {"sample_count": -1}, {"channels": 3}, {"channels": 0}, {"encoding": "wav"}, {"sample_rate_hz": 0},
        {"data_base64": ""},
    ],
)  # fmt: skip
def test_audio_declarations_are_exact(change: dict[str, Any]) -> None:
    assert code(messages(audio_part() | change)) == "invalid_request"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_audio_stands_in_user_messages_only(role: str) -> None:
    content = {"kind": "messages", "messages": [{"role": role, "content": [audio_part()]}, user("x")]}
    assert code(content) == "invalid_request"


def test_media_keep_their_places() -> None:
    first, second = png(1, 1), png(2, 2)
    content = {"kind": "content_batch", "items": [
        {"parts": [image_part(first), text_part()]}, {"parts": [audio_part(1)]}, {"parts": [image_part(second)]},
    ]}  # fmt: skip
    found = plan(content, "embeddings_float32")
    assert [image.width for image in found.images] == [1, 2]
    assert len(found.clips) == 1


def test_the_field_is_named() -> None:
    content = {"kind": "messages", "messages": [user("x"), user([text_part(), image_part(png(5000, 1))])]}
    with pytest.raises(
        ContractError, match=r"width of input\.messages\[1\]\.content\[1\] is 5000, over the limit of 4096"
    ):
        plan(content)


def test_decision_media() -> None:
    content = samples.VALID["decision"]["input"]
    found = plan(content, "decisions")
    assert (len(found.images), len(found.clips)) == (1, 1)
    assert code(content | {"images": [image_part(b"x")]}, "decisions") == "invalid_request"
    assert code(content | {"audio": [audio_part()]}, "decisions") == "invalid_request"  # a clip has no kind
