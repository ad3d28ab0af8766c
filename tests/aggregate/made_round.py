"""A round of updates of every kind, and what they come to by plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedsparq.layout import Buffers, Layout
from fedsparq.payload import Payload
from fedsparq.protocols import Update

LAYOUT = Layout.of(
    {
        "weight": np.zeros((9, 7), np.float32),
        "bias": np.zeros(7, np.float32),
        "norm.running_mean": np.zeros(7, np.float32),
        "norm.num_batches_tracked": np.zeros((), np.int64),
    }
)
CLIENTS = (4, 0, 7, 2)
EXAMPLES = (30, 10, 600, 1)


def made_round(weighting: str = "uniform") -> list[Update]:
    """Four clients, the second of which sends only some coordinates."""
    rng, found = np.random.default_rng(0), []
    for client, examples in zip(CLIENTS, EXAMPLES, strict=True):
        vector = rng.normal(size=LAYOUT.size).astype(np.float32)
        counters = np.array([rng.integers(100)], np.int64)
        buffers = Buffers(rng.normal(size=LAYOUT.buffer_size).astype(np.float32), counters)
        payload = Payload.full(LAYOUT, vector, buffers)
        if client == 0:
            sparse = Payload.sparse(LAYOUT, np.arange(0, LAYOUT.size, 3), vector[::3])
            payload = Payload(LAYOUT, sparse.selection, sparse.values, buffers)
        found.append(Update(client, payload, examples, examples if weighting == "examples" else 1))
    return found


def dense(updates: list[Update]) -> NDArray[np.float64]:
    return np.stack([update.payload.dense().astype(np.float64) for update in updates])


def statistics(updates: list[Update]) -> NDArray[np.float64]:
    return np.stack([buffers_of(update).statistics.astype(np.float64) for update in updates])


def buffers_of(update: Update) -> Buffers:
    assert update.payload.buffers is not None
    return update.payload.buffers
