"""A common support: the coordinates of a round, named by the server before anybody trains; no client's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.payload.payload import Payload
from fedsparq.payload.selection import Indices, Seeded
from fedsparq.payload.uniform_levels import UniformLevels

Plan = Mapping[str, NDArray[Any]]
"""How a server says it: `listed`, a bitmap of those chosen, `seed` and `count` of those drawn from the others."""


def plan_support(size: int, count: int, seed: int, listed: Indices) -> dict[str, NDArray[Any]]:
    """A plan of `count` coordinates of `size`, beside those listed."""
    bitmap = np.zeros(size, np.bool_)
    bitmap[listed] = True
    numbers = {"seed": np.array([seed], np.uint64), "count": np.array([count], np.int64)}
    return numbers | ({"listed": np.packbits(bitmap)} if listed.size else {})


def support_of(plan: Plan, size: int) -> Indices:
    """The coordinates of a plan, strictly rising."""
    try:
        seed, count = int(plan["seed"][0]), int(plan["count"][0])
        listed = np.unpackbits(plan["listed"], count=size).view(np.bool_) if "listed" in plan else None
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise WireError(f"the server's plan of a round cannot be read: {error}") from None
    others = np.arange(size, dtype=np.uint32) if listed is None else np.flatnonzero(~listed).astype(np.uint32)
    if not 0 <= count <= others.size or not 0 <= seed < 2**63:
        raise WireError(f"the server's plan of a round names {count} of {others.size} coordinates")
    drawn = others[Seeded(others.size, count, seed).indices]
    return drawn if listed is None else np.union1d(drawn, np.flatnonzero(listed).astype(np.uint32))


def levels_on(support: Indices, step: np.float32, payload: Payload) -> NDArray[np.int64]:
    """The whole numbers of a payload on a support, zeros included; an error if it is not on this lattice alone."""
    whole, begin = np.zeros(payload.layout.size, np.int64), 0
    for values in payload.values:
        if len(values) and not (isinstance(values, UniformLevels) and values.step == step):
            raise WireError("a reply is not on the lattice that its round was planned for")
        if isinstance(values, UniformLevels):
            whole[payload.indices[begin : begin + len(values)]] = values.levels
        begin += len(values)
    on = whole[support]
    if np.count_nonzero(on) != payload.kept:
        raise WireError("a reply has coordinates beside its round's support")
    return on
