"""The accountant of the Gaussian mechanism, in closed form (Dong, Roth and Su 2022; Balle and Wang 2018).

A client is in at most R rounds, and each round's sum moves by at most C when the client is taken away. With noise of
standard deviation z C on every coordinate, all R rounds together are one Gaussian mechanism with
mu = sqrt(R) / z, for which

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

in closed form. No amplification by sampling is claimed.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from fedsparq.errors import OptionError

_TINY = 1e-12
"""Epsilon and noise multipliers are found to this relative precision, always on the safe side."""


def delta_of(epsilon: float, noise: float, rounds: int) -> float:
    """The smallest delta for this epsilon, after so many rounds with this noise multiplier z."""
    if not rounds:
        return 0.0
    mu = math.sqrt(rounds) / noise
    first = _phi(mu / 2 - epsilon / mu)
    log_second = epsilon + _log_phi(-mu / 2 - epsilon / mu)
    return max(0.0, first - math.exp(log_second)) if log_second < 0 else 0.0


def epsilon_of(delta: float, noise: float, rounds: int) -> float:
    """The smallest epsilon for this delta, after so many rounds with this noise multiplier z.

    >>> round(epsilon_of(1e-5, noise=1.0, rounds=1), 4)
    4.3772
    >>> round(epsilon_of(1e-3, noise=4.0, rounds=8), 4)
    2.0533
    """
    _check(delta)
    if not rounds:
        return 0.0
    if not noise > 0:
        return math.inf
    return _smallest(lambda epsilon: delta_of(epsilon, noise, rounds) <= delta)


def noise_for(epsilon: float, delta: float, rounds: int) -> float:
    """The smallest noise multiplier z that keeps the promise for so many rounds.

    >>> round(noise_for(4.3772, 1e-5, rounds=1), 3)
    1.0
    """
    _check(delta)
    if not epsilon > 0:
        raise OptionError(f"epsilon={epsilon} is not above 0")
    return _smallest(lambda noise: noise > 0 and delta_of(epsilon, noise, rounds) <= delta)


def _check(delta: float) -> None:
    if not 0 < delta < 1:
        raise OptionError(f"delta={delta} is not between 0 and 1; it should be well below 1 / (number of clients)")


def _smallest(holds: Callable[[float], bool]) -> float:
    """The smallest number from which on a condition holds, or slightly more."""
    high = 1.0
    while not holds(high):
        high *= 2
    low = 0.0
    while high - low > _TINY * high:
        middle = (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _phi(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def _log_phi(x: float) -> float:
    """log Phi(x), also where Phi(x) is below the smallest float."""
    if x > -30:
        return math.log(_phi(x))
    square = x * x
    series = 1 - 1 / square + 3 / square**2 - 15 / square**3 + 105 / square**4
    return -square / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)
