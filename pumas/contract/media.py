"""Image and audio payloads: canonical base64, headers, bounds. No pixel is decoded and no container parsed here (C6).

Sizes are checked from the text's length before it is decoded, dimensions from the header before anybody decodes pixels.
"""

from __future__ import annotations

import binascii
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec
import numpy as np

from pumas.contract import limits
from pumas.contract.errors import invalid, over_limit

ImageEncoding = Literal["png", "jpeg"]
AudioEncoding = Literal["pcm_s16le", "pcm_f32le"]


class ImagePayload(Protocol):
    @property
    def encoding(self) -> ImageEncoding: ...
    @property
    def data_base64(self) -> str: ...


class AudioPayload(Protocol):
    @property
    def encoding(self) -> AudioEncoding: ...
    @property
    def data_base64(self) -> str: ...
    @property
    def sample_rate_hz(self) -> int: ...
    @property
    def channels(self) -> int: ...
    @property
    def sample_count(self) -> int: ...


class Image(msgspec.Struct, frozen=True):
    """A checked image: the bytes are what `encoding` says, and within the bounds."""

    encoding: ImageEncoding
    data: bytes
    width: int
    height: int


class Clip(msgspec.Struct, frozen=True):
    """Checked PCM, little-endian; `sample_count` is frames per channel."""

    encoding: AudioEncoding
    sample_rate_hz: int
    channels: int
    sample_count: int
    data: bytes


def decode_base64(text: str, field: str) -> bytes:
    """Decode canonical padded base64. Raises: ContractError: anything else, also unused bits that are not zero."""
    try:
        data = binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise invalid(f"{field} is not canonical padded base64", field) from None
    last = data[-(len(data) % 3 or 3) :] if data else b""
    if len(text) % 4 or binascii.b2a_base64(last, newline=False).decode() != text[-4:]:
        raise invalid(f"{field} is not canonical padded base64", field)
    return data


def decoded_size(text: str) -> int:
    """Bytes that `text` decodes to, if it is canonical base64."""
    return len(text) // 4 * 3 - text[-2:].count("=")


def check_images(images: Sequence[tuple[str, ImagePayload]]) -> list[Image]:
    """Check all images of one request, in order; each with the path of its field.

    Raises: ContractError: request_limit naming bound and value, invalid_request for what is no such image.
    """
    if len(images) > limits.MAX_IMAGES:
        raise over_limit("image_count", len(images), limits.MAX_IMAGES, "images")
    sizes = [decoded_size(image.data_base64) for _, image in images]
    for (field, _), size in zip(images, sizes, strict=True):
        if size > limits.MAX_IMAGE_BYTES:
            raise over_limit(f"image_bytes of {field}", size, limits.MAX_IMAGE_BYTES, "bytes", field=field)
    if sum(sizes) > limits.MAX_TOTAL_IMAGE_BYTES:
        raise over_limit("total_image_bytes", sum(sizes), limits.MAX_TOTAL_IMAGE_BYTES, "bytes")
    return [_check_image(field, image) for field, image in images]


def _check_image(field: str, image: ImagePayload) -> Image:
    data = decode_base64(image.data_base64, f"{field}.data_base64")
    size = png_size(data) if image.encoding == "png" else jpeg_size(data)
    if size is None:
        raise invalid(f"the bytes of {field} are not the {image.encoding} image that `encoding` says", field)
    for name, value in zip(("width", "height"), size, strict=True):
        if value > limits.MAX_IMAGE_SIDE:
            raise over_limit(f"{name} of {field}", value, limits.MAX_IMAGE_SIDE, "pixels", field=field)
    pixels = size[0] * size[1]
    if pixels > limits.MAX_IMAGE_PIXELS:
        raise over_limit(f"image_pixels of {field}", pixels, limits.MAX_IMAGE_PIXELS, "pixels", field=field)
    return Image(image.encoding, data, *size)


_PNG_DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}
"""Bit depths that PNG allows, by colour type."""


