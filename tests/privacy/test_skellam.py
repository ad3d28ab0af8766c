"""Skellam noise: its law, and its accountant against exact divergences of small cases."""

import math

import numpy as np
import pytest
from scipy.stats import chi2
from scipy.stats import skellam as law

from fedsparq.errors import OptionError
from fedsparq.privacy.gaussian import epsilon_of
from fedsparq.privacy.skellam import _cumulated, _divergence, bits_for, skellam, skellam_epsilon, skellam_variance


@pytest.mark.parametrize("variance", [1e-3, 0.7, 3.0, 1e4, 3e5])
def test_the_table_is_the_law(variance: float) -> None:
    table = _cumulated(variance).astype(np.longdouble) / 2.0**64
    values = np.arange(len(table)) - len(table) // 2
    seen, expected = np.diff(table).astype(float), law.pmf(values[1:], variance / 2, variance / 2)
    body = expected > 1e-12  # scipy's own is off in the tails
    np.testing.assert_allclose(seen[body], expected[body], rtol=1e-6)
    np.testing.assert_allclose(seen, seen[::-1], atol=2.0**-62)
    assert float((seen * values[1:] ** 2).sum()) == pytest.approx(variance, rel=1e-8)
    assert table[0] <= 2.0**-60  # what is cut off


def test_the_noise_has_its_law_and_sums_have_it_too() -> None:
    total = sum(skellam(1.5, 200_000) for _ in range(4))
    values = np.arange(-6, 7)
    expected = 200_000 * law.pmf(values, 3, 3)
    seen = np.array([(total == value).sum() for value in values])
    assert chi2.sf(float(((seen - expected) ** 2 / expected).sum()), len(values)) > 1e-6


def test_the_noise_is_of_the_systems_random_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(np.random, "default_rng")
    assert skellam(4.0, 10).shape == (10,)
    monkeypatch.setattr("secrets.token_bytes", lambda count: bytes([0x80]) * count)
    assert not skellam(4.0, 10).any()  # a little above the middle
    with pytest.raises(OptionError):
        skellam(2.0**37, 1)


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
