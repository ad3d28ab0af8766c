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
    """A strategy and those that it wraps."""
    yield strategy
    inner = getattr(strategy, "strategy", None)
    if isinstance(inner, Strategy):
        yield from layers(inner)


def adds_noise(strategy: Strategy) -> bool:
    return any(isinstance(each, PRIVATE) for each in layers(strategy))


def is_flowers(strategy: Strategy) -> bool:
    """Whether every layer of a strategy is one of Flower's own."""
    return all(type(each).__module__.startswith("flwr.") for each in layers(strategy))
