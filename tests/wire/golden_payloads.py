"""One small payload for each way to write places and values."""

from __future__ import annotations

import numpy as np

from fedsparq import Exact, Layout, Payload
from fedsparq.compress.payload import Everything, Floats, Halves, Listed, Magnitudes, Seeded, Steps

TWO = {"w": (2, 3), "b": (2,)}
BATCH_NORM = {
    "w": (2,),
    "bn.running_mean": np.zeros(2, np.float32),
    "bn.num_batches_tracked": np.zeros((), np.int64),
}


def _listed(*places: int) -> Listed:
    return Listed(np.array(places, np.uint32))


def _floats(*values: float) -> Floats:
    return Floats(np.array(values, np.float32))


def _halves(*values: float) -> Halves:
    return Halves(np.array(values, np.float16).view(np.uint16))


def _steps(step: float, *levels: int) -> Steps:
    return Steps(np.float32(step), np.array(levels, np.int16))


PAYLOADS = {
    "nothing, float16": Payload(Layout.of(TWO), _listed(), (_halves(), _halves())),
    "everything, float32": Payload(Layout.of(TWO), Everything(8), (_floats(1, -0.0, 3, 1e-45, 5, 6), _floats(7, 8))),
    "bitmap, float16": Payload(Layout.of(TWO), _listed(1, 4, 5, 6, 7), (_halves(1.5, -0.25, 6e-8), _halves(1, -65504))),
    "bitmap in a frame, float16 in frames": Payload(
        Layout.of({"w": (4000,)}), _listed(*range(0, 4000, 2)), (_halves(*[0.5, 0.5, -1.0, 0.5] * 500),)
    ),
    "gaps, float16": Payload(
        Layout.of({"w": (600_000,)}), _listed(*range(10), 599_999), (_halves(*[1.25] * 10, 1 / 3),)
    ),
    "gaps in a frame, float16 in frames": Payload(
        Layout.of({"w": (600_000,)}), _listed(*range(29), 599_999), (_halves(*[1.25] * 29, 1 / 3),)
    ),
    "rice, float32": Payload(Layout.of({"w": (1000,)}), _listed(0, 99, 250, 251, 999), (_floats(1, 2, 3, 4, 5),)),
    "seeded, float32": Payload(Layout.of(TWO), Seeded(8, 3, 2**63 + 5), (_floats(1, 2), _floats(3))),
    "steps": Payload(Layout.of(TWO), _listed(0, 2, 3, 7), (_steps(0.125, 3, -1, 5), _steps(2, -1))),
    "steps of two bytes": Payload(
        Layout.of(TWO), Everything(8), (_steps(1e-3, 1, -2, 300, -301, 256, 257), _steps(1, 1, 1))
    ),
    "steps in a frame": Payload(Layout.of({"w": (300,)}), Everything(300), (_steps(0.5, *[1, 1, 1, 1, -9, 1] * 50),)),
    "magnitudes": Payload(
        Layout.of(TWO),
        _listed(0, 1, 5, 6),
        (
            Magnitudes(np.array([0.5, 2], np.float32), np.array([1, -2, 2], np.int16)),
            Magnitudes(np.array([3], np.float32), np.array([-1], np.int16)),
        ),
    ),
    "an exact part": Payload(
        Layout.of(BATCH_NORM),
        Everything(2),
        (_halves(1, 2),),
        Exact(np.array([0.5, -1], np.float32), np.array([7], np.int64)),
    ),
}
