"""Images and audio of a request: base64, headers, declarations."""

from __future__ import annotations

import base64
import random
import struct
import zlib

import msgspec
import numpy as np

from fuzz.mutate import damaged
from pumas.contract import limits
from pumas.contract.errors import ContractError
from pumas.contract.media import check_clips, check_images, decode_base64, jpeg_size, png_size
from pumas.contract.requests import AudioPart, ImagePart
from tests.contract.samples import jpeg, png

INVARIANT = (
    "Media are checked bytes within every bound, their declaration true, or a ContractError; base64 that is taken "
    "is the one canonical form of its bytes."
)
_JPEGS = (jpeg(), jpeg(65535, 65535), b"\xff\xd8\xff\xff\xff\xfe\x00\x06note" + jpeg()[2:])
_FRAGMENTS = (
    *(b"\xff\xc0", b"\xff\xd8", b"\xff\xda", b"\xff\xff\xff", b"\x00\x02", b"\x00\x00", b"\xff\xfe\x00\x02", b"GIF89a"),
    *(b"IHDR", b"\x89PNG\r\n\x1a\n", b"\x00\x01\x00\x01", b"\x7f\xff\xff\xff", b"SIMPLE  =", b"IDAT", b"tEXt"),
)


def check(data: bytes) -> None:
    """The first byte chooses what it is taken for, the rest is the payload, or for audio declaration and payload."""
    chosen, payload = (data[0], data[1:]) if data else (0, b"")
    match chosen % 4:
        case 0:
            _check_image("png", payload)
        case 1:
            _check_image("jpeg", payload)
        case 2:
            _check_audio(payload)
        case 3:
            _check_base64(payload.decode("latin-1"))


def _check_image(encoding: str, data: bytes) -> None:
    size = png_size(data) if encoding == "png" else jpeg_size(data)
    part = ImagePart(encoding=encoding, data_base64=base64.b64encode(data).decode())  # type: ignore[arg-type]
    try:
        (image,) = check_images([("image", part)])
    except ContractError:
        return
    assert size == (image.width, image.height)
    assert image.data == data
    assert 0 < image.width <= limits.MAX_IMAGE_SIDE
    assert 0 < image.height <= limits.MAX_IMAGE_SIDE
    assert image.width * image.height <= limits.MAX_IMAGE_PIXELS


def _check_audio(payload: bytes) -> None:
    if len(payload) < 10:
        return
    which, channels, rate, count = struct.unpack("<BBiI", payload[:10])
    encoding, width = (("pcm_s16le", 2), ("pcm_f32le", 4))[which % 2]
    data = payload[10:]
    try:
        part = msgspec.convert(
            {
                "kind": "audio",
                "encoding": encoding,
                "sample_rate_hz": rate,
                "channels": channels,
                "sample_count": count,
                "data_base64": base64.b64encode(data).decode(),
            },
            AudioPart,
        )
    except msgspec.ValidationError:
        return
    try:
        (clip,) = check_clips([("audio", part)])
    except ContractError:
        return
    assert len(clip.data) == clip.sample_count * clip.channels * width
    assert clip.sample_count <= limits.MAX_AUDIO_SECONDS * clip.sample_rate_hz
    if encoding == "pcm_f32le":
        assert (np.abs(np.frombuffer(clip.data, "<f4")) <= 1).all()


def _check_base64(text: str) -> None:
    try:
        data = decode_base64(text, "data_base64")
    except ContractError:
        return
    assert base64.b64encode(data).decode() == text


def generate(rng: random.Random) -> bytes:
    chosen = rng.randrange(4)
    match chosen:
        case 0:
            sides = (0, 1, 64, 4096, 4097, 8192, 8193, 16384, 65535, 2**31 - 1, 2**31, 2**32 - 1)
            payload = damaged(rng, png(rng.choice(sides), rng.choice(sides)), _FRAGMENTS)
            if rng.random() < 0.5 and len(payload) >= 33:  # right again, so that more than the sum is tried
                payload = payload[:29] + struct.pack(">I", zlib.crc32(payload[12:29])) + payload[33:]
        case 1:
            payload = damaged(rng, rng.choice(_JPEGS), _FRAGMENTS, _JPEGS)
        case 2:
            count, channels, width = rng.choice((0, 1, 80, 2**31)), rng.randrange(4), rng.choice((2, 4))
            size = min(count, 100) * channels * width + rng.choice((0, 0, 0, -1, 1))
            samples = b"".join(struct.pack("<f", rng.choice((0.0, 1.0, -1.0, 1.5, float("nan")))) for _ in range(2))
            data = (samples * 1000)[: max(0, size)] if width == 4 else rng.randbytes(max(0, size))
            rate = rng.choice((0, 7999, 8000, 48000, 48001, -1, 2**31 - 1))
            payload = struct.pack("<BBiI", width // 2 - 1, channels, rate, count) + data
        case _:
            payload = base64.b64encode(rng.randbytes(rng.randrange(9)))
            if rng.random() < 0.7:
                payload = damaged(rng, payload, (b"=", b"==", b"\n", b"+", b"-", b" "))
    return bytes([chosen + 4 * rng.randrange(64)]) + payload
