"""The accountant of Skellam noise: whole numbers that clients add before their sum is masked (Agarwal et al. 2021).

A Skellam variable of variance mu is the difference of two Poisson variables of mean mu / 2 each; sums of them are again
Skellam, their variances added up. With L2 sensitivity D2 and L1 sensitivity D1 of the whole numbers, a round has Renyi
divergence

    RDP(a) <= a D2^2 / (2 mu) + min(((2 a - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu))

at every whole order a above 1. Rounds add up; the best order gives epsilon.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError

_ORDERS = (*range(2, 64), *(round(64 * 1.15**n) for n in range(60)))


def skellam(variance: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` independent whole numbers of this variance and mean 0."""
    first, second = rng.poisson(variance / 2, (2, count))
    return np.asarray(first - second, np.int64)


def skellam_epsilon(delta: float, variance: float, l2: float, l1: float, rounds: int) -> float:
    """Epsilon after so many rounds, each with noise of this summed variance on every coordinate.

    `l2` and `l1` bound what one client moves the sum of whole numbers by.
    """
    if not 0 < delta < 1:
        raise OptionError(f"delta={delta} is not between 0 and 1")
    if not rounds:
        return 0.0
    return min(rounds * _divergence(order, variance, l2, l1) + _conversion(order, delta) for order in _ORDERS)


def skellam_variance(epsilon: float, delta: float, l2: float, l1: float, rounds: int) -> float:
    """The smallest summed variance that keeps the promise for so many rounds, or slightly more."""
    low, high = 0.0, 1.0
    while skellam_epsilon(delta, high, l2, l1, rounds) > epsilon:
        low, high = high, 2 * high
        if high > 2.0**80:
            raise OptionError(f"no noise gives epsilon={epsilon} at delta={delta}; ask for a larger epsilon")
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if skellam_epsilon(delta, middle, l2, l1, rounds) <= epsilon else (middle, high)
    return high


def bits_for(clients: int, top: int, variance: float) -> int:
    """The fewest bits in which sums of `clients` levels up to `top`, noise included, are safe from overflow:
    2^bits > 2 (n L + 8 sqrt(mu)) + 1."""
    return math.floor(math.log2(2 * (clients * top + 8 * math.sqrt(variance)) + 1)) + 1


def _divergence(order: int, variance: float, l2: float, l1: float) -> float:
    gaussian = order * l2**2 / (2 * variance)
    first = ((2 * order - 1) * l2**2 + 6 * l1) / (4 * variance**2)
    return gaussian + min(first, 3 * l1 / (2 * variance))


def _conversion(order: int, delta: float) -> float:
    """From Renyi divergence to epsilon (Canonne, Kamath and Steinke 2020)."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