def png_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from a PNG's first chunk; None where the bytes do not begin as a PNG must."""
    if len(data) < 33 or data[:16] != b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR":
        return None
    width, height, depth, colour, compression, filtering, interlace, crc = struct.unpack(">IIBBBBBI", data[16:33])
    plausible = depth in _PNG_DEPTHS.get(colour, ()) and compression == filtering == 0 and interlace in (0, 1)
    if not plausible or not (0 < width < 2**31 and 0 < height < 2**31) or crc != zlib.crc32(data[12:29]):
        return None
    return width, height


_FILL = re.compile(rb"\xff++")
_JPEG_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF}
_MAX_SEGMENTS = 1024


def jpeg_size(data: bytes) -> tuple[int, int] | None:
    """Width and height from a JPEG's frame header; None where there is none among its first 1,024 segments."""
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    for _ in range(_MAX_SEGMENTS):
        fill = _FILL.match(data, at)
        if not fill or fill.end() + 3 > len(data):
            return None
        marker, at = data[fill.end()], fill.end() + 1
        length = int.from_bytes(data[at : at + 2], "big")
        if marker in _JPEG_FRAMES:
            if length < 8 or at + length > len(data) or length != 8 + 3 * data[at + 7]:
                return None
            height, width = struct.unpack(">HH", data[at + 3 : at + 7])
            return (width, height) if width and height else None
        if marker < 0xC0 or 0xD0 <= marker <= 0xDA or length < 2:
            return None  # a marker that has no place before the frame header
        at += length
    return None


_SAMPLE_BYTES = {"pcm_s16le": 2, "pcm_f32le": 4}


def check_clips(clips: Sequence[tuple[str, AudioPayload]]) -> list[Clip]:
    """Check all audio of one request, in order; each with the path of its field.

    Raises: ContractError: request_limit naming bound and value, invalid_request for what is not the declared PCM.
    """
    if len(clips) > limits.MAX_CLIPS:
        raise over_limit("audio_count", len(clips), limits.MAX_CLIPS, "clips")
    for field, clip in clips:
        if not limits.MIN_SAMPLE_RATE_HZ <= clip.sample_rate_hz <= limits.MAX_SAMPLE_RATE_HZ:
            span = f"{limits.MIN_SAMPLE_RATE_HZ} to {limits.MAX_SAMPLE_RATE_HZ}"
            raise invalid(f"sample_rate_hz of {field} is {clip.sample_rate_hz}, outside {span}", field)
        if clip.sample_count < 1:
            raise invalid(f"sample_count of {field} is {clip.sample_count}, not positive", field)
        if clip.sample_count > limits.MAX_AUDIO_SECONDS * clip.sample_rate_hz:
            seconds = clip.sample_count / clip.sample_rate_hz
            raise over_limit(f"audio_seconds of {field}", seconds, limits.MAX_AUDIO_SECONDS, "seconds", field=field)
    total = sum(decoded_size(clip.data_base64) for _, clip in clips)
    if total > limits.MAX_TOTAL_AUDIO_BYTES:
        raise over_limit("total_audio_bytes", total, limits.MAX_TOTAL_AUDIO_BYTES, "bytes")
    return [_check_clip(field, clip) for field, clip in clips]


def _check_clip(field: str, clip: AudioPayload) -> Clip:
    expected = clip.sample_count * clip.channels * _SAMPLE_BYTES[clip.encoding]
    if (size := decoded_size(clip.data_base64)) != expected:
        raise invalid(f"data_base64 of {field} holds {size} bytes, but its sample count asks for {expected}", field)
    data = decode_base64(clip.data_base64, f"{field}.data_base64")
    if clip.encoding == "pcm_f32le":
        with np.errstate(invalid="ignore"):  # NaN compares false, a signalling one with a warning
            inside = np.abs(np.frombuffer(data, "<f4")) <= 1.0
        if not inside.all():
            raise invalid(f"a sample of {field} is not a finite number in [-1, 1]", field)
    return Clip(clip.encoding, clip.sample_rate_hz, clip.channels, clip.sample_count, data)
