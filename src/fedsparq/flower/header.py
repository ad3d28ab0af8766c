"""What the server says to one node beside the model: it travels as bytes in the message's ConfigRecord."""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast
from fedsparq.flower.records import Entry, entry_of

KEY = "fedsparq"
_RECORD = "config"
_VERSION = 4
_START = "<BQQI"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def is_name(text: object) -> bool:
    """Whether a text may name a federation: the name becomes a folder on each node."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


@dataclass(frozen=True)
class Header:
    """A broadcast without its model, the federation it belongs to, and which version of the model it means."""

    session: int
    """Drawn by the strategy, or made from the federation's name: states of another session are not for it."""
    broadcast: Broadcast
    federation: str = ""
    """The name that the operator gave; states are found again by it in later runs."""
    version: int = 0
    """The version of the public model that the node shall hold; 0: none. Its vector only if the broadcast says so."""
    base: int = 0
    """The version that the node is known to hold, of which the message has the changes; 0: it has the whole model."""
    digest: int = 0
    """Of that version, where the message has only changes: a node that holds another must say so."""
    omitted: tuple[tuple[int, Entry], ...] = ()
    """Arrays that are as the node holds them, and their indices among all."""
    numbering: int = 0
    """Which numbering of rounds the broadcast's is of. A server that does not know what round its node has reached
    draws a new one: in another numbering a round's number means another round."""

    def encode(self) -> bytes:
        bare = replace(self.broadcast, base=0, blobs=(b"",))
        about: dict[str, object] = {"federation": self.federation, "version": self.version, "base": self.base}
        about |= {"digest": self.digest, "omitted": self.omitted}
        text = json.dumps({k: v for k, v in about.items() if v}, separators=(",", ":")).encode()
        return struct.pack(_START, _VERSION, self.session, self.numbering, len(text)) + text + bare.encode()

    @classmethod
    def decode(cls, data: bytes) -> Header:
        start = struct.calcsize(_START)
        if len(data) < start:
            raise WireError(f"{len(data)} bytes are too few for the header of a broadcast")
        version, session, numbering, length = struct.unpack_from(_START, data)
        if version != _VERSION:
            raise WireError("the server runs another version of FedSparQ; install the same on server and nodes")
        try:
            about = json.loads(data[start : start + length])
            omitted = tuple((_count(at), entry_of(entry)) for at, entry in about.pop("omitted", ()))
            federation = about.pop("federation", "")
            if federation != "" and not is_name(federation):
                raise ValueError(f"{str(federation)[:80]!r} is not the name of a federation")
            numbers = {name: _count(value) for name, value in about.items()}
            broadcast = Broadcast.decode(data[start + length :])
            return cls(session, broadcast, federation, omitted=omitted, numbering=numbering, **numbers)
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise WireError(f"the header of a broadcast cannot be read: {error}") from None


def _count(value: object) -> int:
    """A whole number that fits 64 bits; ValueError for all else."""
    if type(value) is not int or not 0 <= value < 2**64:
        raise ValueError(f"{str(value)[:80]!r} is not a count")
    return value


def with_header(content: RecordDict, header: bytes) -> RecordDict:
    """The content of a message to one node; what it shares with other nodes is left as it is."""
    name, record = next(iter(content.config_records.items()), (_RECORD, ConfigRecord()))
    return RecordDict({**content, name: ConfigRecord({**record, KEY: header})})


def without_header(content: RecordDict) -> tuple[RecordDict, bytes | None]:
    """The content as the app expects it, and the header, if there is one."""
    for name, record in content.config_records.items():
        header = record.get(KEY)
        if isinstance(header, bytes):
            return RecordDict({**content, name: ConfigRecord({k: v for k, v in record.items() if k != KEY})}), header
    return content, None
