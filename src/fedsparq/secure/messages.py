"""What server and clients of a secure sum say to each other, as bytes: four requests and their four answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fedsparq.errors import WireError
from fedsparq.payload import Reader, Writer
from fedsparq.payload.frame import frame_kind, pack_frame, read_frame
from fedsparq.secure.keys import KEY, SIGNATURE, TAG
from fedsparq.secure.shamir import SHARE
from fedsparq.secure.terms import Terms

_MAX_TERMS = 1024
_MAX_CLIENT = 2**32 - 1
SEALED = 2 * SHARE + TAG
"""The bytes of an encrypted pair of shares."""


@dataclass(frozen=True)
class PublicKeys:
    """What a client shows of itself in one round, signed with its node's key."""

    node: bytes
    cipher: bytes
    """For the shares that travel through the server."""
    mask: bytes
    """For the masks that it shares with each neighbour."""
    commitment: bytes
    """The digest of its own mask's seed: a seed put together from wrong shares is noticed."""
    signature: bytes = b""

    def signed_text(self, terms: Terms, client: int) -> bytes:
        return terms.encode() + client.to_bytes(4, "big") + self.node + self.cipher + self.mask + self.commitment

    def encode(self) -> bytes:
        return self.node + self.cipher + self.mask + self.commitment + self.signature

    @classmethod
    def read(cls, reader: Reader) -> PublicKeys:
        node, cipher, mask, commitment = (bytes(reader.raw(KEY)) for _ in range(4))
        return cls(node, cipher, mask, commitment, bytes(reader.raw(SIGNATURE)))


class _Message:
    """A frame of kind Q whose metadata is the stage, and whose blob is the body."""

    kind: ClassVar[int]

    def body(self) -> Iterator[bytes]:
        raise NotImplementedError

    def encode(self) -> bytes:
        return pack_frame("Q", bytes([self.kind]), (b"".join(self.body()),))


def _count(number: int) -> bytes:
    writer = Writer()
    writer.varint(number)
    return writer.bytes()


def opened(message: bytes, kind: int) -> Reader:
    """The body of a message of this kind."""
    frame = read_frame(message, "Q")
    if len(frame.metadata) != 1 or len(frame.blobs) != 1:
        raise WireError("this is not a message of a secure sum")
    if frame.metadata[0] != kind:
        raise WireError(f"a message of kind {frame.metadata[0]} where one of kind {kind} belongs")
    return Reader(memoryview(frame.blobs[0]))


def kind_of(message: bytes) -> int:
    """Which message it says it is; 0 if it is none of a secure sum."""
    return message[8] if frame_kind(message) == "Q" else 0


def _closed(reader: Reader) -> None:
    if reader.left:
        raise WireError(f"a message of a secure sum goes on for {reader.left} bytes behind its end")


