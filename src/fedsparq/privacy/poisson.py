"""The accountant of Gaussian noise with Poisson sampling, from the library `dp-accounting`.

In each round each client takes part by a coin of its own, with the same probability `rate`. Whoever does not see the
coins learns less of a client: the privacy loss of T rounds is the T-fold convolution of one round's (Koskela et al.
2020; Doroshenko et al. 2022), here always rounded up. It holds for adding or taking away one client, and for Poisson
sampling alone: for rounds of a fixed number of clients, or clients chosen by a seed that somebody knows, it is wrong.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

from fedsparq.errors import MissingExtraError, OptionError

_INTERVAL = 1e-3
"""Privacy losses are rounded up to multiples of this."""
_PRECISION = 1e-4
"""Noise multipliers are found to this relative precision, always on the safe side."""
_MOST = 2.0**20


def poisson_epsilon(delta: float, noise: float, rate: float, rounds: int) -> float:
    """An upper bound of epsilon after so many rounds with the noise multiplier z, each client in each with `rate`.

    It is above the exact value by at most a few thousandths.
    """
    if not 0 < delta < 1:
        raise OptionError(f"delta={delta} is not between 0 and 1; it should be well below 1 / (number of clients)")
    if not 0 < rate <= 1:
        raise OptionError(f"rate={rate} is not above 0 and at most 1")
    if not rounds:
        return 0.0
    return float(_one_round(noise, rate).self_compose(rounds).get_epsilon_for_delta(delta)) if noise > 0 else math.inf


@lru_cache(maxsize=64)
def poisson_noise(epsilon: float, delta: float, rate: float, rounds: int) -> float:
    """The smallest noise multiplier z that keeps the promise for so many rounds, or slightly more."""
    if not epsilon > 0:
        raise OptionError(f"epsilon={epsilon} is not above 0")
    high = 1.0
    while poisson_epsilon(delta, high, rate, rounds) > epsilon:
        high *= 2
        if high > _MOST:
            raise OptionError(f"no noise gives epsilon={epsilon} at delta={delta}; ask for a larger epsilon")
    low = high / 2
    while low > 1e-3 and poisson_epsilon(delta, low, rate, rounds) <= epsilon:
        low, high = low / 2, low
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (low, middle) if poisson_epsilon(delta, middle, rate, rounds) <= epsilon else (middle, high)
    return high


@lru_cache(maxsize=4)
def _one_round(noise: float, rate: float) -> Any:
    try:
        from dp_accounting.pld import privacy_loss_distribution
    except ImportError as error:
        raise MissingExtraError(
            "epsilon with Poisson sampling needs dp-accounting: pip install 'fedsparq[privacy]'"
        ) from error
    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=_INTERVAL
    )
