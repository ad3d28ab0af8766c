"""Multi-Krum (Blanchard 2017), on updates cut to one length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from fedsparq.aggregate.rounds import BufferedRound, BufferedUpdate, Float64s, aggregate, weighted_sum
from fedsparq.compiled import jit
from fedsparq.layout import Arrays, Layout
from fedsparq.options import component
from fedsparq.protocols import Aggregate, Stateless

_TILE = 8
"""So many updates at a time are made dense, to be multiplied with all others."""

Hostile = Annotated[float, Field(ge=0, lt=0.5)]


@component
class MultiKrum(Stateless):
    """The mean of the updates that lie closest to their neighbours; the others do not count.

    Longer updates than the median are first cut to it: a client that was not chosen has more to send in the next round,
    and would else be chosen less and less.

    Args:
        hostile: the share of the clients, at most, that are: as many are left out.
    """

    hostile: Hostile = 0.2

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[BufferedUpdate]:
        return BufferedRound(self._aggregate, layout, state, BufferedUpdate.of)

    def _aggregate(self, held: Sequence[BufferedUpdate], layout: Layout, state: Arrays) -> Aggregate:
        count, norms = len(held), np.array([each.norm for each in held])
        kept = np.minimum(1.0, np.median(norms) / np.where(norms > 0, norms, 1)) if self.hostile else np.ones(count)
        left_out = min(int(np.ceil(self.hostile * count)), max(count - 1, 0))
        chosen = np.arange(count)
        if left_out:
            products = inner_products(held, layout) * np.outer(kept, kept)
            squares = np.diagonal(products)
            apart = np.maximum(squares[:, None] + squares[None, :] - 2 * products, 0)
            nearest = np.sort(apart, axis=1)[:, 1 : max(count - left_out - 1, 2)]
            chosen = np.sort(np.argsort(nearest.sum(axis=1), kind="stable")[: count - left_out])
        weights: Float64s = np.zeros(count)
        weights[chosen] = kept[chosen] / len(chosen)
        return aggregate(held, weighted_sum(held, weights, layout), weights, state, plain=not self.hostile)


def inner_products(held: Sequence[BufferedUpdate], layout: Layout) -> Float64s:
    """Return the inner products of all pairs of updates, some made dense at a time."""
    count = len(held)
    products: Float64s = np.empty((count, count))
    tile = np.zeros((layout.size, _TILE), np.float32)
    for start in range(0, count, _TILE):
        rows = range(start, min(start + _TILE, count))
        tile[:] = 0
        for row in rows:
            for layer in (payload := held[row].payload()).layers():
                tile[layer.indices, row - start] = layer.values.decode()
        for column in range(start, count):
            found = np.zeros(_TILE)
            payload = held[column].payload()
            for layer in payload.layers():
                dot_tile(tile, layer.indices, layer.values.decode(), found)
            for row in rows:
                products[row, column] = products[column, row] = found[row - start]
    return products


@jit
def dot_tile(tile: Any, indices: Any, values: Any, out: Any) -> None:
    """Compute out += tile[indices].T @ values, in float64."""
    for n in range(indices.size):
        value = np.float64(values[n])
        for row in range(out.size):
            out[row] += np.float64(tile[indices[n], row]) * value
