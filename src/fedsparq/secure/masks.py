"""Masks: whole numbers modulo 2^bits that look random to who does not have the key, and vectors of them as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from numpy.typing import NDArray

from fedsparq.errors import WireError

Words = NDArray[np.uint32]
"""Whole numbers modulo 2^bits."""
_NONCE = bytes(16)
"""Block counter and nonce: each key makes one mask."""


def mask(key: bytes, count: int, bits: int) -> Words:
    """`count` whole numbers below 2^bits: the ChaCha20 key stream, of 2 or 4 bytes each the lowest bits."""
    kind = np.dtype("<u2" if bits <= 16 else "<u4")
    stream = Cipher(algorithms.ChaCha20(key, _NONCE), mode=None).encryptor().update(bytes(count * kind.itemsize))
    return np.frombuffer(stream, kind).astype(np.uint32) & np.uint32(2**bits - 1)


def wrapped(levels: NDArray[Any], bits: int) -> Words:
    """Whole numbers of either sign, modulo 2^bits."""
    return levels.astype(np.int64).astype(np.uint32) & np.uint32(2**bits - 1)


def lifted(words: Words, bits: int) -> NDArray[np.int64]:
    """The whole numbers from -2^(bits-1) to 2^(bits-1) - 1 that these are modulo 2^bits."""
    plain = words.astype(np.int64)
    return plain - ((plain >> (bits - 1)) << bits)


def pack(words: Words, bits: int) -> bytes:
    """`bits` bits each, lowest first, without gaps."""
    spread = np.unpackbits(words.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(spread[:, :bits], bitorder="little").tobytes()


def unpack(data: bytes, count: int, bits: int) -> Words:
    """Undo `pack`."""
    if len(data) != (count * bits + 7) // 8:
        raise WireError(f"{count} masked numbers of {bits} bits take {(count * bits + 7) // 8} bytes, not {len(data)}")
    spread = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
    if spread[count * bits :].any():
        raise WireError("masked numbers end with bits that belong to none")
    whole = np.zeros((count, 32), np.uint8)
    whole[:, :bits] = spread[: count * bits].reshape(count, bits)
    return np.packbits(whole, axis=1, bitorder="little").view("<u4").reshape(count).astype(np.uint32)
