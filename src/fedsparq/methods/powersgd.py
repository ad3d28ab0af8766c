"""PowerSGD (Vogels 2019): a matrix as the product of two thin ones, by one step of power iteration."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.options import Count, component
from fedsparq.payload import Dense, Float32Values, LowRank, Payload, Values
from fedsparq.payload.low_rank import MAX_RANK, matrix_shape
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits


@component
class PowerIteration:
    """P = orth(M Q), Q = M^T P, and M is sent as P Q^T; Q is where the next round begins.

    Vectors, and matrices that two factors would not make smaller, are sent as float32.
    """

    rank: Annotated[Count, Field(le=MAX_RANK)] = 4
    traits: ClassVar[CompressorTraits] = CompressorTraits(copies_values=True, value_kinds=(LowRank, Float32Values))

    def init(self, layout: Layout) -> Arrays:
        """Draw the same random Q on every client."""
        return {
            f"right{index}": np.random.default_rng([index, columns]).normal(size=(columns, self.rank))
            for index, (rows, columns) in enumerate(map(matrix_shape, layout.parameters))
            if self.rank * (rows + columns) < rows * columns
        }

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        values, after = list[Values](), dict(state)
        for index, tensor in enumerate(layout.parameters):
            key, layer = f"right{index}", update[tensor.span]
            if key not in state:
                values.append(Float32Values(layer.copy()))
                continue
            factors, after[key] = _factors(layer.reshape(matrix_shape(tensor)), state[key])
            values.append(factors)
        return Compressed(Payload(layout, Dense(layout.size), tuple(values)), after)


@register("powersgd", version=1)
def powersgd(rank: Count = 4) -> Method:
    """Each matrix as the product of two thin ones, as float32, with error feedback (Vogels 2019).

    Args:
        rank: of the product: how many columns the thin matrices have.
    """
    return Method(PowerIteration(rank), feedback="full")


def _factors(matrix: Vector, right: NDArray[np.float64]) -> tuple[LowRank, NDArray[np.float64]]:
    """Return both factors, and the right one of the next round: a column along which nothing was found stays."""
    scale = float(np.abs(matrix).max(initial=0)) or 1.0
    whole = matrix.astype(np.float64) / scale
    left, _ = np.linalg.qr(whole @ right)
    found = whole.T @ left
    norms = np.linalg.norm(found, axis=0)
    following = np.where(norms > 0, found / np.where(norms > 0, norms, 1), right)
    most = LARGEST_FLOAT32 / (2 * left.shape[1])
    return LowRank(left.astype(np.float32), (scale * found).clip(-most, most).astype(np.float32)), following
