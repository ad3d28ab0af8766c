"""Names and sizes as people write them."""

import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files

_NAMES: Mapping[str, Mapping[str, str]] = tomllib.loads((files("fedsparq.lab") / "names.toml").read_text("utf-8"))
DATASETS, METHODS = _NAMES["datasets"], _NAMES["methods"]


def human_bytes(count: float) -> str:
    """Return three significant digits in decimal units: 6.24 MB."""
    if not math.isfinite(count):
        return "not finite"
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if abs(count) >= 0.9995 * 1000**power:
            return f"{_three_digits(count / 1000**power)} {unit}"
    return f"{_three_digits(count)} B"


def dataset_key(name: str) -> str:
    """Return one spelling for each data set the paper uses."""
    return _NAMES["aliases"].get(name.lower(), name.lower())


def method_name(label: str) -> str:
    """Return a label as people write it: the method's usual spelling, then its options."""
    up, _, down = label.partition(" / down: ")
    method, _, options = up.partition(" ")
    name = f"{METHODS.get(method, method)} {options}".strip()
    if not down:
        return name
    return f"{name}, both ways" if down == up else f"{name} / down: {method_name(down)}"


def slug(text: str) -> str:
    """Return letters, digits and dashes: safe in a file name and in an HTML id."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or "run"


def _three_digits(value: float) -> str:
    if value == int(value) and abs(value) < 1000:
        return str(int(value))
    before_point = math.floor(math.log10(abs(value)) + 1e-9)
    return f"{value:.{min(2, max(0, 2 - before_point))}f}"
