"""Noise that nobody can draw again: from the system's random source."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Noise = Callable[[int], NDArray[np.float64]]
"""So many independent standard normal numbers."""


def system_noise(count: int) -> NDArray[np.float64]:
    """Draw standard normal numbers from the system's random source: each half the sum of four by Box and Muller.

    What one draw of floats could tell by its last bits, the sum of four does not (Holohan and Braghin 2021).
    """
    words = np.frombuffer(secrets.token_bytes(32 * (count + count % 2)), np.uint64) >> np.uint64(11)
    first, second = (words.astype(np.float64) + 0.5).reshape(2, -1) / 2.0**53
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * math.pi * second
    drawn = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    return np.asarray(drawn.reshape(4, -1).sum(axis=0)[:count] / 2)
