"""Changes of a message that know its format: bits, numbers where lengths stand, frames, splices, cuts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from targets import Target

try:
    from compression import zstd
except ImportError:
    from backports import zstd

_NUMBERS = [0, 1, 2, 127, 128, 2000, 2**14, 2**20, 2**32 - 1, 2**63, 2**70]
_FRAMES = [zstd.compress(bytes(size)) for size in (0, 1, 100, 2000, 1 << 22)]
"""Among them a bomb: 4 MiB in some hundred bytes."""


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def mutate(body: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """One change; `other` is another message of the kind."""
    draw = rng.integers(0, 1 << 30, 6)
    i, j = sorted(int(n) % (len(body) + 1) for n in draw[:2])
    near, pick = min(i + 1 + int(draw[2]) % 8, len(body)), int(draw[3])
    match int(draw[4]) % 8:
        case 0 | 1:
            at = min(i, len(body) - 1)
            return body[:at] + bytes([body[at] ^ 1 << pick % 8]) + body[at + 1 :]
        case 2:
            return body[:i] + bytes([(0, 1, 2, 3, 4, 5, 6, 127, 128, 255)[pick % 10]]) + body[i + 1 :]
        case 3:
            return body[:i] + varint(_NUMBERS[pick % len(_NUMBERS)]) + body[near:]
        case 4:
            frame = _FRAMES[pick % len(_FRAMES)]
            return body[:i] + varint(len(frame)) + frame + body[near:]
        case 5:
            return body[:i] + body[near:] if pick % 2 else body[:i] + body[i:near] * 2 + body[near:]
        case 6:
            return body[:i] + other[i:j] + body[j:]
        case 7 if pick % 8 == 0:
            return body[:i] + b"[" * 2000 + body[near:]
        case _:
            return body[:i] + other[j:] if pick % 4 else body[:i]


def hostile(target: Target, seeds: Sequence[bytes], rng: np.random.Generator) -> bytes:
    """A message that nobody sent; of most, checksums and header are made to hold."""
    body, other = (seeds[int(n)] for n in rng.integers(0, len(seeds), 2))
    if target.is_file:
        if rng.random() < 0.75:
            return target.forge(body + int(rng.integers(1 << 30)).to_bytes(4, "little"))
        return mutate(body, other, rng)
    for _ in range(1 + int(rng.integers(3))):
        body = mutate(body, other, rng) or b"\0"
    return target.forge(body) if rng.random() < 0.85 else body
