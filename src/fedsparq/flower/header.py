"""What the server says to one node beside the model: it travels as bytes in the message's ConfigRecord."""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, RecordDict

from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast

KEY = "fedsparq"
_RECORD = "config"


@dataclass(frozen=True)
class Header:
    """A broadcast without its model, and the federation it belongs to."""

    session: int
    """Drawn by the strategy when it starts: states of another session are not for it."""
    broadcast: Broadcast

    def encode(self) -> bytes:
        bare = replace(self.broadcast, blobs=(b"",) * len(self.broadcast.blobs))
        return struct.pack("<Q", self.session) + bare.encode()

    @classmethod
    def decode(cls, data: bytes) -> Header:
        if len(data) < 8:
            raise WireError(f"{len(data)} bytes are too few for the header of a broadcast")
        return cls(struct.unpack_from("<Q", data)[0], Broadcast.decode(data[8:]))


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
