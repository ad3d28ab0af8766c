"""What a client remembers from round to round, and the vector it compresses in one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.errors import UpdateError
from fedsparq.layout import Layout

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class State:
    """The memory of a method: arrays that can be saved and compared. Never changed in place."""

    layout: Layout
    rounds: int = 0
    residual: Vector | None = None
    """What was not sent yet, for methods with error feedback."""
    memory: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    """Whatever else the selector smooths or tracks, by name; `threshold` per layer for fedsparq."""


class Compensated:
    """The update plus the residual, made layer by layer when a selector first asks: a layer is then still in cache."""

    def __init__(self, layout: Layout, update: Vector, residual: Vector | None, out: Vector) -> None:
        self.layout = layout
        self.vector = out
        self._update = update
        self._residual = residual
        self._sums: dict[int, float] = {}

    def layer(self, index: int) -> Vector:
        """One layer's slice; `load` it first."""
        return self.vector[self.layout.parameters[index].span]

    def update(self, index: int) -> Vector:
        """One layer's slice of the update alone, without what was left over from earlier rounds."""
        return self._update[self.layout.parameters[index].span]

    def load(self, index: int) -> float:
        """Make a layer, once; returns the sum of its magnitudes."""
        if index not in self._sums:
            span = self.layout.parameters[index].span
            if self._residual is None:
                total = kernels.copy(self._update[span], self.vector[span])
            else:
                total = kernels.add(self._update[span], self._residual[span], self.vector[span])
            if not np.isfinite(total):
                self._refuse(index)
            self._sums[index] = total
        return self._sums[index]

    def load_all(self) -> float:
        """Make every layer; returns the sum of all magnitudes."""
        return sum(self.load(index) for index in range(len(self.layout.parameters)))

    def _refuse(self, index: int) -> None:
        tensor = self.layout.parameters[index]
        bad = int(np.flatnonzero(~np.isfinite(self.layer(index)))[0])
        raise UpdateError(
            f"layer {tensor.name!r} of the update holds {self.layer(index)[bad]} at place {bad} of {tensor.size}; "
            "every value must be finite (did training diverge? try a lower learning rate)"
        )


def check_update(update: object, layout: Layout) -> Vector:
    """The update as a contiguous float32 vector of the layout's size, or an error that says what is wrong."""
    if not isinstance(update, np.ndarray) or update.dtype != np.float32 or update.shape != (layout.size,):
        kind = f"{update.dtype}{list(update.shape)}" if isinstance(update, np.ndarray) else type(update).__name__
        raise UpdateError(f"the update is {kind}; this layout takes float32[{layout.size}]")
    return np.ascontiguousarray(update)
