"""Signed levels of a whole model in one arithmetic-coded stream that learns where, and with which sign, they stand.

What is sent of a trained layer clusters: some inputs and some units are active, most are not. A static code cannot see
that. This one predicts each coordinate from its row, its column and its neighbours. It visits every coordinate, so it
is for small models.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.layout import Tensor
from fedsparq.wire import context_kernels as kernels
from fedsparq.wire.streams import Bytes

Levels = NDArray[np.int16]

_WEIGHTS = tuple(round(65536 * weight) for weight in (0.4, 0.4, 0.4, -0.2, 0.4, 0.2, 0.4))
_WHOLE = 2600 << 8
"""Before anything is known, 4 % are sent."""

_MOST_BYTES_A_BIT = 2
"""No chance is below 1/65536."""

_chances = (np.arange(4096) + 0.5) / 4096
_TABLES = (
    np.rint(256 * np.log(_chances / (1 - _chances))).clip(-2047, 2047).astype(np.int64),
    np.rint(65536 / (1 + np.exp(-np.arange(-2047, 2048) / 256))).clip(24, 65536 - 24).astype(np.int64),
    np.array([65536 // (met + 2) for met in range(256)], np.int64),
)
"""Chances to log odds (in 1/256), log odds to chances (in 1/65536), how far a context moves by how often it was met."""


def pack(layers: Sequence[tuple[Tensor, int, Levels]]) -> bytes:
    """The stream of some layers: each tensor with its highest level, and the level of every coordinate."""
    bits = sum(2 * levels.size + int(np.abs(levels).sum(dtype=np.int64)) for _, _, levels in layers)
    coder = _Coder(np.empty(_MOST_BYTES_A_BIT * bits, np.uint8))
    for tensor, top, levels in layers:
        coder.walk(tensor, top, levels, decode=False)
    return coder.finish()


def unpack(data: Bytes, layers: Sequence[tuple[Tensor, int]]) -> Iterator[Levels]:
    """Undo `pack`: the levels of each layer in turn. Advance it to its end: that is where the data are judged."""
    coder = _Coder(data.copy())
    coder.start()
    for tensor, top in layers:
        levels = np.empty(tensor.size, np.int16)
        coder.walk(tensor, top, levels, decode=True)
        if not coder.sound:
            raise WireError(f"layer {tensor.name!r}: a level is above {top}")
        yield levels
    if coder.read < data.size or (data.size and data[-1] == 0):
        raise WireError(f"the context-coded levels end before their {data.size:,} bytes do")


class _Coder:
    """The arithmetic coder and what is learned from layer to layer."""

    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._registers = np.array([0, 0xFFFFFFFF, 0, 0, 0], np.int64)
        self._weights = np.array(_WEIGHTS, np.int64)
        self._whole = np.array([_WHOLE], np.int64)

    def walk(self, tensor: Tensor, top: int, levels: Levels, decode: bool) -> None:
        rows, columns, stride = matrix(tensor.shape)
        registers, data = self._registers, self._data
        kernels.walk(levels, rows, columns, stride, top, _TABLES, self._weights, self._whole, registers, data, decode)

    def start(self) -> None:
        """Read the first four bytes."""
        first = self._data[:4].tobytes().ljust(4, b"\0")
        self._registers[kernels.CODE] = int.from_bytes(first, "big")
        self._registers[kernels.AT] = 4

    @property
    def sound(self) -> bool:
        return not self._registers[kernels.UNSOUND]

    @property
    def read(self) -> int:
        return int(self._registers[kernels.AT])

    def finish(self) -> bytes:
        """All bytes, with as few last ones as tell the rest of the range; zeros at the end go without saying."""
        low, high, _, at, _ = map(int, self._registers)
        for kept in range(5):
            unit = 1 << (32 - 8 * kept)
            last = -(-low // unit) * unit
            if last <= high:
                break
        return (self._data[:at].tobytes() + last.to_bytes(4, "big")).rstrip(b"\0")


def matrix(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Rows and columns a tensor is read in, and how far back in a row a coordinate's other neighbour is; 0: nowhere.

    A row is an output. In a convolution the other neighbour is one up in the kernel; where a row is a square image,
    one up in that.
    """
    if len(shape) < 2:
        return 1, math.prod(shape), 0
    columns = math.prod(shape[1:])
    side = math.isqrt(columns)
    return shape[0], columns, shape[-1] if len(shape) > 2 else side if side * side == columns else 0