def _entries(reader: Reader, size: int) -> dict[int, Reader]:
    """Entries of one size by client, each client once, rising."""
    found: dict[int, Reader] = {}
    last = -1
    for _ in range(reader.varint(reader.left // size)):
        client = reader.varint(_MAX_CLIENT)
        if client <= last:
            raise WireError("a message of a secure sum names a client twice")
        found[client] = Reader(memoryview(bytes(reader.raw(size))))
        last = client
    return found


def _listed(entries: Mapping[int, bytes]) -> Iterator[bytes]:
    yield _count(len(entries))
    for client, data in sorted(entries.items()):
        yield _count(client) + data


@dataclass(frozen=True)
class Invitation(_Message):
    """1, server to client: take part in a sum on these terms, under this number."""

    client: int
    terms: Terms
    kind: ClassVar[int] = 1

    def body(self) -> Iterator[bytes]:
        terms = self.terms.encode()
        yield _count(self.client) + _count(len(terms)) + terms

    @classmethod
    def decode(cls, message: bytes) -> Invitation:
        reader = opened(message, cls.kind)
        client = reader.varint(_MAX_CLIENT)
        terms = Terms.decode(bytes(reader.raw(reader.varint(_MAX_TERMS))))
        _closed(reader)
        return cls(client, terms)


@dataclass(frozen=True)
class Advertised(_Message):
    """2, the client's answer: its public keys of this round."""

    keys: PublicKeys
    kind: ClassVar[int] = 2

    def body(self) -> Iterator[bytes]:
        yield self.keys.encode()

    @classmethod
    def decode(cls, message: bytes) -> Advertised:
        reader = opened(message, cls.kind)
        keys = PublicKeys.read(reader)
        _closed(reader)
        return cls(keys)


@dataclass(frozen=True)
class Neighbourhood(_Message):
    """3, server to client: the keys of your neighbours."""

    keys: Mapping[int, PublicKeys]
    kind: ClassVar[int] = 3

    def body(self) -> Iterator[bytes]:
        yield from _listed({client: keys.encode() for client, keys in self.keys.items()})

    @classmethod
    def decode(cls, message: bytes) -> Neighbourhood:
        reader = opened(message, cls.kind)
        entries = _entries(reader, 4 * KEY + SIGNATURE)
        _closed(reader)
        return cls({client: PublicKeys.read(entry) for client, entry in entries.items()})


@dataclass(frozen=True)
class Shared(_Message):
    """4, the client's answer: for each neighbour shares of its two secrets, encrypted for it."""

    sealed: Mapping[int, bytes] = field(repr=False)
    kind: ClassVar[int] = 4

    def body(self) -> Iterator[bytes]:
        yield from _listed(self.sealed)

    @classmethod
    def decode(cls, message: bytes) -> Shared:
        reader = opened(message, cls.kind)
        entries = _entries(reader, SEALED)
        _closed(reader)
        return cls({client: bytes(entry.raw(SEALED)) for client, entry in entries.items()})


@dataclass(frozen=True)
class Collected(Shared):
    """5, server to client: what the neighbours that are still there encrypted for it."""

    kind: ClassVar[int] = 5


@dataclass(frozen=True)
class Masked(_Message):
    """6, the client's answer: its numbers, masked, and a digest by which its reply will be acknowledged."""

    data: bytes = field(repr=False)
    digest: bytes = bytes(8)
    kind: ClassVar[int] = 6

    def body(self) -> Iterator[bytes]:
        yield self.digest + self.data

    @classmethod
    def decode(cls, message: bytes) -> Masked:
        reader = opened(message, cls.kind)
        digest = bytes(reader.raw(8))
        return cls(bytes(reader.raw(reader.left)), digest)


@dataclass(frozen=True)
class Survivors(_Message):
    """7, server to client: of your neighbours these have sent their numbers, and these have dropped out."""

    alive: frozenset[int]
    dead: frozenset[int]
    kind: ClassVar[int] = 7

    def body(self) -> Iterator[bytes]:
        for clients in (self.alive, self.dead):
            yield from _listed(dict.fromkeys(clients, b""))

    @classmethod
    def decode(cls, message: bytes) -> Survivors:
        reader = opened(message, cls.kind)
        alive, dead = (frozenset(_numbers(reader)) for _ in range(2))
        _closed(reader)
        return cls(alive, dead)


def _numbers(reader: Reader) -> list[int]:
    numbers = [reader.varint(_MAX_CLIENT) for _ in range(reader.varint(reader.left))]
    if numbers != sorted(set(numbers)):
        raise WireError("a message of a secure sum names a client twice")
    return numbers


@dataclass(frozen=True)
class Unmasking(_Message):
    """8, the client's answer: of each neighbour alive a share of its own mask's seed, of each dead one a share of the
    key that its pairwise masks came from."""

    shares: Mapping[int, bytes] = field(repr=False)
    kind: ClassVar[int] = 8

    def body(self) -> Iterator[bytes]:
        yield from _listed(self.shares)

    @classmethod
    def decode(cls, message: bytes) -> Unmasking:
        reader = opened(message, cls.kind)
        entries = _entries(reader, SHARE)
        _closed(reader)
        return cls({client: bytes(entry.raw(SHARE)) for client, entry in entries.items()})
