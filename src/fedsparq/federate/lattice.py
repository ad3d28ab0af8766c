"""A public model on a lattice: the first model plus whole numbers of steps, each step a power of two.

All clients train on one public model that follows the server's own. Each layer has a grid, a power of two so fine that
its weights are at most 2**24 of it: then adding and subtracting multiples of it is exact in float32. So the sum of
several changes is one change, and a client can take back a change that the server does not know it received.
docs/ADAPTIVE.md derives the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Layout, Vector
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.payload.levels import MAX_LEVEL

FirstModel = Literal["one-bit", "8-bit"]

DEAD_ZONE = 0.6
"""Of a step: a coordinate moves when the server's own is farther away than this."""
DEAD_ZONE_VARIANCE = DEAD_ZONE**2 / 3
"""Of a coordinate within the dead zone, in squared steps."""
_GRID_BITS = 18
"""A layer's largest first magnitude is at most 2**18 of its grid: it can grow 64-fold before sums are inexact."""
_MAX_UNITS = 2**24
_HYSTERESIS = 0.75
_SMALL_LAYER = 2000
"""Layers of fewer weights are sent with 16 bits per weight in the first model."""


def grid_of(layout: Layout, vector: Vector) -> NDArray[np.float64]:
    """Return the grid of each layer; that of a layer of zeros follows the model's largest weight."""
    largest = np.array([np.abs(vector[tensor.span]).max(initial=0) for tensor in layout.parameters], np.float64)
    largest[largest == 0] = largest.max(initial=0) or 1.0
    grid: NDArray[np.float64] = np.exp2(np.ceil(np.log2(largest)) - _GRID_BITS)
    return grid


def on_grid(layout: Layout, vector: Vector, grid: NDArray[np.float64]) -> bool:
    """Return whether sums on the grid are still exact for this model."""
    return all(
        np.abs(vector[tensor.span]).max(initial=0) < _MAX_UNITS * unit
        for tensor, unit in zip(layout.parameters, grid, strict=True)
    )


def first_payload(layout: Layout, vector: Vector, grid: NDArray[np.float64], kind: FirstModel) -> Payload:
    """Return the first model as multiples of one step per layer, in one bit or eight bits per weight.

    One bit: the sign times the layer's root mean square, for freshly initialized weights, which are random anyway.
    """
    parts = []
    for tensor, unit in zip(layout.parameters, grid, strict=True):
        layer = vector[tensor.span].astype(np.float64)
        if kind == "one-bit" and tensor.size >= _SMALL_LAYER:
            step = float(max(1.0, np.rint(np.sqrt(np.square(layer).mean()) / unit)) * unit)
            levels = np.sign(layer)
        else:
            bits = 15 if tensor.size < _SMALL_LAYER and kind != "one-bit" else 7
            step = unit * 2.0 ** (_GRID_BITS - bits)
            levels = np.rint(layer / step).clip(-MAX_LEVEL, MAX_LEVEL)
        parts.append((levels, step))
    return _payload(layout, parts)


def change_payload(layout: Layout, difference: Vector, steps: NDArray[np.float64]) -> Payload:
    """Return the steps toward the server's model: none for coordinates within the dead zone, else to the nearest."""
    parts = []
    for tensor, step in zip(layout.parameters, steps, strict=True):
        units = difference[tensor.span].astype(np.float64) / step
        levels = np.where(np.abs(units) > DEAD_ZONE, np.rint(units), 0)
        small = (levels == 0) & (np.abs(units) > DEAD_ZONE)
        levels[small] = np.sign(units[small])
        parts.append((levels, step))
    return _payload(layout, parts)


def sum_payload(layout: Layout, change: Vector, grid: NDArray[np.float64]) -> Payload | None:
    """Return a sum of changes as one payload of the same value; None where a layer has too many levels for that."""
    parts = []
    for tensor, unit in zip(layout.parameters, grid, strict=True):
        units = np.rint(change[tensor.span] / unit).astype(np.int64)
        common = int(np.bitwise_or.reduce(units, initial=0))
        common &= -common
        if not common:
            parts.append((units, unit))
            continue
        units //= common
        if np.abs(units).max(initial=0) > MAX_LEVEL:
            return None
        parts.append((units, unit * common))
    return _payload(layout, parts)


def steps_of(
    layout: Layout,
    variance: NDArray[np.float64],
    before: NDArray[np.float64],
    difference: Vector,
    grid: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the step of each layer, a power of two: as the variance per coordinate asks, and no finer than the grid.

    A step stays as it was (`before`, if any) unless it is wrong by a factor of more than 2**0.75.

    Coarse enough that no coordinate moves by more steps than a message can hold.
    """
    largest = np.array([np.abs(difference[tensor.span]).max(initial=0) for tensor in layout.parameters], np.float64)
    wanted = np.sqrt(variance / DEAD_ZONE_VARIANCE)
    powers = np.log2(np.maximum(wanted, np.finfo(np.float64).tiny))
    steps = np.exp2(np.rint(powers))
    if before.size:
        steps = np.where(np.abs(powers - np.log2(before)) > _HYSTERESIS, steps, before)
    least = np.exp2(np.ceil(np.log2(np.maximum(largest / MAX_LEVEL, np.finfo(np.float64).tiny))))
    return np.maximum(np.maximum(steps, least), grid)


def layer_squares(payload: Payload) -> NDArray[np.float64]:
    """Return the sum of squares of each layer's values."""
    return np.array([np.square(values.decode(), dtype=np.float64).sum() for values in payload.values])


def _payload(layout: Layout, parts: Sequence[tuple[NDArray[np.generic], float]]) -> Payload:
    indices, values = [], []
    for tensor, (levels, step) in zip(layout.parameters, parts, strict=True):
        sent = np.flatnonzero(levels)
        indices.append((sent + tensor.offset).astype(np.uint32))
        values.append(UniformLevels(np.float32(step if sent.size else 0), levels[sent].astype(np.int16)))
    return Payload(layout, Sparse(np.concatenate([np.empty(0, np.uint32), *indices])), tuple(values))
