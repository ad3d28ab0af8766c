"""What client and server say to each other, as bytes. The compressed vectors inside are FSQ1 messages of their own.

A broadcast names the round, the last reply the server counted from this client, the method, and the model: whole, or as
the changes since a version that the client holds. A reply names the round and the method it answers, and carries an
update; or it asks for the whole model, where the client cannot build it from changes.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass, field

import xxhash

from fedsparq.archive import ArchiveError, pack, unpack
from fedsparq.errors import OptionError, WireError
from fedsparq.method import Identity
from fedsparq.payload import Reader, Writer
from fedsparq.payload.support import RoundPlan

_BROADCAST = b"FSQB"
_REPLY = b"FSQR"
_SALTED = b"FSQM"
_FULL_WANTED = b"FSQW"
_CHECKSUM = 4
_SALT = 16
REPLY_OVERHEAD = 20 + _CHECKSUM
"""The bytes of a reply around its update."""
_MAX_METHOD = 4096
_HEADER = "<BIIQdIQfB"
_VERSION = 2
_WITH_SETS = 3
"""The version of a broadcast that names more replies than the last one, for clients with several rounds in flight."""
_COUNTED = "<IQd"
_HOLD, _SILENT, _PLANNED = 1, 2, 4


@dataclass(frozen=True)
class Acknowledgement:
    """Which reply of a client the server counted last, and which share of it. The digest tells apart two replies to one
    round, which a client makes that was put back to an older state in between."""

    round: int = 0
    """0: none was counted yet."""
    digest: int = 0
    share: float = 1.0
    """From 0 (exclusive) to 1. The rest is the client's to send again."""

    @property
    def reply(self) -> tuple[int, int]:
        """Which reply it is, whatever its share."""
        return self.round, self.digest


NOTHING_COUNTED = Acknowledgement()


@dataclass(frozen=True)
class Broadcast:
    """Server to client: train on this model and answer."""

    round: int
    acknowledged: Acknowledgement | None
    """None: this server does not tell, and its clients take every reply for counted (plain error feedback)."""
    layout_digest: int
    method: Identity
    base: int
    """0: `blobs` is the whole model of this round. Else `blobs` are the changes of rounds base + 1 to this one."""
    hold: bool
    """Whether the client should keep the model: the next broadcast may be changes to it."""
    blobs: tuple[bytes, ...] = field(repr=False)
    norm_limit: float = math.inf
    """The largest norm an update could have in the last round: a longer one is better sent in parts."""
    also_counted: tuple[Acknowledgement, ...] = ()
    """Replies that counted beside the acknowledged one, where a client may have had several in flight."""
    pending: tuple[int, ...] = ()
    """Rounds whose replies may still count. A reply that is named nowhere did not count, and never will."""
    plan: RoundPlan | None = None
    """What the method's aggregator fixes for all clients of this round."""

    def encode(self) -> bytes:
        writer = Writer()
        writer.raw(_BROADCAST)
        last = self.acknowledged or NOTHING_COUNTED
        flags = _HOLD * self.hold | _SILENT * (self.acknowledged is None) | _PLANNED * (self.plan is not None)
        counted = last.round, last.digest, last.share
        sets = bool(self.also_counted or self.pending)
        version = _WITH_SETS if sets else _VERSION
        numbers = version, self.round, *counted, self.base, self.layout_digest, self.norm_limit, flags
        writer.raw(struct.pack(_HEADER, *numbers))
        method = self.method.encode()
        if len(method) > _MAX_METHOD:
            raise OptionError(
                f"the options of {self.method.name!r} take {len(method):,} bytes, more than {_MAX_METHOD}"
            )
        writer.varint(len(method))
        writer.raw(method)
        if sets:
            writer.varint(len(self.also_counted))
            for other in self.also_counted:
                writer.raw(struct.pack(_COUNTED, other.round, other.digest, other.share))
            writer.varint(len(self.pending))
            writer.raw(struct.pack(f"<{len(self.pending)}I", *self.pending))
        if self.plan is not None:
            plan = pack({}, self.plan.arrays())
            writer.varint(len(plan))
            writer.raw(plan)
        for part in self.blobs:
            writer.varint(len(part))
            writer.raw(part)
        return _with_checksum(writer.bytes())

    @classmethod
    def decode(cls, message: bytes) -> Broadcast:
        reader = _opened(message, _BROADCAST, "broadcast")
        header = struct.unpack(_HEADER, reader.raw(struct.calcsize(_HEADER)))
        version, number, counted, counted_digest, share, base, layout_digest, norm_limit, flags = header
        known = version in (_VERSION, _WITH_SETS)
        if not known or flags & ~(_HOLD | _SILENT | _PLANNED) or not norm_limit >= 0 or not 0 < share <= 1:
            raise WireError(
                f"the broadcast is of version {version}, this client reads versions {_VERSION} and {_WITH_SETS}"
                if not known
                else f"flags {flags:#04x}, norm limit {norm_limit} or share {share} are not possible"
            )
        method = Identity.decode(bytes(reader.raw(reader.varint(_MAX_METHOD))))
        also_counted, pending = _sets(reader) if version == _WITH_SETS else ((), ())
        plan = _plan(bytes(reader.raw(reader.varint(reader.left)))) if flags & _PLANNED else None
        blobs = []
        while reader.left:
            blobs.append(bytes(reader.raw(reader.varint(reader.left))))
        if counted >= number or base >= number or len(blobs) != (number - base if base else 1):
            raise WireError(f"a broadcast of round {number} cannot have base {base} and {len(blobs)} parts")
        last = None if flags & _SILENT else Acknowledgement(counted, counted_digest, share)
        hold = bool(flags & _HOLD)
        parts = tuple(blobs)
        return cls(number, last, layout_digest, method, base, hold, parts, norm_limit, also_counted, pending, plan)


