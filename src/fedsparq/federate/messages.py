"""What client and server send each other, as bytes. The compressed vectors inside are FSQ1 messages of their own.

A broadcast names the round, the last reply the server counted from this client, the method, and the model: whole, as
the changes since a version that the client holds, or beside the frame where the transport carries it. A reply names
the round and the method it answers, and carries an update; or it asks for the whole model.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from dataclasses import dataclass, field

import xxhash

from fedsparq.archive import ArchiveError, pack, unpack
from fedsparq.errors import OptionError, WireError
from fedsparq.federate.exact import NOTHING_BESIDE, Beside
from fedsparq.method import Identity
from fedsparq.payload import Reader, Writer
from fedsparq.payload.frame import FRAME, frame_kind, metadata_size, pack_frame, read_frame
from fedsparq.payload.support import RoundPlan

_REPLY = struct.Struct("<III")
_SALT = 16
REPLY_OVERHEAD = FRAME + _REPLY.size
"""The bytes of a reply around its update."""
_MAX_METHOD = 4096
_MAX_PARTS = 64
"""Changes that a broadcast may be made of."""
_MAX_SETS = 64
_BROADCAST = struct.Struct("<QQIIIQQdBIQd")
_COUNTED = struct.Struct("<IQd")
_HOLD, _SILENT, _PLANNED, _EVALUATE, _PLAIN, _BESIDE = 1, 2, 4, 8, 16, 32
_FEDERATION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
    """Server to client: train on this model, or evaluate it, and answer."""

    round: int
    """The number of the request; in synchronous rounds the version of the model as well."""
    acknowledged: Acknowledgement | None
    """None: this server does not tell, and its clients take every reply for counted (plain error feedback)."""
    layout_digest: int
    method: Identity
    base: int
    """0: `blobs` add up to the full model. Else they add up to the change since this version."""
    hold: bool
    """Whether the client should keep the model: the next broadcast may be changes to it."""
    blobs: tuple[bytes, ...] = field(repr=False)
    """None at base 0: the model is beside the frame (`plain`), or the client is asked what it holds."""
    norm_limit: float = math.inf
    """The largest norm an update could have in the last round: a longer one is better sent in parts."""
    also_counted: tuple[Acknowledgement, ...] = ()
    """Replies that counted beside the acknowledged one, where a client may have had several in flight."""
    pending: tuple[int, ...] = ()
    """Rounds whose replies may still count. A reply that is named nowhere did not count, and never will."""
    plan: RoundPlan | None = None
    """What the method's aggregator fixes for all clients of this round."""
    version: int = 0
    """The version of the model, where it is not the round's number."""
    digest: int = 0
    """Of the model's parameters; 0 where a transport needs no proof."""
    beside: Beside = field(default=NOTHING_BESIDE, repr=False)
    """The arrays that travel exactly."""
    evaluate: bool = False
    plain: bool = False
    """Whether the transport carries the model as plain arrays beside this frame."""
    session: int = 0
    """Drawn by the server, or made from the federation's name: states of another session are not for it."""
    federation: str = ""
    """The name that the operator gave; states are found again by it in later runs."""
    numbering: int = 0
    """Which numbering of rounds this round is of. A server that does not know which round its client has reached
    draws a new one: in another numbering a round's number means another round."""

    @property
    def model_version(self) -> int:
        return self.version or self.round

    def encode(self) -> bytes:
        last = self.acknowledged or NOTHING_COUNTED
        flags = _HOLD * self.hold | _SILENT * (self.acknowledged is None) | _PLANNED * (self.plan is not None)
        beside = self.beside.encode()
        flags |= _EVALUATE * self.evaluate | _PLAIN * self.plain | _BESIDE * bool(beside)
        numbers = self.session, self.numbering, self.round, self.version, self.base, self.digest, self.layout_digest
        method = self.method.encode()
        if len(method) > _MAX_METHOD:
            raise OptionError(
                f"the options of {self.method.name!r} take {len(method):,} bytes, more than {_MAX_METHOD}"
            )
        writer = Writer()
        writer.raw(_BROADCAST.pack(*numbers, self.norm_limit, flags, last.round, last.digest, last.share))
        for text in (method, self.federation.encode()):
            writer.varint(len(text))
            writer.raw(text)
        writer.varint(len(self.also_counted))
        for other in self.also_counted:
            writer.raw(_COUNTED.pack(other.round, other.digest, other.share))
        writer.varint(len(self.pending))
        writer.raw(struct.pack(f"<{len(self.pending)}I", *self.pending))
        more = [beside] if beside else []
        more += [] if self.plan is None else [pack({}, self.plan.arrays())]
        return pack_frame("B", writer.bytes(), (*self.blobs, *more))

    @classmethod
    def decode(cls, message: bytes) -> Broadcast:
        frame = read_frame(message, "B")
        reader, blobs = frame.reader, list(frame.blobs)
        numbers = _BROADCAST.unpack(reader.raw(_BROADCAST.size))
        session, numbering, number, version, base, digest, layout, norm_limit, flags, *counted = numbers
        if flags >= 2 * _BESIDE or not norm_limit >= 0 or not 0 < counted[2] <= 1:
            raise WireError(f"flags {flags:#04x}, norm limit {norm_limit} or share {counted[2]} are not possible")
        method = Identity.decode(bytes(reader.raw(reader.varint(_MAX_METHOD))))
        federation = bytes(reader.raw(reader.varint(64))).decode(errors="replace")
        if federation:
            check_federation(federation, WireError)
        also_counted, pending = _sets(reader)
        if reader.left or len(blobs) < bool(flags & _PLANNED) + bool(flags & _BESIDE):
            raise WireError(f"a broadcast with {reader.left} bytes behind its end, or without what its flags name")
        plan = _plan(blobs.pop()) if flags & _PLANNED else None
        beside = Beside.decode(blobs.pop()) if flags & _BESIDE else NOTHING_BESIDE
        newest = version or number
        wrong_parts = len(blobs) > (_MAX_PARTS if flags & _HOLD else 1) or (base and bool(blobs) == (base == newest))
        if counted[0] >= number or base > newest or wrong_parts:
            raise WireError(f"a broadcast of round {number} cannot have base {base} and {len(blobs)} parts")
        if flags & _PLAIN and blobs:
            raise WireError("a broadcast has its model both beside it and in it")
        last = None if flags & _SILENT else Acknowledgement(*counted)
        return cls(
            *(number, last, layout, method, base, bool(flags & _HOLD), tuple(blobs)),
            *(norm_limit, also_counted, pending, plan),
            version=version,
            digest=digest,
            beside=beside,
            evaluate=bool(flags & _EVALUATE),
            plain=bool(flags & _PLAIN),
            session=session,
            federation=federation,
            numbering=numbering,
        )


