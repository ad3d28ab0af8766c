"""A robust mean for rounds with malicious clients: clip norms, down-weight near duplicates, drop opposed updates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.aggregate.rounds import BufferedRound, BufferedUpdate, Float64s, aggregate, weighted_sum
from fedsparq.compiled import jit
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import NonNegative, Positive, component
from fedsparq.payload import Payload
from fedsparq.payload.kernels import random_bits
from fedsparq.protocols import Aggregate, AggregatorTraits, Weighting

_WIDTH = 1 << 14
"""The length of a sketch. Cosines of longer updates are exact to about 1 / sqrt of it."""
_SIMILARITY_SIGMAS = 4.0
"""Duplicates: the cosine of a pair is this many (robust) standard deviations above the median."""
_DISAGREEMENT_SIGMAS = 2.0
"""Opposition: the mean cosine with the others is this many standard deviations below the median, and negative."""
_DUPLICATE_COSINE = 0.95
"""Above this cosine, two updates are duplicates whatever the others are."""
_MAX_WEIGHT_RATIO = 3.0
"""The largest weight of a client, as a multiple of the median weight."""
_MIN_CLIENTS = 5
"""Fewer updates are only clipped: what is usual cannot be estimated."""


@component
class Robust:
    """The mean of clipped updates, in which near duplicates share one weight and opposed updates have none.

    1. Clipping: an update longer than the radius is scaled down to it, as by centered clipping around zero.
    2. Duplicates: updates whose cosine is far above the round's usual one share one weight. Sparse updates of honest
       clients are nearly orthogonal; those of a coalition with one target are not, and noise to hide it uses up
       their norm.
    3. Opposition: an update whose mean cosine with all but its duplicates is negative, and far below the others', has
       no weight.

    Cosines come from sketches that are built as updates arrive, so that each update is read twice. f attackers of n
    move the sum by at most f radius, whatever they know.

    Args:
        radius: 0 for a multiple of the median of the round's norms.
        reach: that multiple.
        weighting: by examples or uniform; None for that of the method whose aggregator it replaces. No client weighs
            more than three times the median.
    """

    radius: NonNegative = 0.0
    reach: Positive = 2.0
    weighting: Weighting | None = None

    @property
    def traits(self) -> AggregatorTraits:
        return AggregatorTraits(weighting=self.weighting)

    def init(self, layout: Layout) -> Arrays:
        return {"rounds": np.zeros(1, np.int64)}

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[BufferedUpdate]:
        seed = int(state["rounds"][0])
        return BufferedRound(self._aggregate, layout, state, lambda u: BufferedUpdate.of(u, sketch(u.payload, seed)))

    def _aggregate(self, held: Sequence[BufferedUpdate], layout: Layout, state: Arrays) -> Aggregate:
        norms = np.array([each.norm for each in held])
        lengths = np.minimum(norms, self.radius or self.reach * np.median(norms))
        voices = similarity_weights(np.stack([each.summary for each in held]), norms, lengths)
        clipped = np.divide(lengths, norms, out=np.ones_like(norms), where=norms > 0)
        claimed = np.array([each.weight for each in held])
        own = voices * np.minimum(claimed, _MAX_WEIGHT_RATIO * np.median(claimed))
        weights = clipped * own / own.sum()
        mean, counted = weighted_sum(held, weights, layout), clipped * voices
        after: Arrays = {"rounds": state["rounds"] + 1}
        return aggregate(held, mean, weights, after, counted=counted, plain=bool((counted == 1).all()))


def sketch(payload: Payload, seed: int) -> Vector:
    """Return a count sketch, with about the same inner products; for a small model, the update itself."""
    if payload.layout.size <= _WIDTH:
        return payload.dense()
    short = np.zeros(_WIDTH, np.float32)
    for layer in payload.layers():
        add_to_sketch(layer.indices, layer.values.decode(), np.uint64(seed), short)
    return short


def similarity_weights(sketches: NDArray[np.float32], norms: Float64s, lengths: Float64s) -> Float64s:
    """Return a weight from 0 to 1 for each update: low for near duplicates, 0 for updates opposed to the others."""
    count = len(norms)
    if count < _MIN_CLIENTS:
        return np.ones(count)
    inverse = np.divide(1, norms, out=np.zeros_like(norms), where=norms > 0)
    unit = sketches.astype(np.float64) * inverse[:, None]
    cosines = np.clip(unit @ unit.T, -1, 1)
    usual, spread = _median_and_spread(cosines[np.triu_indices(count, 1)])
    limit = min(usual + _SIMILARITY_SIGMAS * spread, _DUPLICATE_COSINE)
    alike = np.clip((cosines - limit) / (1 - limit), 0, 1)
    np.fill_diagonal(alike, 1)
    voices: Float64s = 1 / alike.sum(axis=1)
    others = (1 - alike) * (voices * lengths)
    agreement = (others * cosines).sum(axis=1) / np.maximum(others.sum(axis=1), 1e-30)
    usual, spread = _median_and_spread(agreement)
    backwards = (agreement < 0) & (agreement < usual - _DISAGREEMENT_SIGMAS * spread)
    return np.where(backwards, 0.0, voices)


def _median_and_spread(values: Float64s) -> tuple[float, float]:
    """Return the median, and a standard deviation from the median distance to it."""
    median = float(np.median(values))
    return median, 1.4826 * float(np.median(np.abs(values - median)))


@jit
def add_to_sketch(indices: Any, values: Any, seed: Any, short: Any) -> None:
    """Add each value, with a random sign, where a hash of its index points."""
    mask = np.uint64(short.size - 1)
    for n in range(indices.size):
        bits = random_bits(seed, indices[n])
        place = bits & mask
        if bits >> np.uint64(63):
            short[place] -= values[n]
        else:
            short[place] += values[n]