@dataclass(frozen=True)
class Reply:
    """Client to server: an update for one round."""

    round: int
    method_digest: int
    examples: int
    blob: bytes = field(repr=False)
    salt: bytes = b""
    """16 random bytes of a reply that never leaves its client, so that its digest says nothing of it."""

    def encode(self) -> bytes:
        magic = _SALTED if self.salt else _REPLY
        header = _with_checksum(magic + struct.pack("<IQI", self.round, self.method_digest, self.examples))
        return header + self.salt + self.blob

    @classmethod
    def decode(cls, message: bytes) -> Reply:
        salted = message[:4] == _SALTED
        reader = _opened(message[:REPLY_OVERHEAD], _SALTED if salted else _REPLY, "reply")
        begin = REPLY_OVERHEAD + _SALT * salted
        if reader.left != 16 or len(message) < begin:
            raise WireError(f"{len(message)} bytes are too few for a reply")
        number, digest, examples = struct.unpack("<IQI", reader.raw(16))
        return cls(number, digest, examples, message[begin:], message[REPLY_OVERHEAD:begin])


@dataclass(frozen=True)
class FullWanted:
    """Client to server: these changes do not fit what I hold, send the whole model."""

    round: int

    def encode(self) -> bytes:
        return _with_checksum(_FULL_WANTED + struct.pack("<I", self.round))

    @classmethod
    def decode(cls, message: bytes) -> FullWanted:
        reader = _opened(message, _FULL_WANTED, "request")
        if reader.left != 4:
            raise WireError(f"a request for the whole model has 12 bytes, not {len(message)}")
        return cls(*struct.unpack("<I", reader.raw(4)))


def decode_answer(message: bytes) -> Reply | FullWanted:
    return FullWanted.decode(message) if message[:4] == _FULL_WANTED else Reply.decode(message)


def reply_digest(message: bytes) -> int:
    """64 bits that tell replies apart; of a salted one, they say nothing of what it holds."""
    if message[:4] == _SALTED:
        return int.from_bytes(hashlib.sha256(message).digest()[:8], "little")
    return xxhash.xxh3_64_intdigest(message)


def _sets(reader: Reader) -> tuple[tuple[Acknowledgement, ...], tuple[int, ...]]:
    """The replies that counted beside the last one, and the rounds that are still open."""
    size = struct.calcsize(_COUNTED)
    data = reader.raw(size * reader.varint(reader.left // size))
    also_counted = tuple(Acknowledgement(*each) for each in struct.iter_unpack(_COUNTED, data))
    if any(not 0 < other.share <= 1 for other in also_counted):
        raise WireError("the share of a reply that counted must be above 0 and at most 1")
    count = reader.varint(reader.left // 4)
    return also_counted, struct.unpack(f"<{count}I", reader.raw(4 * count))


def _plan(data: bytes) -> RoundPlan:
    try:
        return RoundPlan.of_arrays(unpack(data)[1])
    except ArchiveError as error:
        raise WireError(f"the plan in a broadcast cannot be read: {error}") from None


def _with_checksum(body: bytes) -> bytes:
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
