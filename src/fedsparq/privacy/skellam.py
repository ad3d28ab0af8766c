"""The accountant of Skellam noise: whole numbers that clients add before their sum is masked (Agarwal et al. 2021).

A Skellam variable of variance mu is the difference of two Poisson variables of mean mu / 2 each; sums of them are again
Skellam, their variances added up. With L2 sensitivity D2 and L1 sensitivity D1 of the whole numbers, a round has Renyi
divergence

    RDP(a) <= a D2^2 / (2 mu) + min(((2 a - 1) D2^2 + 6 D1) / (4 mu^2), 3 D1 / (2 mu))

at every whole order a above 1. Rounds add up; the best order gives epsilon.
"""

from __future__ import annotations

import math
import secrets
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import OptionError

MAX_VARIANCE = 2.0**36
_ORDERS = (*range(2, 64), *(round(64 * 1.15**n) for n in range(60)))


def skellam(variance: float, count: int) -> NDArray[np.int64]:
    """Draw `count` independent whole numbers of this variance and mean 0, from the system's random source.

    Each is found by 64 random bits in a table of the law, rounded to 2^-64; no number of the table is impossible.
    """
    table = _cumulated(variance)
    words = np.frombuffer(secrets.token_bytes(8 * count), np.uint64)
    return np.searchsorted(table, words, side="right") - len(table) // 2


@lru_cache(maxsize=2)
def _cumulated(variance: float) -> NDArray[np.uint64]:
    """Return the law's distribution function, times 2^64, but for its last value, which is 2^64 itself.

    P(k) is I_k(mu) / e^mu, with the ratios of neighbouring Bessel functions from their continued fraction (Amos 1974).
    """
    if not 0 < variance <= MAX_VARIANCE:
        raise OptionError(f"variance={variance}: Skellam noise is drawn for variances above 0, up to 2^36")
    top = int(10 * math.sqrt(variance)) + 40
    ratio = variance / (top + 1 + math.hypot(top + 1, variance))
    ratios = np.empty(top)
    for order in range(top, 0, -1):
        ratio = ratios[order - 1] = 1 / (2 * order / variance + ratio)
    tail = np.concatenate([[1.0], np.cumprod(ratios)])
    side = np.maximum((tail[1:] / (2 * tail[1:].sum() + 1) * 2.0**64).astype(np.uint64), 1)
    steps = np.concatenate([side[::-1], [np.uint64(0)], side])
    steps[top] = np.uint64(2**64 - 1 - 2 * int(side.sum())) + np.uint64(1)
    return np.cumsum(steps)[:-1]


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
