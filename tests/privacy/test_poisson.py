"""The accountant with Poisson sampling against golden values, the closed form without sampling, and an integral."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from fedsparq.errors import OptionError
from fedsparq.privacy.gaussian import epsilon_of

pytest.importorskip("dp_accounting", reason="the extra `privacy`")

from fedsparq.privacy.poisson import poisson_epsilon, poisson_noise


def test_golden_value() -> None:
    assert poisson_epsilon(1e-3, noise=1.0, rate=0.1, rounds=50) == pytest.approx(3.314, abs=5e-4)


def test_the_looser_accountant_says_more() -> None:
    """Renyi divergences, of the same library: the other golden value."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, rdp

    accountant = rdp.RdpAccountant(orders=[1 + n / 10 for n in range(10, 100)])
    accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 50)
    assert accountant.get_epsilon(1e-3) == pytest.approx(4.021, abs=5e-4)
    assert poisson_epsilon(1e-3, 1.0, 0.1, 50) < accountant.get_epsilon(1e-3)


@pytest.mark.parametrize(("noise", "rounds", "delta"), [(1.0, 1, 1e-5), (2.0, 8, 1e-3), (4.0, 8, 1e-3)])
def test_if_all_take_part_it_is_the_closed_form(noise: float, rounds: int, delta: float) -> None:
    exact = epsilon_of(delta, noise, rounds)
    assert exact <= poisson_epsilon(delta, noise, 1.0, rounds) <= exact + 0.005 * rounds


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("noise", [0.8, 2.0])
def test_one_round_is_the_hockey_stick_divergence_of_the_mixture(rate: float, noise: float) -> None:
    """With the client N(rate) mixed in, and without it: the larger of both directions, integrated numerically."""
    epsilon = poisson_epsilon(1e-5, noise, rate, 1)
    grid = np.linspace(-30 * noise, 1 + 30 * noise, 400_001)
    without = norm.pdf(grid, 0, noise)
    mixed = (1 - rate) * without + rate * norm.pdf(grid, 1, noise)

    def delta(bound: float) -> float:
        ways = ((mixed, without), (without, mixed))
        return max(float(np.trapezoid(np.maximum(p - math.exp(bound) * q, 0), grid)) for p, q in ways)

    assert delta(epsilon) <= 1e-5 * (1 + 1e-6)
    assert delta(epsilon - 0.005) > 1e-5


def test_sampling_is_worth_much_and_the_noise_found_keeps_the_promise() -> None:
    noise = poisson_noise(4.0, 1e-5, 0.1, 30)
    assert poisson_epsilon(1e-5, noise, 0.1, 30) <= 4.0 < poisson_epsilon(1e-5, 0.998 * noise, 0.1, 30)
    assert epsilon_of(1e-5, noise, 30) > 5 * 4.0


@pytest.mark.parametrize("wrong", [{"delta": 0.0}, {"rate": 0.0}, {"rate": 1.1}])
def test_impossible_numbers_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        poisson_epsilon(**({"delta": 1e-5, "noise": 1.0, "rate": 0.1, "rounds": 1} | wrong))
    with pytest.raises(OptionError, match="epsilon"):
        poisson_noise(0.0, 1e-5, 0.1, 1)


def test_no_round_costs_nothing_and_no_noise_everything() -> None:
    assert poisson_epsilon(1e-5, 1.0, 0.1, 0) == 0.0
    assert poisson_epsilon(1e-5, 0.0, 0.1, 1) == math.inf
