"""Centered clipping (Karimireddy 2021) with bucketing (Karimireddy 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from fedsparq.aggregate.rounds import BufferedRound, BufferedUpdate, Float64s, aggregate
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.options import Count, NonNegative, component
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregate

Center = Literal["last", "zero"]


@component
class CenteredClipping:
    """No update moves the mean farther than a radius: v + mean of min(1, radius / |u - v|) (u - v).

    Args:
        radius: 0 for the median of the round's distances |u - v|.
        bucket: so many updates, drawn at random, are averaged before they are clipped. f attackers of n then move the
            mean by at most bucket f radius / n.
        center: v, the last round's mean or zero.
    """

    radius: NonNegative = 0.0
    bucket: Count = 2
    center: Center = "last"

    def init(self, layout: Layout) -> Arrays:
        rounds: Arrays = {"rounds": np.zeros(1, np.int64)}
        return rounds | ({"center": np.zeros(layout.size, np.float32)} if self.center == "last" else {})

    def open(self, layout: Layout, state: Arrays) -> BufferedRound[BufferedUpdate]:
        center = state.get("center")
        return BufferedRound(
            self._aggregate,
            layout,
            state,
            lambda u: BufferedUpdate.of(u, 0.0 if center is None else u.payload.dot(center)),
        )

    def _aggregate(self, held: Sequence[BufferedUpdate], layout: Layout, state: Arrays) -> Aggregate:
        """Read each update once, and add it up: unchanged within the expected radius, by its direction beyond. Read
        again the buckets that the radius, once it is known, puts on the other side."""
        center, count = state.get("center"), len(held)
        buckets = [
            [held[at] for at in bucket] for bucket in _random_buckets(count, self.bucket, int(state["rounds"][0]))
        ]
        length = float(np.dot(center, center)) if center is not None else 0.0
        expected = self.radius or float(np.median([_distance(bucket, 0.0, length) for bucket in buckets]))
        near, far = np.zeros(layout.size, np.float32), np.zeros(layout.size, np.float32)
        scratch = np.zeros(layout.size if self.bucket > 1 else 0, np.float32)
        distances: Float64s = np.empty(len(buckets))
        for number, bucket in enumerate(buckets):
            payloads = [each.payload() for each in bucket]
            distances[number] = distance = _distance(bucket, _products(payloads, scratch), length)
            for payload in payloads:
                if distance > expected:
                    payload.add_to(far, 1 / (count * distance))
                else:
                    payload.add_to(near, 1 / count)
        radius = self.radius or float(np.median(distances))
        mean = near + np.float32(radius) * far if (distances > expected).any() else near
        kept: dict[int, float] = {}
        for bucket, distance in zip(buckets, distances.tolist(), strict=True):
            share = min(1.0, radius / distance) if distance else 1.0
            kept |= dict.fromkeys((each.client for each in bucket), share)
            added = radius / distance if distance > expected else 1.0
            for each in bucket if added != share else ():
                each.payload().add_to(mean, (share - added) / count)
        shares: Float64s = np.array([kept[each.client] for each in held])
        after: Arrays = {"rounds": state["rounds"] + 1}
        if center is not None:
            mean += np.float32(1 - shares.mean()) * center
            after["center"] = mean
        return aggregate(held, mean, shares / count, after, plain=bool((shares == 1).all()))


def clipped_mean(radius: NonNegative = 1.0) -> CenteredClipping:
    """Clip each update to the radius (0: the round's median norm), then average: SparseFed's clip, by the server.

    What is cut stays with clients that have error feedback. Centered clipping around zero.
    """
    return CenteredClipping(radius, 1, "zero")


def _random_buckets(count: int, size: int, number: int) -> Iterator[list[int]]:
    """Draw buckets of `size`, the last one perhaps smaller, at random by the round."""
    order = np.random.default_rng([number, 10]).permutation(count) if size > 1 else np.arange(count)
    for start in range(0, count, size):
        yield [int(at) for at in order[start : start + size]]


def _products(payloads: Sequence[Payload], scratch: Vector) -> float:
    """Return the sum of inner products of each pair. `scratch` is zero, and is so again afterwards."""
    total = 0.0
    for number, payload in enumerate(payloads[1:]):
        payloads[number].add_to(scratch)
        total += payload.dot(scratch)
    if len(payloads) == 2:
        payloads[0].add_to(scratch, -1.0)  # to exactly zero, and faster than all of it
    elif len(payloads) > 2:
        scratch.fill(0)
    return total


def _distance(bucket: Sequence[BufferedUpdate], products: float, length: float) -> float:
    """Return the distance of the mean of some updates from the center, whose squared norm is `length`."""
    size = len(bucket)
    square = sum(held.norm**2 for held in bucket) + 2 * products
    return float(np.sqrt(max(square / size**2 - 2 * sum(held.summary for held in bucket) / size + length, 0.0)))
