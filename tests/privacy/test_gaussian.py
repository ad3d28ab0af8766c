"""The Gaussian accountant against golden values, numerical integration, and Monte Carlo."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedsparq.errors import OptionError
from fedsparq.privacy.gaussian import delta_of, epsilon_of, noise_for


@pytest.mark.parametrize(
    ("noise", "rounds", "delta", "epsilon"),
    [(1, 1, 1e-5, 4.3772), (1, 25, 1e-5, 33.1037), (2, 8, 1e-3, 4.8453), (4, 8, 1e-3, 2.0533)],
)
def test_golden_values(noise: float, rounds: int, delta: float, epsilon: float) -> None:
    assert epsilon_of(delta, noise, rounds) == pytest.approx(epsilon, abs=5e-5)
    assert noise_for(epsilon_of(delta, noise, rounds), delta, rounds) == pytest.approx(noise, rel=1e-9)


@given(st.floats(0.01, 8), st.floats(0.2, 20), st.integers(1, 200))
def test_delta_is_the_hockey_stick_divergence(epsilon: float, noise: float, rounds: int) -> None:
    """Of N(R, R z^2) from N(0, R z^2): the integral of the density's excess over e^epsilon times the other's."""
    mu = math.sqrt(rounds) / noise
    edge = epsilon / mu + mu / 2  # where the densities' ratio is e^epsilon
    grid = np.linspace(edge, max(edge, mu) + 12, 100_001)
    excess = norm.pdf(grid, mu) - np.exp(epsilon) * norm.pdf(grid)
    assert delta_of(epsilon, noise, rounds) == pytest.approx(float(np.trapezoid(excess, grid)), rel=1e-4, abs=1e-10)


def test_far_tails_neither_overflow_nor_vanish() -> None:
    assert epsilon_of(1e-5, 0.01, 100) == pytest.approx(504_256, rel=1e-3)
    assert delta_of(1000.0, 1.0, 1) == 0.0
    assert epsilon_of(1e-5, 1.0, 0) == 0.0
    assert epsilon_of(1e-5, 0.0, 1) == math.inf


def test_the_noise_found_is_never_too_small() -> None:
    for epsilon in (0.1, 1.0, 4.0, 30.0):
        assert epsilon_of(1e-5, noise_for(epsilon, 1e-5, 40), 40) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_an_impossible_delta_is_refused(delta: float) -> None:
    with pytest.raises(OptionError, match="delta"):
        epsilon_of(delta, 1.0, 1)


def test_an_impossible_epsilon_is_refused() -> None:
    with pytest.raises(OptionError, match="epsilon"):
        noise_for(0.0, 1e-5, 1)
