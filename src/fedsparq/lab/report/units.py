"""Measures as people read them, in tables and on axes. Files for machines carry full precision instead."""

import math

from fedsparq.lab.results.grouping import Spread
from fedsparq.lab.results.units import human_bytes

_UNKNOWN = "not finite"


def with_spread(value: Spread, digits: int, suffix: str = "", factor: float = 1.0) -> str:
    """`97.12 ± 0.46`; the mean alone where the deviation is below the last digit."""
    if not math.isfinite(value.mean):
        return _UNKNOWN
    mean, std = (f"{number * factor:.{digits}f}" for number in (value.mean, value.std or 0.0))
    return f"{mean} ± {std}{suffix}" if float(std) else f"{mean}{suffix}"


def bytes_with_spread(value: Spread, unknown: str = _UNKNOWN) -> str:
    """`6.24 ± 0.12 MB`: mean and deviation share the mean's unit."""
    if not math.isfinite(value.mean):
        return unknown
    number, unit = human_bytes(value.mean).split(" ")
    return with_spread(value, len(number.partition(".")[2]), f" {unit}", float(number) / (value.mean or 1.0))


def tick_bytes(count: float, _: float | None = None) -> str:
    """Bytes on an axis: no zeros behind the point."""
    number, unit = human_bytes(count).split(" ")
    return f"{float(number):g} {unit}" if math.isfinite(count) else _UNKNOWN


def percent(value: float, _: float | None = None) -> str:
    """A percentage on an axis, without needless decimals."""
    return f"{value:.4g} %"


def times_less(ratio: float) -> str:
    """`105.7x`: how many times less was sent."""
    return f"{ratio:,.1f}x"
