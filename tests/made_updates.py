"""Layouts and updates for the tests of compression and of the wire, from the ordinary to the nasty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsparq import Layout

Vector = NDArray[np.float32]


def _mixed(rng: np.random.Generator, n: int) -> NDArray[np.float64]:
    """All magnitudes of float32, from its subnormals to 1e6."""
    return np.where(rng.random(n) < 0.5, -1, 1) * 10.0 ** rng.uniform(-44, 6, n)


FILLS: dict[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "laplace": lambda rng, n: rng.laplace(scale=1e-3, size=n),
    "zeros": lambda rng, n: np.zeros(n),
    "negative zeros": lambda rng, n: np.full(n, -0.0),
    "all equal": lambda rng, n: np.full(n, rng.normal()),
    "mostly zero": lambda rng, n: np.where(rng.random(n) < 0.02, rng.normal(size=n), 0),
    "negative": lambda rng, n: -rng.exponential(size=n),
    "float16 subnormals": lambda rng, n: rng.normal(scale=1e-6, size=n),
    "float32 subnormals": lambda rng, n: rng.normal(scale=1e-41, size=n),
    "beyond float16": lambda rng, n: rng.normal(scale=2e5, size=n),
    "every magnitude": _mixed,
}


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to six layers: empty ones, single coordinates, a few, a few thousand."""
    sizes = st.one_of(st.just(0), st.just(1), st.integers(2, 130), st.integers(131, 5000))
    shapes = st.one_of(sizes.map(lambda n: (n,)), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.just(()))
    return Layout.of({f"layer{i}": shape for i, shape in enumerate(draw(st.lists(shapes, max_size=6)))})


def fill(layout: Layout, fills: list[str], seed: int) -> Vector:
    """An update whose layers are of these kinds, in turn."""
    rng = np.random.default_rng(seed)
    update = np.zeros(layout.size, np.float32)
    for i, tensor in enumerate(layout.parameters):
        update[tensor.span] = FILLS[fills[i % len(fills)]](rng, tensor.size)
    return update


def fills() -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(sorted(FILLS)), min_size=1, max_size=6)
