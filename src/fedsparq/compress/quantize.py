"""How kept values are written: as float32 or float16. QSGD's levels are in levels.py."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import get_ident
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress import kernels
from fedsparq.compress.select import All, Limits, Marks, Selector
from fedsparq.compress.workspace import Fused, Workspace
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import component
from fedsparq.payload import Float16Values, Float32Values, Indices, Payload, Sparse, Values
from fedsparq.protocols import Compressed, CompressorTraits
from fedsparq.threads import together

Rounding = Literal["nearest", "stochastic"]
Kind = type[Float16Values] | type[Float32Values]
Taken = tuple[Indices, tuple[Values, ...]]
"""What is sent: the indices of all layers, and each layer's values."""


class Quantizer(ABC):
    """A rule for how to write values."""

    contractive: ClassVar[bool] = True

    @abstractmethod
    def quantize(self, workspace: Workspace, marks: Marks, seed: int) -> Taken:
        """Take the marked away; returns what will be decoded: fewer than were marked where some became zero."""


@component
class Float32(Quantizer):
    """As they are."""

    def quantize(self, workspace: Workspace, marks: Marks, seed: int) -> Taken:
        return _take(workspace, marks, Float32Values, np.float32, kernels.FLOAT32, seed)


@component
class Float16(Quantizer):
    """Half precision, saturating at 65504: what does not fit stays in the residual."""

    rounding: Rounding = "nearest"

    def quantize(self, workspace: Workspace, marks: Marks, seed: int) -> Taken:
        form = kernels.STOCHASTIC if self.rounding == "stochastic" else kernels.NEAREST
        return _take(workspace, marks, Float16Values, np.uint16, form, seed)


@component
class SelectAndQuantize(Fused):
    """Choose coordinates by one rule, write their values by another."""

    select: Selector
    quantize: Quantizer

    @property
    def traits(self) -> CompressorTraits:
        return CompressorTraits(
            is_contractive=self.quantize.contractive,
            has_common_support=isinstance(self.select, All) and isinstance(self.quantize, Float32 | Float16),
            is_layerwise=self.select.layerwise,
        )

    def init(self, layout: Layout) -> Arrays:
        return self.select.init(layout)

    def compress_in_place(self, workspace: Workspace, state: Arrays, rng: np.random.Generator) -> Compressed:
        marks, shortcut, after = self.select.select(workspace, state, rng)
        indices, values = self.quantize.quantize(workspace, marks, int(rng.integers(2**63)))
        selection = shortcut if shortcut is not None and shortcut.count == indices.size else Sparse(indices)
        return Payload(workspace.layout, selection, values), after


def _take(workspace: Workspace, marks: Marks, kind: Kind, dtype: type[np.generic], form: int, seed: int) -> Taken:
    """Take the marked away, each value by itself."""
    layout, drawn = workspace.layout, np.uint64(seed)
    values: NDArray[Any]
    if isinstance(marks, np.ndarray):
        indices, values = marks, np.empty(marks.size, dtype)
        kernels.take_listed(workspace.vector, indices, form, drawn, values)
    elif workspace.threads > 1:
        indices, values = _take_by_group(workspace, marks, dtype, form, drawn)
    else:
        groups = [int(layout.bounds[last] - layout.bounds[first]) for first, last in layout.groups]
        likely = layout.size // 8 + max(groups, default=0) + kernels.STRIDE
        done, indices, values = 0, np.empty(likely, np.uint32), np.empty(likely, dtype)
        for size, (layers, c, sums) in zip(groups, workspace.groups(), strict=True):
            if indices.size < done + size + kernels.STRIDE:
                indices, values = _longer(indices, done, layout.size), _longer(values, done, layout.size)
            bounds = layout.bounds[layers.start : layers.stop + 1]
            done = kernels.take_at_least(c, bounds, marks(layers, sums), form, drawn, done, indices, values)
        indices.resize(done, refcheck=False)
        values.resize(done, refcheck=False)
    return indices, tuple(kind(values[part]) for part in layout.split(indices))


def _take_by_group(
    workspace: Workspace, limits: Limits, dtype: type[np.generic], form: int, drawn: np.uint64
) -> tuple[Indices, NDArray[Any]]:
    """Groups of layers side by side: each is taken into memory of its own, then all are put into one."""
    bounds, scratch = workspace.layout.bounds, dict[int, tuple[Indices, NDArray[Any]]]()
    most = max(int(bounds[last] - bounds[first]) for first, last in workspace.layout.groups) + kernels.STRIDE

    def take(layers: slice, c: Vector, sums: NDArray[np.float64]) -> tuple[Indices, NDArray[Any]]:
        if get_ident() not in scratch:
            scratch[get_ident()] = np.empty(most, np.uint32), np.empty(most, dtype)
        indices, values = scratch[get_ident()]
        own = bounds[layers.start : layers.stop + 1]
        count = kernels.take_at_least(c, own, limits(layers, sums), form, drawn, 0, indices, values)
        return indices[:count].copy(), values[:count].copy()

    taken = workspace.by_group(take)
    ends = np.cumsum([own.size for own, _ in taken])
    indices, values = np.empty(ends[-1], np.uint32), np.empty(ends[-1], dtype)

    def put(place: int) -> None:
        part = slice(ends[place] - taken[place][0].size, ends[place])
        indices[part], values[part] = taken[place]

    together(put, range(len(taken)), workspace.threads, lambda place: int(taken[place][0].size))
    return indices, values


def _longer(array: NDArray[Any], used: int, size: int) -> NDArray[Any]:
    """An array of all the length that could be needed, with the same start: new memory, which is slow to write to."""
    longer = np.empty(size + kernels.STRIDE, array.dtype)
    longer[:used] = array[:used]
    return longer
