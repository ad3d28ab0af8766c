"""What client and server say to each other, as bytes. The compressed vectors inside are FSQ1 messages of their own.

A broadcast names the round, the last reply the server counted from this client, the method, and the model: whole, or as
the changes since a version that the client holds. A reply names the round and the method it answers, and carries an
update; or it asks for the whole model, where the client cannot build it from changes.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass, field

import xxhash

from fedsparq.compress.method import method
from fedsparq.compress.pipeline import Method
from fedsparq.errors import FedSparQError, WireError
from fedsparq.wire.streams import Reader, Writer

_BROADCAST = b"FSQB"
_REPLY = b"FSQR"
_FULL_WANTED = b"FSQW"
_CHECKSUM = 4
REPLY_OVERHEAD = 20 + _CHECKSUM
"""The bytes of a reply around its update."""
_MAX_METHOD = 4096
_HEAD = "<IIQIQfB"
_HOLD, _SILENT = 1, 2


@dataclass(frozen=True)
class Receipt:
    """Which reply of a client the server counted last. The digest tells apart two replies to one round, which a client
    makes that was put back to an older state in between."""

    round: int = 0
    """0: none was counted yet."""
    digest: int = 0


NOTHING_COUNTED = Receipt()


@dataclass(frozen=True)
class Broadcast:
    """Server to client: train on this model and answer."""

    round: int
    acknowledged: Receipt | None
    """None: this server does not tell, and its clients take every reply for counted (plain error feedback)."""
    layout_digest: int
    method: Method
    base: int
    """0: `blobs` is the whole model of this round. Else `blobs` are the changes of rounds base + 1 to this one."""
    hold: bool
    """Whether the client should keep the model: the next broadcast may be changes to it."""
    blobs: tuple[bytes, ...] = field(repr=False)
    norm_limit: float = math.inf
    """The largest norm an update could have in the last round: a longer one is better sent in parts."""

    def encode(self) -> bytes:
        writer = Writer()
        writer.raw(_BROADCAST)
        told = self.acknowledged or NOTHING_COUNTED
        flags = _HOLD * self.hold | _SILENT * (self.acknowledged is None)
        numbers = self.round, told.round, told.digest, self.base, self.layout_digest, self.norm_limit, flags
        writer.raw(struct.pack(_HEAD, *numbers))
        text = describe(self.method)
        writer.varint(len(text))
        writer.raw(text)
        for blob in self.blobs:
            writer.varint(len(blob))
            writer.raw(blob)
        return _sealed(writer.bytes())

    @classmethod
    def decode(cls, message: bytes) -> Broadcast:
        reader = _opened(message, _BROADCAST, "broadcast")
        head = struct.unpack(_HEAD, reader.raw(struct.calcsize(_HEAD)))
        number, counted, counted_digest, base, layout_digest, norm_limit, flags = head
        text = bytes(reader.raw(reader.varint(_MAX_METHOD)))
        blobs = []
        while reader.left:
            blobs.append(bytes(reader.raw(reader.varint(reader.left))))
        if flags & ~(_HOLD | _SILENT) or not norm_limit >= 0:
            raise WireError(f"flags {flags:#04x} or norm limit {norm_limit} are not known: a later version?")
        if counted >= number or base >= number or len(blobs) != (number - base if base else 1):
            raise WireError(f"a broadcast of round {number} cannot have base {base} and {len(blobs)} parts")
        told = None if flags & _SILENT else Receipt(counted, counted_digest)
        hold = bool(flags & _HOLD)
        return cls(number, told, layout_digest, method_of(text), base, hold, tuple(blobs), norm_limit)


@dataclass(frozen=True)
class Reply:
    """Client to server: an update for one round."""

    round: int
    method_digest: int
    examples: int
    blob: bytes = field(repr=False)

    def encode(self) -> bytes:
        return _sealed(_REPLY + struct.pack("<IQI", self.round, self.method_digest, self.examples)) + self.blob

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        head = REPLY_OVERHEAD
        reader = _opened(message[:head], _REPLY, "reply")
        if reader.left != 16:
            raise WireError(f"{len(message)} bytes are too few for a reply")
        number, digest, examples = struct.unpack("<IQI", reader.raw(16))
        return cls(number, digest, examples, message[head:])


@dataclass(frozen=True)
class FullWanted:
    """Client to server: these changes do not fit what I hold, send the whole model."""

    round: int

    def encode(self) -> bytes:
        return _sealed(_FULL_WANTED + struct.pack("<I", self.round))

    @classmethod
    def decode(cls, message: bytes) -> FullWanted:
        reader = _opened(message, _FULL_WANTED, "request")
        if reader.left != 4:
            raise WireError(f"a request for the whole model has 12 bytes, not {len(message)}")
        return cls(*struct.unpack("<I", reader.raw(4)))


def decode_answer(message: bytes) -> Reply | FullWanted:
    return FullWanted.decode(message) if message[:4] == _FULL_WANTED else Reply.decode(message)


def describe(chosen: Method) -> bytes:
    """A method's name and unusual options, as the text that travels."""
    return json.dumps([chosen.name, dict(sorted(chosen.options.items()))], separators=(",", ":")).encode()


def method_digest(chosen: Method) -> int:
    """64 bits that tell methods apart, options included."""
    return xxhash.xxh3_64_intdigest(describe(chosen))


def reply_digest(message: bytes) -> int:
    """64 bits that tell replies apart."""
    return xxhash.xxh3_64_intdigest(message)


def method_of(text: bytes) -> Method:
    """Undo `describe`."""
    try:
        name, options = json.loads(text)
        return method(name, **options)
    except FedSparQError as error:
        raise WireError(f"the server asks for a method this client does not have: {error}") from None
    except (ValueError, TypeError, RecursionError):
        raise WireError("the method in a broadcast cannot be read") from None


def _sealed(body: bytes) -> bytes:
    return body + xxhash.xxh32_intdigest(body).to_bytes(_CHECKSUM, "little")


def _opened(message: bytes, magic: bytes, what: str) -> Reader:
    body = memoryview(message)[: max(len(message) - _CHECKSUM, 0)]
    if body[:4] != magic:
        raise WireError(f"this is not a {what}: it starts with {message[:4]!r}, not with {magic!r}")
    if xxhash.xxh32_intdigest(body) != int.from_bytes(message[-_CHECKSUM:], "little"):
        raise WireError(f"the {what}'s checksum does not match: it was damaged or cut on its way")
    reader = Reader(body)
    reader.raw(4)
    return reader
