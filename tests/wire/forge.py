"""Messages written by hand: what an encoder would never write, with a checksum that holds."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xxhash

from fedsparq import Layout, WireError, decode

try:
    from compression import zstd
except ImportError:
    from backports import zstd

FLOAT32, FLOAT16, UNIFORM, CODEBOOK = 0, 1, 2, 3
EMPTY, ALL, BITMAP, GAPS, RICE, SEEDED = range(6)


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def raw(data: bytes) -> bytes:
    """A stream that is not compressed."""
    return b"\0" + data


def compressed(data: bytes) -> bytes:
    """A stream that is, by zstd's own means."""
    frame = zstd.compress(data)
    return varint(len(frame)) + frame


def halves(*values: float) -> bytes:
    """The two streams of these float16."""
    bits = [int(np.float16(v).view(np.uint16)) for v in values]
    turned = [(b << 1 & 0xFFFF) | b >> 15 for b in bits]
    return raw(bytes(t >> 8 for t in turned)) + raw(bytes(t & 255 for t in turned))


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def message(layout: Layout, body: bytes, flags: int = 0, magic: bytes = b"FSQ1", digest: int | None = None) -> bytes:
    header = magic + bytes([flags]) + struct.pack("<Q", layout.digest if digest is None else digest)
    return with_checksum(header + body)


def with_checksum(body: bytes) -> bytes:
    return body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))


def with_new_checksum(blob: bytes) -> bytes:
    return with_checksum(blob[:-8])


def refused(blob: Any, layout: Layout, match: str | None = None) -> None:
    with pytest.raises(WireError, match=match):
        decode(blob, layout)


def peak_bytes(call: Callable[[], object]) -> int:
    """The most memory that Python and numpy held at once during a call, beyond what they held before."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
