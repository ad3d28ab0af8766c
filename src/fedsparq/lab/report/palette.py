"""One colour, mark and dash for each method, from its name alone: the same in every figure of every report."""

import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import product
from typing import NamedTuple
from zlib import crc32


class Shade(NamedTuple):
    """A colour on a light and on a dark page."""

    light: str
    dark: str


class Look(NamedTuple):
    """How a method appears in every figure; `mark` and `dash` are plotly's words for them."""

    shade: Shade
    mark: str
    dash: str


Looks = Mapping[str, Look]

_COLOURS = tomllib.loads((files("fedsparq.lab.report") / "palette.toml").read_text("utf-8"))
PAGE = {name: Shade(*pair) for name, pair in _COLOURS["page"].items()}
OTHERS = [Shade(*pair) for pair in _COLOURS["others"]]
CLASS_SHADES = [Shade(*pair) for pair in _COLOURS["classes"]]
KNOWN = {name: Look(Shade(*look["colour"]), look["mark"], look["dash"]) for name, look in _COLOURS["methods"].items()}
MARKERS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v", "cross": "P", "x": "X",
    "star": "*", "triangle-left": "<", "triangle-right": ">", "hexagon": "h", "pentagon": "p",
}  # fmt: skip
"""The marks, as matplotlib names them."""
LINES: Mapping[str, str | tuple[int, tuple[float, ...]]] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.4)),
    "dashdot": (0, (5, 1.6, 1, 1.6)),
    "longdash": (0, (9, 2.4)),
    "longdashdot": (0, (9, 2, 1, 2)),
}
"""The dashes, as matplotlib writes them."""
PALETTE: Mapping[str, Shade] = PAGE | {f"c{i}": shade for i, shade in enumerate(CLASS_SHADES)}
"""The colors that a page has as CSS variables, by their names."""
_WAYS = list(product(LINES, MARKERS))
_ANY = list(product(OTHERS, LINES, MARKERS))


def looks(labels: Iterable[str]) -> dict[str, Look]:
    """Return a look for each label. Settings of a method share its colour and differ by mark and dash.

    A look is chosen by the label's checksum; only where two of one report fall on the very same does the later move on.
    """
    wanted = list(dict.fromkeys(labels))
    found = {label: KNOWN[label] for label in wanted if label in KNOWN}
    taken = set(found.values())
    for label in sorted(set(wanted) - set(found)):
        choices = _choices(label)
        start = crc32(label.encode())
        tried = (choices[(start + step) % len(choices)] for step in range(len(choices)))
        found[label] = next((look for look in tried if look not in taken), choices[start % len(choices)])
        taken.add(found[label])
    return {label: found[label] for label in wanted}


def _choices(label: str) -> list[Look]:
    method = KNOWN.get(label.partition(" ")[0].rstrip(","))
    if method is not None:
        return [Look(method.shade, mark, dash) for dash, mark in _WAYS]
    return [Look(shade, mark, dash) for shade, dash, mark in _ANY]
