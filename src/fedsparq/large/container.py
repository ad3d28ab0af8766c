"""Messages of models of any size: FSQ1 messages one behind the other, each for a piece of the model.

wire/FORMAT.md describes the bytes under "Streams".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import xxhash

from fedsparq import threads as threading
from fedsparq.errors import OptionError, WireError
from fedsparq.large.pieces import CUT, GROUP, LARGEST_CUT, Piece, Shapes, cut
from fedsparq.method import Identity
from fedsparq.payload import Payload
from fedsparq.wire import decode, encode

MAGIC = b"FSQS"
_VERSION = 1
_MOST_HEADER = 1 << 26
_CHECKSUM = 8
_KEYS = {"cut", "group", "method", "origin", "round", "tensors"}


@dataclass(frozen=True)
class About:
    """What a message says of itself before its pieces."""

    method: Identity
    origin: str
    """Which residual it came from: 16 hexadecimal digits, drawn when that was begun."""
    round: int
    """How many messages that residual had made, this one included."""
    shapes: Shapes
    group: int = GROUP
    cut: int = CUT

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        return cut(self.shapes, self.group, self.cut)

    def encode(self) -> bytes:
        tensors = [[name, list(shape)] for name, shape in self.shapes.items()]
        about: dict[str, Any] = {"method": json.loads(self.method.encode()), "origin": self.origin, "round": self.round}
        about |= {"group": self.group, "cut": self.cut, "tensors": tensors}
        return json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, text: bytes) -> About:
        try:
            about = json.loads(text)
            if set(about) != _KEYS:
                raise ValueError(f"it has the keys {', '.join(sorted(about))}")
            pairs = [(name, tuple(shape)) for name, shape in about["tensors"]]
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"the header of a stream cannot be read: {error}") from None
        numbers = [about["round"], about["group"], about["cut"], *(n for _, shape in pairs for n in shape)]
        origin = about["origin"]
        if not all(type(n) is int and 0 <= n < 2**63 for n in numbers) or not all(type(n) is str for n, _ in pairs):
            raise WireError("the header of a stream has a name, a shape or a number that cannot be one")
        if not (isinstance(origin, str) and len(origin) == 16 and set(origin) <= set("0123456789abcdef")):
            raise WireError("the header of a stream does not tell which residual it came from")
        if not 1 <= about["group"] <= about["cut"] <= LARGEST_CUT:
            raise WireError(f"pieces of {about['group']:,} to {about['cut']:,} coordinates are not read here")
        if len({name for name, _ in pairs}) != len(pairs):
            raise WireError("the header of a stream names a tensor twice")
        if sum(math.prod(shape) for _, shape in pairs) >= 2**63:
            raise WireError("the header of a stream tells of more coordinates than there can be")
        method = Identity.decode(json.dumps(about["method"]).encode())
        return cls(method, origin, about["round"], dict(pairs), about["group"], about["cut"])


class MessageWriter:
    """Writes a message to anything with `write`: all pieces in order, then `close`."""

    def __init__(self, stream: BinaryIO, about: About) -> None:
        self._stream, self._digest = stream, xxhash.xxh3_64()
        self._left = [*reversed(about.pieces)]
        self.bytes = 0
        header = about.encode()
        if len(header) > _MOST_HEADER:
            raise OptionError(f"the names and shapes of the tensors take {len(header):,} bytes; {_MOST_HEADER:,} fit")
        self._write(MAGIC + bytes([_VERSION]) + len(header).to_bytes(4, "little") + header)

    def add(self, payload: Payload | bytes) -> None:
        """The payload of the next piece, or its FSQ1 message."""
        self._left.pop()
        blob = payload if isinstance(payload, bytes) else encode(payload)
        self._write(len(blob).to_bytes(4, "little"))
        self._write(blob)

    def close(self) -> str:
        """Write the checksum, and return it in hexadecimal; an error if pieces are missing. The stream stays open."""
        if self._left:
            raise OptionError(f"{len(self._left)} pieces of the message are missing")
        checksum: str = self._digest.hexdigest()
        self._write(self._digest.intdigest().to_bytes(_CHECKSUM, "little"))
        return checksum

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.bytes += len(data)


class MessageReader:
    """Reads a message from anything with `read`, once, a piece at a time.

    Only when the iteration has come to its end is the message known to be right: keep back what is made of it.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._digest = stream, xxhash.xxh3_64()
        start = self._read(len(MAGIC) + 5)
        if start[: len(MAGIC)] != MAGIC:
            raise WireError(f"the message starts with {start[: len(MAGIC)]!r}, not with {MAGIC!r}: it is not a stream")
        if start[len(MAGIC)] != _VERSION:
            raise WireError(f"the stream is of version {start[len(MAGIC)]}; this program reads version {_VERSION}")
        length = int.from_bytes(start[-4:], "little")
        if length > _MOST_HEADER:
            raise WireError(f"the header of a stream has {length:,} bytes; {_MOST_HEADER:,} are the most")
        self.about = About.decode(self._read(length))
        self.checksum = ""
        """Known at the end."""

    def payloads(self, threads: int | None = None) -> Iterator[tuple[Piece, Payload]]:
        """The pieces in order, each checked; WireError, at the latest at the end, for what is not exactly right."""
        return threading.in_order(_decoded, self.blobs(), threading.count_of(threads))

    def blobs(self) -> Iterator[tuple[Piece, bytes]]:
        """The same as FSQ1 messages, not looked into."""
        for piece in self.about.pieces:
            length, most = int.from_bytes(self._read(4), "little"), _most_bytes(piece)
            if length > most:
                raise WireError(f"piece {piece.number} of the stream has {length:,} bytes; {most:,} are the most")
            yield piece, self._read(length)
        expected, self.checksum = self._digest.intdigest(), self._digest.hexdigest()
        if int.from_bytes(self._read(_CHECKSUM), "little") != expected:
            raise WireError("the checksum of the stream does not match: it was damaged on its way")
        if self._stream.read(1):
            raise WireError("bytes stand behind the end of the stream")

    def _read(self, count: int) -> bytes:
        parts, left = [], count
        while left and (part := self._stream.read(left)):
            parts.append(part)
            left -= len(part)
        if left:
            raise WireError(f"the stream ends early; more bytes are expected: {left:,}")
        data = b"".join(parts)
        self._digest.update(data)
        return data


def _decoded(found: tuple[Piece, bytes]) -> tuple[Piece, Payload]:
    piece, blob = found
    return piece, decode(blob, piece.layout)


def _most_bytes(piece: Piece) -> int:
    """No kind of value takes more."""
    return 8 * piece.size + 4096 * (len(piece.parts) + 1)


def same_tensors(ours: Shapes, theirs: Shapes, what: str) -> None:
    """An error that names the first difference, unless both have the same tensors in the same order."""
    if list(ours.items()) == list(theirs.items()):
        return
    raise WireError(f"{what} is for another model: {difference(ours, theirs)}")


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    for name, shape in theirs.items():
        if name not in ours:
            return f"it has a tensor {name!r}, which is not here"
        if ours[name] != shape:
            return f"tensor {name!r} is {list(shape)} there and {list(ours[name])} here"
    missing = [name for name in ours if name not in theirs]
    return f"it lacks tensor {missing[0]!r}" if missing else "the order of the tensors differs"