@dataclass(frozen=True)
class Reply:
    """Client to server: an update for one round."""

    round: int
    method_digest: int
    """Of the method's identity; only 32 bits of it travel."""
    examples: int
    blob: bytes = field(repr=False)
    salt: bytes = b""
    """16 random bytes of a reply that never leaves its client, so that its digest says nothing of it."""
    beside: Beside = field(default=NOTHING_BESIDE, repr=False)
    """The arrays that travel exactly, where any changed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "method_digest", self.method_digest & 0xFFFFFFFF)

    def encode(self) -> bytes:
        metadata = _REPLY.pack(self.round, self.method_digest, self.examples) + self.salt
        beside = self.beside.encode()
        return pack_frame("R", metadata, (self.blob, beside) if beside else (self.blob,))

    @classmethod
    def decode(cls, message: bytes, limit: int | None = None) -> Reply:
        """Read a reply; its exact arrays may take this many bytes."""
        frame = read_frame(message, "R")
        length, count = len(frame.metadata), len(frame.blobs)
        if length not in (_REPLY.size, _REPLY.size + _SALT) or not 1 <= count <= 2:
            raise WireError(f"a reply cannot have {length} bytes of metadata and {count} blobs")
        number, digest, examples = _REPLY.unpack(frame.metadata[: _REPLY.size])
        beside = Beside.decode(frame.blobs[1], limit) if count == 2 else NOTHING_BESIDE
        return cls(number, digest, examples, frame.blobs[0], frame.metadata[_REPLY.size :], beside)

    def answers(self, method: Identity) -> None:
        """Refuse a reply that another method made."""
        if self.method_digest != method.digest & 0xFFFFFFFF:
            raise WireError(f"the answer was made by another method, or other options, than {method.label!r}")


@dataclass(frozen=True)
class FullWanted:
    """Client to server: these changes do not fit what I hold, send the whole model."""

    round: int

    def encode(self) -> bytes:
        return pack_frame("W", struct.pack("<I", self.round))

    @classmethod
    def decode(cls, message: bytes) -> FullWanted:
        return cls(*_numbers(message, "W", "<I"))


@dataclass(frozen=True)
class Seen:
    """Client to server, beside what it measured: this version of the model is held here."""

    round: int
    version: int

    def encode(self) -> bytes:
        return pack_frame("E", struct.pack("<II", self.round, self.version))

    @classmethod
    def decode(cls, message: bytes) -> Seen:
        return cls(*_numbers(message, "E", "<II"))


def decode_answer(message: bytes, limit: int | None = None) -> Reply | FullWanted:
    return FullWanted.decode(message) if frame_kind(message) == "W" else Reply.decode(message, limit)


def reply_digest(message: bytes) -> int:
    """64 bits that tell replies apart; of a salted one, they say nothing of what it holds."""
    if frame_kind(message) == "R" and metadata_size(message) > _REPLY.size:
        return int.from_bytes(hashlib.sha256(message).digest()[:8], "little")
    return xxhash.xxh3_64_intdigest(message)


def check_federation(name: str, error: type[OptionError] | type[WireError] = OptionError) -> None:
    """Refuse a federation's name that is more than a name: it becomes a folder on nodes."""
    if not _FEDERATION.fullmatch(name):
        raise error(f"federation={name[:80]!r}: a name has letters, digits, '.', '_' and '-', at most 64")


def _numbers(message: bytes, kind: str, form: str) -> tuple[int, ...]:
    frame = read_frame(message, kind)
    if len(frame.metadata) != struct.calcsize(form) or frame.blobs:
        raise WireError(f"{len(frame.metadata)} bytes of metadata where {struct.calcsize(form)} are expected")
    return struct.unpack(form, frame.metadata)


def _sets(reader: Reader) -> tuple[tuple[Acknowledgement, ...], tuple[int, ...]]:
    """The replies that counted beside the last one, and the rounds that are still open."""
    data = reader.raw(_COUNTED.size * reader.varint(_MAX_SETS))
    also_counted = tuple(Acknowledgement(*each) for each in _COUNTED.iter_unpack(data))
    if any(not 0 < other.share <= 1 for other in also_counted):
        raise WireError("the share of a reply that counted must be above 0 and at most 1")
    count = reader.varint(_MAX_SETS)
    return also_counted, struct.unpack(f"<{count}I", reader.raw(4 * count))


def _plan(data: bytes) -> RoundPlan:
    try:
        return RoundPlan.of_arrays(unpack(data)[1])
    except ArchiveError as error:
        raise WireError(f"the plan in a broadcast cannot be read: {error}") from None
