"""The sum of a round's updates: added up as they come, so that memory does not grow with the number of clients."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.payload import Payload
from fedsparq.federate.model import Model
from fedsparq.layout import Exact


@dataclass
class Tally:
    """A weighted sum of updates; of statistics the weighted sum too, of counters the largest."""

    total: NDArray[np.float32]
    weight: float = 0.0
    buffers: NDArray[np.float64] | None = None
    counters: NDArray[np.int64] | None = None

    def add(self, payload: Payload, weight: float) -> None:
        payload.add_to(self.total, weight)
        self.weight += weight
        if payload.exact is not None:
            scaled = weight * payload.exact.buffers.astype(np.float64)
            self.buffers = scaled if self.buffers is None else self.buffers + scaled
            counters = payload.exact.counters
            self.counters = counters if self.counters is None else np.maximum(self.counters, counters)

    def step(
        self, model: Model, velocity: NDArray[np.float32], momentum: float, restart: bool
    ) -> tuple[Model, NDArray[np.float32]]:
        """The model and its velocity after a step by the mean; `restart` drops a velocity the mean points against."""
        mean = self.total / np.float32(self.weight)
        against = restart and not float(mean @ velocity) > 0
        velocity = mean if against else np.float32(momentum) * velocity + mean
        exact = model.exact
        if self.buffers is not None and self.counters is not None:
            exact = Exact((self.buffers / self.weight).astype(np.float32), self.counters)
        return Model(model.vector + velocity, exact), velocity


@dataclass
class Sent:
    """How much of the model the counted replies carried."""

    kept: dict[str, int] = field(default_factory=dict)
    paper_bytes: int = 0

    def add(self, payload: Payload) -> None:
        self.paper_bytes += payload.paper_bytes
        for tensor, values in zip(payload.layout.parameters, payload.values, strict=True):
            self.kept[tensor.name] = self.kept.get(tensor.name, 0) + len(values)
        if payload.exact is not None:
            self.paper_bytes += payload.exact.buffers.nbytes + payload.exact.counters.nbytes
