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
from fedsparq.errors import WireError
from fedsparq.payload import Reader
from fedsparq.payload.frame import VERSION, pack_frame, read_frame
from fedsparq.secure.messages import kind_of


def forge_blob(body: bytes) -> bytes:
    """An update."""
    inner = b"FSQ1" + body[4:5] + LAYOUT.digest.to_bytes(8, "little") + body[13:-8]
    return inner + xxhash.xxh3_64_intdigest(inner).to_bytes(8, "little")


def blob_holds(message: bytes) -> bool:
    summed = xxhash.xxh3_64_intdigest(message[:-8]).to_bytes(8, "little")
    return message[:4] == b"FSQ1" and message[5:13] == LAYOUT.digest.to_bytes(8, "little") and message[-8:] == summed


def reframed(message: bytes, kind: str, version: int = VERSION) -> bytes:
    """A frame whose checksum holds, of what a mutation left of one."""
    count, length = (message[5:6] or b"\0")[0] % 8, int.from_bytes(message[6:8], "little")
    rest = memoryview(message)[8:]
    metadata, reader, sizes = bytes(rest[:length]), Reader(rest[min(length, len(rest)) :]), []
    try:
        sizes = [reader.varint(len(message)) for _ in range(count - 1)]
        reader.raw(4)
    except WireError:
        count = min(count, 1)
    body, blobs = bytes(rest[min(length, len(rest)) + reader.at :]), []
    for size in sizes[: max(count - 1, 0)]:
        blobs.append(body[:size])
        body = body[size:]
    framed = bytearray(pack_frame(kind, metadata[:60_000], [*blobs, body] if count else ()))
    framed[4] = version
    return bytes(framed)


def frame_holds(message: bytes, *kinds: str) -> bool:
    try:
        read_frame(message, *kinds)
    except WireError:
        return False
    return True


def forge_reply(message: bytes) -> bytes:
    """The frame, the fields that say whose reply it is, and the update."""
    if message[3:4] == b"W":
        return reframed(message, "W")
    frame = read_frame(reframed(message, "R"), "R")
    digest = SERVER.identity_of(0).digest & 0xFFFFFFFF
    metadata = struct.pack("<II", 1, digest) + (frame.metadata[8:] + bytes(4))[: max(len(frame.metadata) - 8, 4)]
    blobs = [forge_blob(frame.blobs[0]), *frame.blobs[1:]] if frame.blobs else []
    return pack_frame("R", metadata, blobs)


def reply_holds(message: bytes) -> bool:
    if not frame_holds(message, "R", "W"):
        return False
    frame = read_frame(message, "R", "W")
    return frame.kind == "W" or (bool(frame.blobs) and blob_holds(frame.blobs[0]))


def forge_broadcast(message: bytes) -> bytes:
    """The frame, and the fields that say for whom it is; parts that are models are forged too."""
    frame = read_frame(reframed(message, "B"), "B")
    metadata = bytearray(frame.metadata)
    if len(metadata) > 70:
        metadata[16:20] = struct.pack("<I", 3)
        metadata[36:44] = LAYOUT.digest.to_bytes(8, "little")
    blobs = [forge_blob(blob) if blob[:4] == b"FSQ1" else blob for blob in frame.blobs]
    return pack_frame("B", bytes(metadata), blobs)


def broadcast_holds(message: bytes) -> bool:
    return frame_holds(message, "B")


def forge_acknowledgement(message: bytes) -> bytes:
    """A broadcast that is sound but for its acknowledgement, which is whatever the mutation made of it."""
    sound = read_frame(broadcasts()[1], "B")
    metadata = bytearray(sound.metadata)
    metadata[53:73] = (message[61:81] + bytes(20))[:20]
    return pack_frame("B", bytes(metadata), sound.blobs)


def forge_secure(message: bytes) -> bytes:
    """A kind of message that there is, and its checksum."""
    frame = read_frame(reframed(message, "Q"), "Q")
    stage = 1 + (frame.metadata[:1] or b"\0")[0] % 8
    return pack_frame("Q", bytes([stage]), frame.blobs[:1] or (b"",))


def secure_holds(message: bytes) -> bool:
    return frame_holds(message, "Q") and kind_of(message) in (*range(1, 11), 12)


def forge_archive(data: bytes) -> bytes:
    """A file whose checksum holds: what can be read of it is written again, its facts and arrays tampered with.

    The last four bytes are random: they decide how.
    """
    rng = np.random.default_rng(xxhash.xxh32_intdigest(data))
    try:
        about, arrays = unpack(data[:-4])
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
