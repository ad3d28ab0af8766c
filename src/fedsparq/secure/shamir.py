"""Shamir's secret sharing of 32 bytes: any `threshold` shares give the secret, fewer say nothing of it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from fedsparq.errors import SecureSumError

PRIME = 2**256 + 297
"""The smallest prime above every secret."""
SHARE = 33
"""The bytes of a share."""


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """A share for each point; points are distinct and above 0."""
    if len(secret) != 32 or not 1 <= threshold <= len(points) or len(set(points)) != len(points) or min(points) < 1:
        raise SecureSumError(f"32 bytes cannot be shared among {len(points)} points with threshold {threshold}")
    coefficients = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return {point: _value(coefficients, point).to_bytes(SHARE, "big") for point in points}


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from as many shares as its threshold. Wrong shares give a wrong secret, or an error."""
    if (secret := _interpolated(shares, 0)) >= 2**256:
        raise SecureSumError("the shares of a secret do not fit together")
    return secret.to_bytes(32, "big")


def share(shares: Mapping[int, bytes], point: int) -> bytes:
    """The share of a point, from as many others as the threshold."""
    return shares[point] if point in shares else _interpolated(shares, point).to_bytes(SHARE, "big")


def _interpolated(shares: Mapping[int, bytes], at: int) -> int:
    total = 0
    for point, each in shares.items():
        value = int.from_bytes(each, "big")
        if len(each) != SHARE or value >= PRIME or point < 1:
            raise SecureSumError("a share of a secret is not one")
        top, bottom = 1, 1
        for other in shares:
            if other != point:
                top, bottom = top * (other - at) % PRIME, bottom * (other - point) % PRIME
        total = (total + value * top * pow(bottom, -1, PRIME)) % PRIME
    return total


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value
