"""What a client must not lose, and how it becomes a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, pack_parts, unpack
from fedsparq.errors import FedSparQError, WireError
from fedsparq.federate.exact import ArraySpec, NamedModel, pack_arrays, unpack_arrays
from fedsparq.federate.messages import NOTHING_COUNTED, Acknowledgement, Reply
from fedsparq.federate.model import Model
from fedsparq.layout import Arrays, Buffers, Layout
from fedsparq.method import Identity
from fedsparq.protocols import State

VERSION = 4

_COUNTS = {"round": 2**32, "rounds": 2**32, "bytes": 2**53}
"""Arrays of whole numbers by the last word of their name, and what each is less than."""


class StateError(FedSparQError):
    """A state that cannot be read, or that belongs to another model or method."""


@dataclass(frozen=True)
class ClientState:
    """A client between two rounds."""

    compression: State
    method: Identity
    """The method that the compression state belongs to."""
    round: int = 0
    """The last round it answered."""
    in_flight: bytes = b""
    """The reply to that round, until the server acknowledges it."""
    model: Model | None = None
    """The model of that round, for client rules that learn by how much it changes."""
    acknowledged: Acknowledgement = NOTHING_COUNTED
    """The last reply that the server said it had counted."""
    waiting: tuple[bytes, ...] = ()
    """Replies to earlier rounds that may still count, where several rounds can be in flight."""
    extra: bytes = field(default=b"", repr=False)
    """What a transport sent beside the reply in flight, to be sent again with it."""
    reach: float = 0.0
    """How far the training of that round would have moved a weight against a gradient of 1; 0 if that is not known."""
    memory: Arrays = field(default_factory=dict)
    """What the task remembers of this client."""
    numbering: int = 0
    """Which numbering of rounds `round` is of (`Broadcast.numbering`)."""

    @property
    def undecided(self) -> tuple[bytes, ...]:
        """Every reply of which the server has not yet said whether it counted, oldest first."""
        return (*self.waiting, self.in_flight) if self.in_flight else self.waiting

    def encode(self) -> bytes:
        return b"".join(self.encode_parts())

    def encode_parts(self) -> list[bytes | memoryview]:
        """`encode`, one part after another: large arrays are not copied."""
        tensors: Arrays = {"in_flight": np.frombuffer(self.in_flight, np.uint8)}
        tensors |= {f"waiting.{number}": np.frombuffer(reply, np.uint8) for number, reply in enumerate(self.waiting)}
        if self.extra:
            tensors["extra"] = np.frombuffer(self.extra, np.uint8)
        tensors |= self.compression.arrays() | {f"memory.{name}": array for name, array in self.memory.items()}
        if self.model is not None:
            tensors |= model_arrays("model", self.model)
        last = self.acknowledged
        about = {
            "version": VERSION,
            "layout": f"{self.compression.layout.digest:016x}",
            "method": self.method.encode().decode(),
            "rules": len(self.compression.rules),
            "round": self.round,
            "acknowledged": [last.round, last.digest, last.share],
            "waiting": len(self.waiting),
            "reach": self.reach,
            "numbering": self.numbering,
        }
        return pack_parts(about, tensors)

    @classmethod
    def decode(cls, data: bytes | memoryview, layout: Layout, writable: bool = True) -> ClientState:
        try:
            about, tensors = unpack(data, writable)
            version, digest = about["version"], about["layout"]
        except (ArchiveError, KeyError, TypeError) as error:
            raise StateError(str(error)) from None
        if version != VERSION:
            raise StateError(f"it is of version {version}; this program reads version {VERSION}")
        if digest != f"{layout.digest:016x}":
            raise StateError(f"it is for a model with digest {digest}, not {layout.digest:016x}")
        try:
            return cls._of(about, tensors, layout)
        except (FedSparQError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise StateError(f"it is not what a client writes: {error}") from None

    @classmethod
    def _of(cls, about: dict[str, Any], tensors: Arrays, layout: Layout) -> ClientState:
        waiting, rules = counted_number(about["waiting"]), counted_number(about["rules"])
        return cls(
            State.of_arrays(layout, tensors, min(rules, len(tensors) + 1)),
            Identity.decode(about["method"].encode()),
            counted_number(about["round"]),
            tensors["in_flight"].tobytes(),
            model_of("model", tensors, layout),
            acknowledgement_of(about["acknowledged"]),
            tuple(tensors[f"waiting.{number}"].tobytes() for number in range(waiting)),
            tensors["extra"].tobytes() if "extra" in tensors else b"",
            about.get("reach", 0.0),
            {name.removeprefix("memory."): array for name, array in tensors.items() if name.startswith("memory.")},
            about["numbering"],
        )

    def fits(self, fresh: State) -> bool:
        """Whether its arrays are of the kinds that its method begins with, and its replies can be read."""
        own, expected = self.compression.arrays(), fresh.arrays()
        try:
            for reply in self.undecided:
                Reply.decode(reply)
        except WireError:
            return False
        return len(self.compression.rules) == len(fresh.rules) and all(
            name in own and alike(name, own[name], array) for name, array in expected.items()
        )


@dataclass(frozen=True)
class HeldModel:
    """A version of the public model, as a client has it. It may be lost: then the client asks for the whole one."""

    version: int
    model: NamedModel

    def encode_parts(self) -> list[bytes | memoryview]:
        held = self.model
        tensors = model_arrays("model", Model(held.vector, held.buffers))
        if held.spec is not None:
            tensors["exact"] = np.frombuffer(pack_arrays(held.exact), np.uint8)
        return pack_parts({"version": self.version, "spec": held.spec and held.spec.to_json()}, tensors)

    @classmethod
    def decode(cls, data: bytes | memoryview, layout: Layout | None = None) -> HeldModel | None:
        """None where it cannot be read. `layout`: of a model without named arrays."""
        try:
            about, tensors = unpack(data)
            spec = None if about["spec"] is None else ArraySpec.from_json(about["spec"])
            layout = spec.layout if spec is not None else layout or Layout(())
            model = model_of("model", tensors, layout)
            exact = unpack_arrays(tensors["exact"].tobytes()) if spec is not None else {}
            version = counted_number(about["version"])
        except (FedSparQError, KeyError, TypeError, ValueError, AttributeError):
            return None
        if model is None:
            return None
        return cls(version, NamedModel(layout, spec, exact, built=model.vector, buffers=model.buffers))


def model_arrays(name: str, model: Model) -> Arrays:
    """A model as arrays of a file, under a name."""
    arrays: Arrays = {name: model.vector}
    if model.buffers is not None:
        arrays |= {f"{name}.statistics": model.buffers.statistics, f"{name}.counters": model.buffers.counters}
    return arrays


def model_of(name: str, arrays: Arrays, layout: Layout) -> Model | None:
    """Undo `model_arrays`; None where there is none of this name. ValueError if it is not one of this layout."""
    if name not in arrays:
        return None
    expected: dict[str, tuple[int, type]] = {name: (layout.size, np.float32)}
    if f"{name}.statistics" in arrays:
        expected[f"{name}.statistics"] = layout.buffer_size, np.float32
        expected[f"{name}.counters"] = layout.counter_size, np.int64
    for key, (size, dtype) in expected.items():
        if arrays[key].shape != (size,) or arrays[key].dtype != dtype:
            raise ValueError(f"{key!r} is {arrays[key].dtype}{list(arrays[key].shape)}")
    if not np.isfinite(arrays[name]).all():
        raise ValueError(f"{name!r} is not finite")
    if len(expected) == 1:
        return Model(arrays[name])
    return Model(arrays[name], Buffers(arrays[f"{name}.statistics"], arrays[f"{name}.counters"]))


def alike(name: str, array: NDArray[Any], expected: NDArray[Any], grows: bool = False) -> bool:
    """Whether an array of a file is of the kind that is expected, and its numbers are possible: finite, and where it
    is called `round`, `rounds` or `bytes`, a count.

    One that `grows` with the rounds may have more rows.
    """
    shape = (*array.shape[:1], *expected.shape[1:]) if grows else expected.shape
    if (array.shape, array.dtype) != (shape, expected.dtype):
        return False
    if (last := name.rpartition(".")[2]) in _COUNTS:
        return bool(((array >= 0) & (array < _COUNTS[last])).all())
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def counted_number(value: Any) -> int:
    """A whole number from 0 on that fits 32 bits; ValueError for all else."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**32:
        raise ValueError(f"{value!r} is not a count")
    return value


def acknowledgement_of(entry: Any) -> Acknowledgement:
    """From a list as files have it; ValueError for what is none."""
    number, digest, share = entry
    if not isinstance(digest, int) or not 0 <= digest < 2**64 or not isinstance(share, int | float):
        raise ValueError(f"{entry!r} is no acknowledgement")
    if not 0 < share <= 1:
        raise ValueError(f"a share of {share} is not possible")
    return Acknowledgement(counted_number(number), digest, float(share))
