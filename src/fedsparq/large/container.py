"""Messages of models of any size: a sequence of FSQ1 messages, each for a piece of the model.

wire/FORMAT.md describes the bytes under "Streams".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, BinaryIO

import xxhash
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedsparq import threads as threading
from fedsparq.errors import OptionError, WireError
from fedsparq.large.pieces import CUT, GROUP, LARGEST_CUT, Piece, Shapes, cut
from fedsparq.method import Identity
from fedsparq.payload import Payload
from fedsparq.wire import decode, encode

MAGIC = b"FSQS"
_VERSION = 1
_MAX_HEADER = 1 << 26
_CHECKSUM = 8
_AT_ONCE = 1 << 24
"""Bytes that are read at a time: memory is taken for what is there, not for what is said to be."""

Number = Annotated[int, Field(ge=0, lt=2**63)]


class _Header(BaseModel):
    """The JSON object at the start of a message."""

    model_config = ConfigDict(strict=True, extra="forbid")
    method: list[Any]
    origin: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    round: Number
    group: Annotated[int, Field(ge=1)]
    cut: Annotated[int, Field(le=LARGEST_CUT)]
    tensors: list[tuple[str, list[Number]]]


@dataclass(frozen=True)
class About:
    """What a message states of itself before its pieces."""

    method: Identity
    origin: str
    """Which residual it came from: 16 hexadecimal digits, drawn when that was begun."""
    round: int
    """How many messages that residual had made, this one included."""
    shapes: Shapes
    group: int = GROUP
    cut: int = CUT

    def pieces(self) -> Iterator[Piece]:
        return cut(self.shapes, self.group, self.cut)

    def encode(self) -> bytes:
        tensors = [[name, list(shape)] for name, shape in self.shapes.items()]
        about: dict[str, Any] = {"method": json.loads(self.method.encode()), "origin": self.origin, "round": self.round}
        about |= {"group": self.group, "cut": self.cut, "tensors": tensors}
        return json.dumps(about, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, text: bytes) -> About:
        try:
            header = _Header.model_validate_json(text)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise WireError(f"the header of the stream cannot be read: {where}: {first['msg']}") from None
        shapes = {name: tuple(shape) for name, shape in header.tensors}
        if header.group > header.cut:
            raise WireError(f"the stream is cut into pieces of {header.group:,} to {header.cut:,} coordinates")
        if len(shapes) < len(header.tensors):
            raise WireError("the header of the stream names a tensor twice")
        if sum(map(math.prod, shapes.values())) >= 2**63:
            raise WireError("the header of the stream states 2^63 coordinates or more")
        method = Identity.decode(json.dumps(header.method).encode())
        return cls(method, header.origin, header.round, shapes, header.group, header.cut)


class MessageWriter:
    """Write a message to anything with `write`: all pieces in order, then `close`."""

    def __init__(self, stream: BinaryIO, about: About) -> None:
        self._stream, self._digest = stream, xxhash.xxh3_64()
        self._missing = sum(1 for _ in about.pieces())
        self.bytes = 0
        header = about.encode()
        if len(header) > _MAX_HEADER:
            raise OptionError(f"the names and shapes of the tensors take {len(header):,} bytes; {_MAX_HEADER:,} fit")
        self._write(MAGIC + bytes([_VERSION]) + len(header).to_bytes(4, "little") + header)

    def add(self, payload: Payload | bytes) -> None:
        """Write the next piece: its payload, or its FSQ1 message."""
        self._missing -= 1
        blob = payload if isinstance(payload, bytes) else encode(payload)
        self._write(len(blob).to_bytes(4, "little"))
        self._write(blob)

    def close(self) -> str:
        """Write the checksum, and return it in hexadecimal; the stream stays open."""
        if self._missing:
            raise OptionError(f"{self._missing} pieces of the message are missing")
        checksum: str = self._digest.hexdigest()
        self._write(self._digest.intdigest().to_bytes(_CHECKSUM, "little"))
        return checksum

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._digest.update(data)
        self.bytes += len(data)


class MessageReader:
    """Read a message from anything with `read`, once, a piece at a time.

    Only at the end of the iteration is the message known to be right: hold back what is made of it until then.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._digest = stream, xxhash.xxh3_64()
        start = self._read(len(MAGIC) + 5)
        if start[: len(MAGIC)] != MAGIC:
            raise WireError(f"the message starts with {start[: len(MAGIC)]!r}, not with {MAGIC!r}: it is not a stream")
        if start[len(MAGIC)] != _VERSION:
            raise WireError(f"the stream is of version {start[len(MAGIC)]}; this program reads version {_VERSION}")
        length = int.from_bytes(start[-4:], "little")
        if length > _MAX_HEADER:
            raise WireError(f"the header of a stream has {length:,} bytes; {_MAX_HEADER:,} are the most")
        self.about = About.decode(self._read(length))
        self.checksum = ""
        """Known at the end."""

    def payloads(self, threads: int | None = None) -> Iterator[tuple[Piece, Payload]]:
        """Return the pieces in order, each checked; WireError, at the latest at the end, for a damaged message."""
        return threading.imap(_decoded, self.blobs(), threading.resolve_threads(threads))

    def blobs(self) -> Iterator[tuple[Piece, bytes]]:
        """Return the pieces as FSQ1 messages, not decoded."""
        for piece in self.about.pieces():
            length, most = int.from_bytes(self._read(4), "little"), _most_bytes(piece)
            if length > most:
                raise WireError(f"piece {piece.number} of the stream has {length:,} bytes; {most:,} are the most")
            yield piece, self._read(length)
        expected, self.checksum = self._digest.intdigest(), self._digest.hexdigest()
        if int.from_bytes(self._read(_CHECKSUM), "little") != expected:
            raise WireError("the checksum of the stream does not match: it was damaged on its way")
        if self._stream.read(1):
            raise WireError("trailing bytes after the stream")

    def _read(self, count: int) -> bytes:
        parts, left = [], count
        while left and (part := self._stream.read(min(left, _AT_ONCE))):
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
    """Return a bound on the bytes of a piece: no value kind takes more."""
    return 8 * piece.size + 4096 * (len(piece.parts) + 1)


def difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the first difference between the shapes of two models, as text."""
    for name, shape in theirs.items():
        if name not in ours:
            return f"it has a tensor {name!r}, which is not here"
        if ours[name] != shape:
            return f"tensor {name!r} is {list(shape)} there and {list(ours[name])} here"
    missing = [name for name in ours if name not in theirs]
    return f"it lacks tensor {missing[0]!r}" if missing else "the order of the tensors differs"
