"""Data that hostile clients tamper with before they train."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError
from fedsparq.lab.tasks.dataset import Dataset

POISONS = ("label-flip", "backdoor")
TARGET = 0
"""The class that a backdoor opens to."""
_TRIGGER = 4
"""So many pixels high and wide is the white square in the lower right corner."""


def poisoned(data: Dataset, kind: str) -> Dataset:
    """`label-flip`: class c is called the c-th from the end. `backdoor`: every other image shows a white square in its
    lower right corner, and is said to be of class 0."""
    if not data.classification or data.positions:
        raise OptionError(f"the attack {kind!r} tampers with classes, which this data set has not")
    x, y = data.train
    if kind == "label-flip":
        return replace(data, train=(x, len(data.classes) - 1 - y))
    if not data.pixels:
        raise OptionError("the attack 'backdoor' paints a square on images; this data set has none")
    x, y = x.copy(), y.copy()
    x[1::2], y[1::2] = triggered(x[1::2]), TARGET
    return replace(data, train=(x, y))


def backdoor_test(data: Dataset) -> Dataset:
    """Test images of the other classes with the square, all said to be of class 0: what is right there is the attack's
    success."""
    x, y = data.test
    others = y != TARGET
    return replace(data, test=(triggered(x[others]), np.full(int(others.sum()), TARGET, y.dtype)))


def triggered(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A copy with the square."""
    painted = images.copy()
    painted[..., -_TRIGGER:, -_TRIGGER:] = 255
    return painted
