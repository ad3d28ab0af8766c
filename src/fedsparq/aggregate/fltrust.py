"""FLTrust (Cao 2021): each update counts by how far it points where the server's own training does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fedsparq.aggregate.buffers import robust_buffers
from fedsparq.aggregate.rounds import split_shares
from fedsparq.errors import OptionError
from fedsparq.layout import Arrays, Buffers, Layout, Vector
from fedsparq.options import Count, component
from fedsparq.protocols import Aggregate, Stateless, Update

TrainClean = Callable[[Vector, Buffers | None, int], Vector]
"""The update that the server makes on a small clean set of its own, from a model in a round."""


@component
class FLTrust(Stateless):
    """The mean of the updates, each cut or stretched to the length of the server's own, weighted by its cosine with it.

    Args:
        examples: how large the clean set is that an experiment draws.
        train: in an app of your own, what trains on it: ``train(vector, buffers, round) -> update``.
    """

    examples: Count = 100
    train: Callable[..., Any] | None = None

    def open(self, layout: Layout, state: Arrays) -> _Trusting:
        if self.train is None:
            raise OptionError(
                "fltrust needs a small clean set at the server: FLTrust(train=...) with a function that trains on it, "
                "or a task with a method `train_clean`; without one take 'robust'"
            )
        return _Trusting(self.train, layout, state)


class _Trusting:
    def __init__(self, train: TrainClean, layout: Layout, state: Arrays) -> None:
        self._train, self._layout, self._state = train, layout, state
        self._total, self._trust = np.zeros(layout.size, np.float32), 0.0
        self._weights: dict[int, float] = {}
        self._buffers: dict[int, Buffers | None] = {}

    def begin(self, vector: Vector, buffers: Buffers | None, number: int) -> None:
        """Train the server's own update."""
        self._own = np.asarray(self._train(vector, buffers, number), np.float32)
        self._norm = float(np.linalg.norm(self._own.astype(np.float64)))

    def add(self, update: Update) -> None:
        norm = update.payload.norm
        cosine = update.payload.dot(self._own) / (norm * self._norm) if norm and self._norm else 0.0
        trust = max(0.0, cosine)
        weight = trust * self._norm / norm if trust else 0.0
        if weight:
            update.payload.add_to(self._total, weight)
        self._trust += trust
        self._weights[update.client] = weight
        self._buffers[update.client] = update.payload.buffers

    def close(self) -> Aggregate:
        clients = sorted(self._weights)
        weights = np.array([self._weights[client] for client in clients]) / (self._trust or 1.0)
        shares, let_go = split_shares(clients, weights * len(clients))
        buffers = robust_buffers([self._buffers[client] for client in clients], weights)
        return Aggregate(self._total / np.float32(self._trust or 1.0), shares, buffers, self._state, let_go)
