"""Headers and checksums as they should be, around whatever a mutation made of the rest; and whether they are."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray
from sound_messages import LAYOUT, SERVER, broadcasts

from fedsparq.archive import ArchiveError, pack, unpack


def forge_blob(body: bytes) -> bytes:
    """An update."""
    inner = b"FSQ1" + body[4:5] + LAYOUT.digest.to_bytes(8, "little") + body[13:-8]
    return inner + xxhash.xxh3_64_intdigest(inner).to_bytes(8, "little")


def blob_holds(message: bytes) -> bool:
    summed = xxhash.xxh3_64_intdigest(message[:-8]).to_bytes(8, "little")
    return message[:4] == b"FSQ1" and message[5:13] == LAYOUT.digest.to_bytes(8, "little") and message[-8:] == summed


def forge_reply(message: bytes) -> bytes:
    if message[:4] == b"FSQW":
        return with_sum(message[:-4])
    head = b"FSQR" + struct.pack("<IQ", 1, SERVER.identity_of(0).digest) + (message[16:20] + bytes(4))[:4]
    return with_sum(head) + forge_blob(message[24:])


def reply_holds(message: bytes) -> bool:
    if message[:4] == b"FSQW":
        return sum_holds(message, b"FSQW")
    return sum_holds(message[:24], b"FSQR") and blob_holds(message[24:])


def forge_broadcast(message: bytes) -> bytes:
    """The outer checksum, and the fields that say for whom it is; a last part that is a model is forged too."""
    body = bytearray(b"FSQB" + message[4:-4])
    if len(body) > 45:
        body[5:9] = struct.pack("<I", 3)
        body[33:41] = LAYOUT.digest.to_bytes(8, "little")
    start = bytes(body).rfind(b"FSQ1")
    if start > 0:
        body[start:] = forge_blob(bytes(body[start:]))
    return with_sum(bytes(body))


def broadcast_holds(message: bytes) -> bool:
    return sum_holds(message, b"FSQB") and message[4] in (2, 3)


def forge_acknowledgement(message: bytes) -> bytes:
    """A broadcast that is sound but for its acknowledgement, which is whatever the mutation made of it."""
    sound = bytearray(broadcasts()[1][:-4])
    sound[9:29] = (message[9:29] + bytes(20))[:20]
    return with_sum(bytes(sound))


def forge_secure(message: bytes) -> bytes:
    """A kind of message that there is, and its checksum."""
    return with_sum(b"FSQS" + bytes([1 + (message[4:5] or b"\0")[0] % 8]) + message[5:-4])


def secure_holds(message: bytes) -> bool:
    return sum_holds(message, b"FSQS") and message[4] in (*range(1, 11), 12)


def forge_archive(data: bytes) -> bytes:
    """A file whose checksum holds: what can be read of it is written again, its facts and arrays tampered with."""
    rng = np.random.default_rng(xxhash.xxh32_intdigest(data))
    try:
        about, arrays = unpack(data)
    except ArchiveError:
        return data
    for _ in range(int(rng.integers(1, 3))):
        facts = list(about)
        if rng.random() < 0.5 and facts:
            about[facts[int(rng.integers(len(facts)))]] = strange(rng)
        elif rng.random() < 0.3 and facts:
            about.pop(facts[int(rng.integers(len(facts)))])
        else:
            name = list(arrays)[int(rng.integers(len(arrays)))] if arrays else "x"
            arrays[name] = _strange_array(arrays.get(name, np.zeros(1, np.float32)), rng)
            if rng.random() < 0.2:
                arrays.pop(name)
    return pack(about, arrays)


def archive_holds(data: bytes) -> bool:
    try:
        unpack(data)
    except ArchiveError:
        return False
    return True


def strange(rng: np.random.Generator) -> Any:
    choices = (
        None, -1, 0, 2**31, 2**40, 2**64, 1.5, math.nan, math.inf, True, "", "x", "[]", [], [1], [1, 2, 3], [3, 4, 0.5],
        {}, {"0": [1, 2, 0.5]}, {"x": 1}, {"0": None}, [None, None, None], [2**70, 1, 1.0], '["fedsparq","1",{}]',
        json.dumps(["fedsparq", "1", {"beta": "x"}]), {"round": 1, "begun": True, "held": {"0": "x"}}, "[" * 3000,
    )  # fmt: skip
    return choices[int(rng.integers(len(choices)))]


def _strange_array(array: NDArray[Any], rng: np.random.Generator) -> NDArray[Any]:
    flat = array.reshape(-1)
    match int(rng.integers(8)):
        case 0:
            return flat[:0]
        case 1:
            return np.concatenate([flat, flat])
        case 2:
            return array.astype(np.float64)
        case 3:
            return np.zeros((3, 3, 3), np.uint8)
        case 4:
            raw = np.frombuffer(rng.bytes(array.nbytes), array.dtype) if array.nbytes else array
            return raw.reshape(array.shape)
        case 5:
            limits = np.iinfo(array.dtype) if array.dtype.kind in "iu" else np.finfo(np.float32)
            return np.full_like(array, limits.min if rng.random() < 0.5 else limits.max)
        case 6:
            return -array if array.dtype.kind == "f" else (array ^ array.dtype.type(1))
        case _:
            return np.array(0, np.int64)


def sum_holds(message: bytes, magic: bytes) -> bool:
    return message[:4] == magic and len(message) > 8 and with_sum(message[:-4]) == message


def with_sum(body: bytes) -> bytes:
    return body + xxhash.xxh32_intdigest(body).to_bytes(4, "little")
