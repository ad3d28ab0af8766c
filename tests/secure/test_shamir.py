"""Shamir's sharing: any threshold of shares gives the secret; fewer are consistent with every secret."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsparq.errors import SecureSumError
from fedsparq.secure.shamir import PRIME, SHARE, join, split


def test_the_prime_is_the_first_above_every_secret() -> None:
    def is_prime(n: int) -> bool:
        odd, twos = n - 1, 0
        while odd % 2 == 0:
            odd, twos = odd // 2, twos + 1
        for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41):
            x = pow(base, odd, n)
            if x in (1, n - 1):
                continue
            for _ in range(twos - 1):
                x = x * x % n
                if x == n - 1:
                    break
            else:
                return False
        return True

    assert is_prime(PRIME)
    assert not any(is_prime(n) for n in range(2**256 + 1, PRIME, 2))


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3))
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, threshold: int, more: int) -> None:
    shares = split(secret, threshold, [7 * point + 1 for point in range(threshold + more)])
    assert all(len(share) == SHARE for share in shares.values())
    for chosen in combinations(shares.items(), threshold):
        assert join(dict(chosen)) == secret


def test_too_few_shares_fit_every_secret() -> None:
    """One share of a threshold of two: for each other secret there is a line through it."""
    share = int.from_bytes(split(bytes(32), 2, [1, 2])[1], "big")
    for other in (1, 2**255, 2**256 - 1):
        slope = (share - other) % PRIME
        line = {1: share.to_bytes(SHARE, "big"), 2: ((other + 2 * slope) % PRIME).to_bytes(SHARE, "big")}
        assert join(line) == other.to_bytes(32, "big")


@pytest.mark.parametrize(("threshold", "points"), [(0, [1]), (3, [1, 2]), (1, [0]), (2, [1, 1])])
def test_impossible_sharings_are_refused(threshold: int, points: list[int]) -> None:
    with pytest.raises(SecureSumError):
        split(bytes(32), threshold, points)


def test_what_is_no_share_is_refused() -> None:
    with pytest.raises(SecureSumError):
        join({1: bytes([255]) * SHARE})
