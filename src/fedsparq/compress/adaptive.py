"""The adaptive method: how many coordinates of each layer, in how many levels, so that the bytes buy the most.

All layers are weighed against each other by one price: the squared error that a bit must take away to be sent.
docs/ADAPTIVE.md derives the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import adaptive_kernels as kernels
from fedsparq.compress.budget import Attempt, Room
from fedsparq.compress.kernels import list_marked
from fedsparq.compress.payload import Listed, Magnitudes, Positions, Steps, Values
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.quantize import MAX_LEVELS, Float16
from fedsparq.compress.select import Marks, Memory, at_least
from fedsparq.compress.state import Compensated, Vector
from fedsparq.layout import Layout

_SAMPLE = 1 << 15
"""Of a layer of more coordinates than this, about so many are looked at to find its curve."""
_FINEST = 2.0**-30
_PRECISION = 0.004
"""Of the logarithm of the price."""


@dataclass(frozen=True)
class EqualSlope:
    """Send what gains most for its bits, with one price of a bit for the whole model, as far as there is room."""

    room: Room

    def init(self, layout: Layout) -> Memory:
        return self.room.init(layout)

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        c.load_all()
        curves = Curves(c)

        def send(bits: float, price: float) -> Attempt:
            plan = curves.plan(bits, price)
            return Attempt(_coded(c, plan), plan.bits, plan.price, plan.everything)

        coded = self.room.fill(c.layout, rounds, memory, send)
        _take_away(c, coded)
        return coded


@dataclass(frozen=True)
class Plan:
    """For each layer the magnitudes its levels start at: none if it is not sent, the first if they are `step` apart."""

    edges: list[Vector]
    fine: list[bool]
    """Which layers have more levels than a table holds."""
    step: np.float32
    bits: float
    price: float
    everything: bool
    """Whether no price could be low enough to spend what there is."""


class Curves:
    """What each layer's bits would buy."""

    def __init__(self, c: Compensated) -> None:
        bounds = c.layout.bounds
        self._sizes = np.diff(bounds)
        self._curves = np.empty((2, self._sizes.size, kernels.BINS))
        self._bases = np.empty(self._sizes.size, np.int64)
        self.peaks = np.empty(self._sizes.size)
        """The largest magnitude of each layer."""
        kernels.fill_curves(c.vector, bounds, _SAMPLE, self._curves, self._bases, self.peaks)
        self.largest = float(self.peaks.max(initial=0)) or 1.0

    @property
    def means(self) -> NDArray[np.float64]:
        """Each layer's mean magnitude."""
        return self._curves[1, :, 0] / np.maximum(self._sizes, 1)

    @property
    def mean(self) -> float:
        """The whole model's mean magnitude."""
        return float(self._curves[1, :, 0].sum() / max(self._sizes.sum(), 1))

    def plan(self, bits: float, price: float) -> Plan:
        """The plan that spends about so many bits; `price` is a first guess at its price, 0 if there is none."""
        levels = np.zeros(self._sizes.size, np.int64)
        bins = np.zeros((self._sizes.size, kernels.MOST_LEVELS), np.int64)

        def spent(log_price: float) -> float:
            return kernels.rate(self._curves, self._bases, self._sizes, np.exp(log_price), levels, bins)

        finest, coarsest = 2 * np.log(self.largest * _FINEST), 2 * np.log(self.largest)
        guess = np.log(price) if price else coarsest - 5
        log_price, everything = falling_root(spent, bits, guess, finest, coarsest)
        spent(log_price)
        price = float(np.exp(log_price))
        total = kernels.thin(self._curves, self._bases, self._sizes, price, bits, levels, bins)
        edges = []
        for index, count in enumerate(np.where(levels == kernels.FINE, 1, levels)):
            edges.append(np.empty(count, np.float32))
            kernels.edges_of(bins[index, :count], self._bases[index], edges[-1])
        step = np.float32(kernels.STEP * np.sqrt(price))
        return Plan(edges, (levels == kernels.FINE).tolist(), step, total, price, everything)

    def drawn_bits(self, steps: NDArray[np.float64], deferred: float) -> float:
        """The bits to expect when what is not below `deferred` of its layer's steps is rounded to steps at random."""
        return kernels.drawn_bits(self._curves, self._bases, self._sizes, steps, deferred)


def _coded(c: Compensated, plan: Plan) -> Coded:
    """What a plan sends. Nothing is taken away from `c` yet."""
    kept, values = [np.empty(0, np.uint32)], list[Values]()
    for index, tensor in enumerate(c.layout.parameters):
        edges, layer = plan.edges[index], c.layer(index)
        if edges.size == 0:
            values.append(Magnitudes(np.empty(0, np.float32), np.empty(0, np.int16)))
            continue
        marks = at_least(layer, edges[0])
        code = _in_steps if plan.fine[index] else _in_levels
        positions, layer_values = code(layer, marks, edges, plan.step)
        kept.append(positions + np.uint32(tensor.offset))
        values.append(layer_values)
    places = np.concatenate(kept)
    return Coded(Listed(places), places, tuple(values))


def _in_steps(c: Vector, marks: Marks, edges: Vector, step: np.float32) -> tuple[Positions, Values]:
    """The marked as the nearest multiples of the step; as float16 if the largest is too many steps away."""
    positions = np.empty(marks.count, np.uint32)
    list_marked(marks.words, 0, positions)
    levels = np.rint(c[positions].astype(np.float64) / step)
    if np.abs(levels).max(initial=0) > MAX_LEVELS:
        return Float16().quantize(c.copy(), 0, marks, 0)
    levels[levels == 0] = np.where(c[positions[levels == 0]] < 0, -1, 1)
    return positions, Steps(step, levels.astype(np.int16))


def _in_levels(c: Vector, marks: Marks, edges: Vector, step: np.float32) -> tuple[Positions, Magnitudes]:
    """The marked as levels that start at these magnitudes, each rebuilt at its mean."""
    positions, levels = np.empty(marks.count, np.uint32), np.empty(marks.count, np.int16)
    counts, sums = np.zeros(edges.size, np.int64), np.zeros(edges.size)
    kernels.take_levels(c, marks.words, 0, edges, positions, levels, counts, sums)
    return positions, Magnitudes(_shortened(sums / np.maximum(counts, 1)), levels)


def _shortened(table: NDArray[np.float64]) -> Vector:
    """Rounded to the upper two bytes of float32, which is all that travels."""
    bits = table.astype(np.float32).view(np.uint32)
    return ((bits + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)


def _take_away(c: Compensated, coded: Coded) -> None:
    done = 0
    for values in coded.values:
        here = coded.places[done : done + len(values)]
        c.vector[here] -= values.decoded()
        done += len(values)


def falling_root(
    falling: Callable[[float], float], wanted: float, guess: float, least: float, most: float
) -> tuple[float, bool]:
    """Just before a falling function comes down to what is wanted; and whether it never was above that."""
    high = low = min(max(guess, least), most)
    stride = 0.25
    if falling(low) > wanted:
        while high < most and falling(high) > wanted:
            low, high, stride = high, min(high + stride, most), 2 * stride
    else:
        while low > least:
            high, low, stride = low, max(low - stride, least), 2 * stride
            if falling(low) > wanted:
                break
        else:
            return low, True
    while high - low > _PRECISION:
        middle = (low + high) / 2
        if falling(middle) > wanted:
            low = middle
        else:
            high = middle
    return low, False
