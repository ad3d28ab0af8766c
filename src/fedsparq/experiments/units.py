"""Numbers as people read them. Files for machines carry full precision instead."""

import math

from fedsparq.experiments.grouping import Spread


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


def tick_bytes(count: float) -> str:
    """Bytes on an axis: no zeros behind the point."""
    number, _, unit = human_bytes(count).partition(" ")
    return f"{float(number):g} {unit}" if unit != "finite" else number


def percent(value: float, _: float | None = None) -> str:
    """A percentage without needless decimals, for ticks."""
    return f"{value:.4g} %"


class Writer:
    """Writes a number, or a mean with its spread, with a fixed number of decimals."""

    def __init__(self, digits: int, suffix: str = "", factor: float = 1.0) -> None:
        self.digits, self.suffix, self.factor = digits, suffix, factor

    def __call__(self, value: float) -> str:
        return f"{value * self.factor:.{self.digits}f}{self.suffix}" if math.isfinite(value) else "not finite"

    def spread(self, value: Spread) -> str:
        if value.std is None or not math.isfinite(value.mean):
            return self(value.mean)
        mean, std = (f"{number * self.factor:.{self.digits}f}" for number in (value.mean, value.std))
        return f"{mean} ± {std}{self.suffix}" if float(std) else self(value.mean)


class ByteWriter(Writer):
    """The same for bytes: mean and spread share the mean's unit."""

    def __init__(self, unknown: str = "not finite") -> None:
        super().__init__(2)
        self.unknown = unknown

    def __call__(self, value: float) -> str:
        return human_bytes(value) if math.isfinite(value) else self.unknown

    def spread(self, value: Spread) -> str:
        if value.std is None or not math.isfinite(value.mean):
            return self(value.mean)
        number, unit = human_bytes(value.mean).split(" ")
        scale = value.mean / float(number) if float(number) else 1.0
        places = len(number.partition(".")[2])
        std = f"{value.std / scale:.{places}f}"
        return f"{number} ± {std} {unit}" if float(std) else f"{number} {unit}"
