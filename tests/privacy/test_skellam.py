"""Skellam noise: its law, and its accountant against exact divergences of small cases."""

import math

import numpy as np
import pytest
from scipy.stats import chi2
from scipy.stats import skellam as law

from fedsparq.errors import OptionError
from fedsparq.privacy.gaussian import epsilon_of
from fedsparq.privacy.skellam import _divergence, bits_for, skellam, skellam_epsilon, skellam_variance


def test_the_noise_has_its_law_and_sums_have_it_too() -> None:
    rng = np.random.default_rng(0)
    total = sum(skellam(1.5, 200_000, rng) for _ in range(4))
    values = np.arange(-6, 7)
    expected = 200_000 * law.pmf(values, 3, 3)
    seen = np.array([(total == value).sum() for value in values])
    assert chi2.sf(float(((seen - expected) ** 2 / expected).sum()), len(values)) > 1e-4


@pytest.mark.parametrize("variance", [4.0, 30.0, 400.0])
@pytest.mark.parametrize("shift", [1, 3])
@pytest.mark.parametrize("order", [2, 5, 16])
def test_the_divergence_is_an_upper_bound_of_the_exact_one(variance: float, shift: int, order: int) -> None:
    wide = int(20 * math.sqrt(variance)) + 60 + shift * order
    values = np.arange(-wide, wide)
    p, q = law.logpmf(values - shift, variance / 2, variance / 2), law.logpmf(values, variance / 2, variance / 2)
    seen = np.isfinite(p) & np.isfinite(q)
    exact = np.logaddexp.reduce(order * p[seen] - (order - 1) * q[seen]) / (order - 1)
    bound = _divergence(order, variance, shift, shift)
    assert exact <= bound * (1 + 1e-9)
    if variance == 400.0:
        assert exact == pytest.approx(bound, rel=0.05)


def test_with_much_noise_it_costs_what_gaussian_noise_costs() -> None:
    skellams = skellam_epsilon(1e-5, 1e8 * 4, l2=1e4, l1=1e4, rounds=10)
    gaussian = epsilon_of(1e-5, 2.0, 10)
    assert gaussian < skellams < 1.2 * gaussian


def test_the_variance_found_keeps_the_promise() -> None:
    variance = skellam_variance(4.0, 1e-5, l2=100.0, l1=1000.0, rounds=25)
    assert skellam_epsilon(1e-5, variance, 100.0, 1000.0, 25) <= 4.0
    assert skellam_epsilon(1e-5, 0.99 * variance, 100.0, 1000.0, 25) > 4.0
    with pytest.raises(OptionError, match="delta"):
        skellam_epsilon(0.0, variance, 100.0, 1000.0, 25)
    assert skellam_epsilon(1e-5, variance, 100.0, 1000.0, 0) == 0.0


def test_bits_leave_room_for_the_noise() -> None:
    for clients, top, variance in [(3, 1, 0.0), (100, 7, 50.0), (1000, 127, 1e6)]:
        bits, reach = bits_for(clients, top, variance), 2 * (clients * top + 8 * math.sqrt(variance)) + 1
        assert 2 ** (bits - 1) <= reach < 2**bits


@pytest.mark.xfail(strict=True, reason="the noise is numpy's, from a seed of 256 bits")
def test_the_noise_is_not_drawn_by_a_generator_that_a_state_can_be_read_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedsparq.privacy import skellam as module

    monkeypatch.delattr(np.random, "default_rng")
    assert module.skellam(4.0, 10).shape == (10,)  # type: ignore[call-arg]
