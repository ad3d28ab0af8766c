"""Round plans: what the server fixes for all clients of a round before they train. A plan is public."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError, WireError
from fedsparq.payload.levels import MAX_LEVEL, UniformLevels
from fedsparq.payload.payload import Payload
from fedsparq.payload.selection import Indices, Seeded

_MAX_VARIANCE = 2.0**36
"""The table of its law has 5 million entries then."""


@dataclass(frozen=True, eq=False)
class SupportPlan:
    """The common support of a round: the coordinates of a bitmap, and `count` of the others, drawn from a seed."""

    seed: int
    count: int
    listed: NDArray[np.uint8] | None = None
    """A bitmap of coordinates, packed as by `np.packbits`; None: no coordinate is listed."""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63 or self.count < 0:
            raise OptionError(f"a support plan needs 0 <= seed < 2^63 and count >= 0, got {self.seed} and {self.count}")
        if self.listed is not None and (self.listed.dtype != np.uint8 or self.listed.ndim != 1):
            raise OptionError(f"the bitmap of a support plan must be uint8[n], got {self.listed.dtype}")

    @classmethod
    def of_indices(cls, size: int, count: int, seed: int, listed: Indices) -> SupportPlan:
        """Build the plan of `count` coordinates of `size`, in addition to those listed."""
        bitmap = np.zeros(size, np.bool_)
        bitmap[listed] = True
        return cls(seed, count, np.packbits(bitmap) if listed.size else None)

    def indices(self, size: int) -> Indices:
        """Return the coordinates, strictly increasing, of a model with `size` of them."""
        self.check_size(size)
        if self.listed is None:
            return Seeded(size, self.count, self.seed).indices
        listed = np.unpackbits(self.listed, count=size).view(np.bool_)
        others = np.flatnonzero(~listed).astype(np.uint32)
        drawn = others[Seeded(others.size, self.count, self.seed).indices]
        return np.union1d(drawn, np.flatnonzero(listed).astype(np.uint32))

    @property
    def num_listed(self) -> int:
        return 0 if self.listed is None else int(np.bitwise_count(self.listed).sum())

    def check_size(self, size: int) -> None:
        """Raise WireError unless the plan is one for a model with `size` coordinates."""
        if self.listed is not None and self.listed.size != (size + 7) // 8:
            raise WireError(f"a round plan has a bitmap of {self.listed.size} bytes for {size} coordinates")
        if self.count > size - self.num_listed:
            raise WireError(f"a round plan draws {self.count} of {size - self.num_listed} coordinates")


@dataclass(frozen=True, eq=False)
class RoundPlan:
    """What the aggregator fixes for all clients of a round. Every number is checked when it is built."""

    support: SupportPlan | None = None
    step: float = 0.0
    """The unit of the levels on the support, a float32; 0 without a support."""
    top: int = 0
    """The largest level; 0: the compressor's own."""
    clip: float = math.inf
    """The largest norm of an update."""
    variance: float = 0.0
    """The variance of the integer noise that each client adds to its levels."""

    def __post_init__(self) -> None:
        with np.errstate(over="ignore"):
            step = float(np.float32(self.step))
        if not (0 < step < math.inf if self.support is not None else step == 0):
            raise OptionError(f"step={self.step}: it must be finite and above 0 with a support, 0 without one")
        if not 0 <= self.top <= MAX_LEVEL:
            raise OptionError(f"top={self.top}: it must be from 0 to {MAX_LEVEL}")
        if not self.clip > 0:
            raise OptionError(f"clip={self.clip}: it must be above 0")
        if not 0 <= self.variance <= _MAX_VARIANCE:
            raise OptionError(f"variance={self.variance}: it must be from 0 to 2^36")

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the plan as arrays, for a message or a file."""
        numbers: dict[str, float] = {"step": self.step, "top": self.top, "clip": self.clip, "variance": self.variance}
        numbers = {name: value for name, value in numbers.items() if 0 < value < math.inf}
        if self.support is not None:
            numbers |= {"seed": self.support.seed, "count": self.support.count}
        arrays: dict[str, NDArray[Any]] = {name: np.array([value], _DTYPES[name]) for name, value in numbers.items()}
        listed = None if self.support is None else self.support.listed
        return arrays if listed is None else arrays | {"listed": listed}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> RoundPlan:
        """Undo `arrays`; raise WireError for anything that is no plan."""
        numbers = {name: array for name, array in arrays.items() if name != "listed"}
        if unknown := set(numbers) - _DTYPES.keys():
            raise WireError(f"a round plan has no field {min(unknown)!r}")
        for name, array in numbers.items():
            if array.shape != (1,) or array.dtype != _DTYPES[name]:
                raise WireError(f"{name!r} of a round plan is {array.dtype}{list(array.shape)}")
        fields = {name: array.item() for name, array in numbers.items()}
        if ("seed" in fields) != ("count" in fields) or ("listed" in arrays and "seed" not in fields):
            raise WireError(f"a round plan cannot have {', '.join(sorted(arrays))} alone")
        try:
            if "seed" in fields:
                fields["support"] = SupportPlan(fields.pop("seed"), fields.pop("count"), arrays.get("listed"))
            return cls(**fields)
        except OptionError as error:
            raise WireError(f"the round plan is not possible: {error}") from None


_DTYPES = {
    "seed": np.uint64,
    "count": np.int64,
    "step": np.float32,
    "top": np.int64,
    "clip": np.float64,
    "variance": np.float64,
}


def levels_on(support: Indices, step: np.float32, payload: Payload) -> NDArray[np.int64]:
    """Return the levels of a payload on a support, zeros included; raise WireError if it has any other value."""
    levels, begin = np.zeros(payload.layout.size, np.int64), 0
    for values in payload.values:
        if len(values) and not (isinstance(values, UniformLevels) and values.step == step):
            raise WireError("a reply is not on the lattice that its round was planned for")
        if isinstance(values, UniformLevels):
            levels[payload.indices[begin : begin + len(values)]] = values.levels
        begin += len(values)
    on = levels[support]
    if np.count_nonzero(on) != payload.kept:
        raise WireError("a reply has coordinates outside its round's support")
    return on
