"""Numbers of bytes as people read them."""

import math


def human_bytes(count: float) -> str:
    """Three significant digits in decimal units: 6.24 MB."""
    if not math.isfinite(count):
        return "not finite"
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if abs(count) >= 0.9995 * 1000**power:
            return f"{_three_digits(count / 1000**power)} {unit}"
    return f"{_three_digits(count)} B"


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    before_point = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value:.{min(2, max(0, 2 - before_point))}f}"
