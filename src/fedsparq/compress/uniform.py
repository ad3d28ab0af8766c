"""Equal steps behind a dead zone: the plain scalar quantizer of signal coding, with error feedback beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedsparq.compress import field_kernels
from fedsparq.compress.payload import Listed, Steps, Values
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.quantize import MAX_LEVELS
from fedsparq.compress.select import Forgetful, Memory, Scope
from fedsparq.compress.state import Compensated
from fedsparq.errors import OptionError


@dataclass(frozen=True)
class DeadZone(Forgetful):
    """Level 0 below `dead_zone` steps, then one more each step; a step is a multiple of the root mean square."""

    step: float
    dead_zone: float
    scope: Scope = "global"

    def __post_init__(self) -> None:
        if not 0 < self.step < np.inf:
            raise OptionError(f"step={self.step} is out of range; it must be a number above 0")
        if not 0.5 <= self.dead_zone <= 1:
            raise OptionError(
                f"dead_zone={self.dead_zone} is out of range; from 0.5 (plain rounding) to 1 (towards zero) it can be"
            )

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        c.load_all()
        energies = [float(np.dot(c.layer(i), c.layer(i))) for i in range(len(c.layout.parameters))]
        kept, values = [np.empty(0, np.uint32)], list[Values]()
        for index, tensor in enumerate(c.layout.parameters):
            energy, size = (energies[index], tensor.size) if self.scope == "layer" else (sum(energies), c.layout.size)
            step = np.float32(self.step * np.sqrt(energy / max(size, 1)))
            layer, levels = c.layer(index), np.zeros(tensor.size, np.int16)
            if step > 0:
                field_kernels.dead_zone_levels(layer, np.float64(step), self.dead_zone, MAX_LEVELS, levels)
            places = np.flatnonzero(levels).astype(np.uint32)
            values.append(Steps(step, levels[places]))
            layer[places] -= values[-1].decoded()
            kept.append(places + np.uint32(tensor.offset))
        sent = np.concatenate(kept)
        return Coded(Listed(sent), sent, tuple(values))
