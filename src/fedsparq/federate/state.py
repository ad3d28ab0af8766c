"""What a client must not lose, and how it becomes a file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.state import State
from fedsparq.errors import FedSparQError
from fedsparq.federate.archive import ArchiveError, pack, unpack
from fedsparq.federate.messages import NOTHING_COUNTED, Receipt
from fedsparq.federate.model import Model
from fedsparq.layout import Exact, Layout

VERSION = 1


class StateError(FedSparQError):
    """A state that cannot be read, or that belongs to another model or method."""


@dataclass(frozen=True)
class ClientState:
    """A client between two rounds."""

    compression: State
    method: str
    """Name and options of the method that the compression state belongs to."""
    round: int = 0
    """The last round it answered."""
    in_flight: bytes = b""
    """The reply to that round, until the server tells whether it counted."""
    model: Model | None = None
    """The model of that round, where the server sends changes."""
    acknowledged: Receipt = NOTHING_COUNTED
    """The last reply that the server said it had counted."""

    def encode(self) -> bytes:
        tensors: dict[str, NDArray[np.generic]] = {"in_flight": np.frombuffer(self.in_flight, np.uint8)}
        if self.compression.residual is not None:
            tensors["residual"] = self.compression.residual
        tensors |= {f"memory.{name}": array for name, array in self.compression.memory.items()}
        if self.model is not None:
            tensors["model"] = self.model.vector
            if self.model.exact is not None:
                tensors |= {"buffers": self.model.exact.buffers, "counters": self.model.exact.counters}
        about = {
            "version": VERSION,
            "layout": f"{self.compression.layout.digest:016x}",
            "method": self.method,
            "round": self.round,
            "rounds": self.compression.rounds,
            "acknowledged": [self.acknowledged.round, self.acknowledged.digest],
        }
        return pack(about, tensors)

    @classmethod
    def decode(cls, data: bytes, layout: Layout) -> ClientState:
        try:
            about, tensors = unpack(data)
            version, digest = about["version"], about["layout"]
        except (ArchiveError, KeyError) as error:
            raise StateError(str(error)) from None
        if version != VERSION:
            raise StateError(f"it is of version {version}; this program reads version {VERSION}")
        if digest != f"{layout.digest:016x}":
            raise StateError(f"it is for a model with digest {digest}, not {layout.digest:016x}")
        exact = Exact(tensors["buffers"], tensors["counters"]) if "buffers" in tensors else None
        model = Model(tensors["model"], exact) if "model" in tensors else None
        memory = {name.removeprefix("memory."): tensors[name] for name in tensors if name.startswith("memory.")}
        compression = State(layout, about["rounds"], tensors.get("residual"), memory)
        in_flight, acknowledged = tensors["in_flight"].tobytes(), Receipt(*about["acknowledged"])
        return cls(compression, about["method"], about["round"], in_flight, model, acknowledged)
