"""Strategies around strategies, and those of Flower's that clip and add noise."""

from __future__ import annotations

from collections.abc import Iterator

from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    Strategy,
)

PRIVATE = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
"""What Flower has for differential privacy on the server: all four clip and add noise, with numpy's generator."""


def layers(strategy: Strategy) -> Iterator[Strategy]:
    """A strategy and those that it wraps, under whatever public name."""
    waiting: list[object] = [strategy]
    known: list[Strategy] = []
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, Strategy) and not any(each is other for other in known):
            known.append(each)
            yield each
            waiting += [value for name, value in vars(each).items() if not name.startswith("_")]


def adds_noise(strategy: Strategy) -> bool:
    return any(isinstance(each, PRIVATE) for each in layers(strategy))


def is_flowers(strategy: Strategy) -> bool:
    """Whether every layer of a strategy is one of Flower's own."""
    return all(type(each).__module__.startswith("flwr.") for each in layers(strategy))
