"""Small images and sounds."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np


def png(side: int = 40, shade: int = 7) -> bytes:
    """A square image of RGB colours."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = np.zeros((side, side, 3), np.uint8)
    rows[..., 0], rows[..., 1], rows[..., 2] = np.arange(side) * 5, np.arange(side)[:, None] * 3, shade
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")


def pcm(samples: int = 8000) -> bytes:
    """A tone, pcm_s16le."""
    return (np.sin(np.arange(samples) * 0.1) * 9000).astype("<i2").tobytes()


def image_part(**more: Any) -> dict[str, Any]:
    return {"kind": "image", "encoding": "png", "data_base64": base64.b64encode(png(**more)).decode()}


def audio_part(samples: int = 8000) -> dict[str, Any]:
    return {
        "kind": "audio",
        "encoding": "pcm_s16le",
        "sample_rate_hz": 16000,
        "channels": 1,
        "sample_count": samples,
        "data_base64": base64.b64encode(pcm(samples)).decode(),
    }


def text_part(text: str) -> dict[str, Any]:
    return {"kind": "text", "text": text}
