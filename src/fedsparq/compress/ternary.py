"""Methods that send a sign and one magnitude: sparse ternary compression, AdaComp."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from fedsparq.compress import field_kernels
from fedsparq.compress.payload import Listed, Magnitudes, Positions, Values
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.select import Forgetful, Memory, Scope, check_fraction, largest, share
from fedsparq.compress.state import Compensated, Vector
from fedsparq.errors import OptionError


@dataclass(frozen=True)
class SparseTernary(Forgetful):
    """The largest fraction by magnitude, each sent as its sign; all are rebuilt at their mean magnitude.

    The mean is over what the fraction is taken of: the whole model, or each layer.
    """

    fraction: float
    scope: Scope = "global"

    def __post_init__(self) -> None:
        check_fraction(self.fraction)

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        c.load_all()
        bounds = c.layout.bounds if self.scope == "layer" else np.array([0, c.layout.size])
        sent, table = [np.empty(0, np.uint32)], []
        for start, end in pairwise(bounds):
            region = c.vector[start:end]
            places = largest(region, share(self.fraction, region.size))
            table.append(np.abs(region[places]).mean(dtype=np.float64) if places.size else 0.0)
            sent.append(places + np.uint32(start))
        tables = table if self.scope == "layer" else table * len(c.layout.parameters)
        return coded_by_sign(c, np.concatenate(sent), np.array(tables, np.float32))


@dataclass(frozen=True)
class AdaComp(Forgetful):
    """In each bin, what would be its largest value if this round's update counted twice; rebuilt at the mean maximum.

    Bins are of `conv_bin` coordinates in convolutions (tensors of more than two dimensions), else of `bin`.
    """

    conv_bin: int = 50
    bin: int = 500

    def __post_init__(self) -> None:
        for name, size in (("conv_bin", self.conv_bin), ("bin", self.bin)):
            if size < 1:
                raise OptionError(f"{name}={size} is out of range; a bin has at least one coordinate")

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        sent, scales = [np.empty(0, np.uint32)], []
        for index, tensor in enumerate(c.layout.parameters):
            c.load(index)
            bin_size = self.conv_bin if len(tensor.shape) > 2 else self.bin
            places = np.empty(tensor.size, np.uint32)
            count, scale = field_kernels.bin_maxima(c.layer(index), c.update(index), bin_size, places)
            sent.append(places[:count] + np.uint32(tensor.offset))
            scales.append(scale)
        return coded_by_sign(c, np.concatenate(sent), np.array(scales, np.float32))


def coded_by_sign(c: Compensated, places: Positions, magnitudes: Vector) -> Coded:
    """These places of the whole vector, each as its sign with its layer's magnitude."""
    cuts = np.searchsorted(places, c.layout.bounds)
    values: list[Values] = []
    for index, magnitude in enumerate(magnitudes):
        here = places[cuts[index] : cuts[index + 1]]
        signs = np.where(np.signbit(c.vector[here]), np.int16(-1), np.int16(1))
        table = np.array([magnitude] if here.size else [], np.float32)
        values.append(Magnitudes(table, signs))
        c.vector[here] -= values[-1].decoded()
    return Coded(Listed(places), places, tuple(values))
