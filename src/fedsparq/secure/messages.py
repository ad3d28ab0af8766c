"""What server and clients of a secure sum say to each other, as bytes: five requests and their answers.

A message is a dataclass that names how each of its fields is written. Requests have odd kinds, answers even ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar, Self, get_args, get_type_hints

from fedsparq.errors import WireError
from fedsparq.payload import Reader, Writer
from fedsparq.payload.frame import frame_kind, pack_frame, read_frame
from fedsparq.secure.keys import KEY, SIGNATURE, TAG, statement
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
        keys = self.node + self.cipher + self.mask + self.commitment
        return statement(b"keys", terms.encode(), client.to_bytes(4, "big"), keys)

    def encode(self) -> bytes:
        return self.node + self.cipher + self.mask + self.commitment + self.signature

    @classmethod
    def read(cls, reader: Reader) -> PublicKeys:
        node, cipher, mask, commitment = (bytes(reader.raw(KEY)) for _ in range(4))
        return cls(node, cipher, mask, commitment, bytes(reader.raw(SIGNATURE)))


@dataclass(frozen=True)
class _Part:
    """How one field of a message is written and read."""

    write: Callable[[Any], bytes]
    read: Callable[[Reader], Any]


def _count(number: int) -> bytes:
    writer = Writer()
    writer.varint(number)
    return writer.bytes()


def _raw(size: int) -> _Part:
    return _Part(bytes, lambda reader: bytes(reader.raw(size)))


def _by_client(size: int, entry: _Part, rising: bool = True) -> _Part:
    """An entry of `size` bytes for each of some clients, none twice."""

    def write(entries: Mapping[int, Any]) -> bytes:
        listed = sorted(entries.items()) if rising else entries.items()
        return _count(len(entries)) + b"".join(_count(client) + entry.write(data) for client, data in listed)

    def read(reader: Reader) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for _ in range(reader.varint(reader.left // (size + 1))):
            client = reader.varint(_MAX_CLIENT)
            if client in found or (rising and found and client < next(reversed(found))):
                raise WireError(f"a message of a secure sum must name each client once, in order; {client} is not")
            found[client] = entry.read(reader)
        return found

    return _Part(write, read)


def _read_terms(reader: Reader) -> Terms:
    return Terms.decode(bytes(reader.raw(reader.varint(_MAX_TERMS))))


_LISTED = _by_client(0, _raw(0))
_KEYS = _Part(PublicKeys.encode, PublicKeys.read)
_Client = Annotated[int, _Part(_count, lambda reader: reader.varint(_MAX_CLIENT))]
_Clients = Annotated[
    frozenset[int],
    _Part(lambda clients: _LISTED.write(dict.fromkeys(clients, b"")), lambda reader: frozenset(_LISTED.read(reader))),
]
_Rest = Annotated[bytes, _Part(bytes, lambda reader: bytes(reader.raw(reader.left)))]
_Terms = Annotated[Terms, _Part(lambda terms: _count(len(terms.encode())) + terms.encode(), _read_terms)]
_Signature = Annotated[bytes, _raw(SIGNATURE)]
_Signatures = Annotated[Mapping[int, bytes], _by_client(SIGNATURE, _raw(SIGNATURE))]
_Sealed = Annotated[Mapping[int, bytes], _by_client(SEALED, _raw(SEALED))]


@dataclass(frozen=True)
class _Message:
    """A frame of kind Q whose metadata is the stage, and whose blob has the fields, each as its type says."""

    kind: ClassVar[int]

    def __init_subclass__(cls, kind: int) -> None:
        cls.kind = kind

    @classmethod
    @cache
    def _parts(cls) -> list[tuple[str, _Part]]:
        hints = get_type_hints(cls, include_extras=True)
        return [(each.name, get_args(hints[each.name])[1]) for each in fields(cls)]

    def encode(self) -> bytes:
        body = b"".join(part.write(getattr(self, name)) for name, part in self._parts())
        return pack_frame("Q", bytes([self.kind]), (body,))

    @classmethod
    def decode(cls, message: bytes) -> Self:
        reader = opened(message, cls.kind)
        made = cls(*(part.read(reader) for _, part in cls._parts()))
        if reader.left:
            raise WireError(f"a message of a secure sum goes on for {reader.left} bytes behind its end")
        return made


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


@dataclass(frozen=True)
class Invitation(_Message, kind=1):
    """Server to client: take part in a sum on these terms, under this number."""

    client: _Client
    terms: _Terms


@dataclass(frozen=True)
class Advertised(_Message, kind=2):
    """The client's answer: its public keys of this round."""

    keys: Annotated[PublicKeys, _KEYS]


@dataclass(frozen=True)
class Neighbourhood(_Message, kind=3):
    """Server to client: the ring of all clients, and the keys of your neighbours on it."""

    ring: Annotated[Mapping[int, bytes], _by_client(KEY, _raw(KEY), rising=False)]
    """Each client's node key, in the order of the ring."""
    keys: Annotated[Mapping[int, PublicKeys], _by_client(4 * KEY + SIGNATURE, _KEYS)]


@dataclass(frozen=True)
class Shared(_Message, kind=4):
    """The client's answer: for each neighbour shares of its two secrets, encrypted for it."""

    sealed: _Sealed = field(repr=False)


@dataclass(frozen=True)
class Collected(_Message, kind=5):
    """Server to client: who has shared its secrets, and what the neighbours among them encrypted for it."""

    shared: _Clients
    sealed: _Sealed = field(repr=False)


@dataclass(frozen=True)
class Masked(_Message, kind=6):
    """The client's answer: its numbers, masked, and its signature on whose masks are in them."""

    digest: Annotated[bytes, _raw(8)]
    """By which its reply will be acknowledged."""
    signature: _Signature
    data: _Rest = field(repr=False)


@dataclass(frozen=True)
class Survivors(_Message, kind=7):
    """Server to client: who has sent its numbers, and the signatures of the neighbours that have."""

    alive: _Clients
    signatures: _Signatures


@dataclass(frozen=True)
class Confirmed(_Message, kind=8):
    """The client's answer: its signature on who was said to be alive."""

    signature: _Signature


@dataclass(frozen=True)
class Confirmations(_Message, kind=9):
    """Server to client: the signatures of those who were told the same."""

    signatures: _Signatures


@dataclass(frozen=True)
class Unmasking(_Message, kind=10):
    """The client's answer: of each neighbour alive a share of its own mask's seed, of each other one a share of the key
    that its pairwise masks came from."""

    shares: Annotated[Mapping[int, bytes], _by_client(SHARE, _raw(SHARE))] = field(repr=False)


@dataclass(frozen=True)
class Accusation(_Message, kind=12):
    """The client's answer in place of `Shared`: this client shows another node's key than before."""

    client: _Client
