"""The frame around every message: a kind, metadata, blobs, and one checksum.

``"FSQ"  kind (1 letter)  version (1)  number of blobs (1)  length of metadata (2)  metadata  varint length of each
blob but the last  the lower half of xxh3-64 of all before and of the blobs (4)  blobs``. FSQ1 payloads and FSQS streams
are formats of their own: no kind has their letter. (xxh32 took 70 times as long.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from fedsparq.errors import WireError
from fedsparq.payload.streams import Reader, Writer

MAGIC = b"FSQ"
VERSION = 4
"""Messages of FedSparQ 0.1 and 0.2 had 1 to 3 in this place."""
KINDS = {
    "B": "broadcast",
    "R": "reply",
    "E": "proof of a model",
    "W": "request for the whole model",
    "Q": "message of a secure sum",
    "T": "request for a masked reply",
}
FRAME = 12
"""Bytes of a frame around its metadata and one blob."""
_CHECKSUM = 4
_MAX_METADATA = 2**16 - 1


@dataclass(frozen=True)
class Frame:
    """A frame that was read: its checksum is right."""

    kind: str
    metadata: bytes
    blobs: tuple[bytes, ...]

    @property
    def reader(self) -> Reader:
        """A reader of the metadata."""
        return Reader(memoryview(self.metadata))


def pack_frame(kind: str, metadata: bytes, blobs: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of a message."""
    if len(metadata) > _MAX_METADATA or len(blobs) > 255:
        raise WireError(f"a {KINDS[kind]} of {len(metadata):,} bytes and {len(blobs)} blobs does not fit a frame")
    head = MAGIC + kind.encode() + bytes((VERSION, len(blobs))) + len(metadata).to_bytes(2, "little") + metadata
    writer = Writer()
    for blob in blobs[:-1]:
        writer.varint(len(blob))
    head += writer.bytes()
    return b"".join((head, _checksum(head, *blobs), *blobs))


def frame_kind(message: bytes) -> str:
    """Return the kind that a message says it is; empty if it is no frame of this version."""
    sound = len(message) >= FRAME and message[:3] == MAGIC and message[4] == VERSION
    letter = chr(message[3]) if sound else ""
    return letter if letter in KINDS else ""


def metadata_size(message: bytes) -> int:
    """Return how long the metadata of a frame is."""
    return int.from_bytes(message[6:8], "little")


def read_frame(message: bytes, *kinds: str) -> Frame:
    """Return the frame of a message of one of these kinds, or raise WireError."""
    names = " or ".join(KINDS[kind] for kind in kinds)
    letter = chr(message[3]) if message[:3] == MAGIC and len(message) > 4 else ""
    if letter not in kinds:
        raise WireError(f"this is not a {names}: it starts with {bytes(message[:4])!r}")
    if message[4] != VERSION:
        raise WireError(
            f"the {names} is of version {message[4]}, this program reads version {VERSION}; "
            "install the same version of FedSparQ on all machines"
        )
    reader = Reader(memoryview(message))
    reader.raw(5)
    count, length = reader.byte(), reader.number(2)
    metadata = bytes(reader.raw(length))
    sizes = [reader.varint(len(message)) for _ in range(count - 1)]
    body, checksum = reader.at, bytes(reader.raw(_CHECKSUM))
    if _checksum(memoryview(message)[:body], memoryview(message)[reader.at :]) != checksum:
        raise WireError(f"the {names}'s checksum does not match: it was damaged or cut on its way")
    if sum(sizes) > reader.left or (not count and reader.left):
        raise WireError(f"the {names} has {reader.left} bytes where {sum(sizes)} are expected")
    blobs = [bytes(reader.raw(size)) for size in sizes]
    if count:
        blobs.append(bytes(reader.raw(reader.left)))
    return Frame(letter, metadata, tuple(blobs))


def _checksum(*parts: bytes | memoryview) -> bytes:
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return (checksum.intdigest() & 0xFFFFFFFF).to_bytes(_CHECKSUM, "little")
