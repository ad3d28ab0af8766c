"""What the server says to one node beside the model: it travels as bytes in the message's ConfigRecord."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast
from fedsparq.flower.records import Entry

KEY = "fedsparq"
_RECORD = "config"
_VERSION = 3


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

    def encode(self) -> bytes:
        bare = replace(self.broadcast, base=0, blobs=(b"",))
        about: dict[str, object] = {"federation": self.federation, "version": self.version, "base": self.base}
        about |= {"digest": self.digest, "omitted": self.omitted}
        text = json.dumps({k: v for k, v in about.items() if v}, separators=(",", ":")).encode()
        return struct.pack("<BQI", _VERSION, self.session, len(text)) + text + bare.encode()

    @classmethod
    def decode(cls, data: bytes) -> Header:
        start = struct.calcsize("<BQI")
        if len(data) < start:
            raise WireError(f"{len(data)} bytes are too few for the header of a broadcast")
        version, session, length = struct.unpack_from("<BQI", data)
        if version != _VERSION:
            raise WireError("the server runs another version of FedSparQ; install the same on server and nodes")
        try:
            about = json.loads(data[start : start + length])
            listed = about.pop("omitted", ())
            omitted = tuple((int(at), (str(name), str(dtype), tuple(shape))) for at, (name, dtype, shape) in listed)
            if not all(type(value) is (str if key == "federation" else int) for key, value in about.items()):
                raise ValueError("a name or a number is something else")
            return cls(session, Broadcast.decode(data[start + length :]), omitted=omitted, **about)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise WireError(f"the header of a broadcast cannot be read: {error}") from None


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
