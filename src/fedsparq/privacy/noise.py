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
    """Standard normal numbers from the system's random source, by Box and Muller."""
    words = np.frombuffer(secrets.token_bytes(8 * (count + count % 2)), np.uint64) >> np.uint64(11)
    first, second = (words.astype(np.float64) + 0.5).reshape(2, -1) / 2.0**53
    radius, angle = np.sqrt(-2 * np.log(first)), 2 * math.pi * second
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
