"""FetchSGD against its algorithm with dictionaries for tables; hostile replies do not count."""

from dataclasses import replace

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout, OptionError, Payload, Update
from fedsparq.payload import Sketch

LAYOUT = Layout.of({"w": (60, 50), "b": (60,)})
M64 = 2**64 - 1


def mixed(seed, i):
    z = (seed + (i + 1) * 0x9E3779B97F4A7C15) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


ROWS, COLUMNS = 3, 600
HASHES = [[mixed(mixed(0, row), i) for i in range(3000)] for row in range(ROWS)]
PLACES = np.array([[(h >> 32) * COLUMNS >> 32 for h in row] for row in HASHES])
SIGNS = np.array([[-1.0 if h & 1 else 1.0 for h in row] for row in HASHES])


def summed(vector):
    table = np.zeros((ROWS, COLUMNS))
    for row in range(ROWS):
        np.add.at(table[row], PLACES[row], SIGNS[row] * vector)
    return table


def shown(table):
    return np.median([SIGNS[row] * table[row, PLACES[row]] for row in range(ROWS)], axis=0)


def play(method, updates, state, forged=()):
    accumulator = method.aggregator.open(LAYOUT, state)
    for client, update in enumerate(updates):
        payload, _ = method.compress(update, method.init(LAYOUT), np.random.default_rng(client))
        accumulator.add(Update(client, payload, 1))
    for client, payload in enumerate(forged, len(updates)):
        accumulator.add(Update(client, payload, 1))
    return accumulator.close()


def test_fetchsgd_is_its_papers():
    method = fedsparq.method("fetchsgd", size=0.6, rows=3, fraction=0.02, momentum=0.7)
    state, u, e, bias_u, bias_e = method.aggregator.init(LAYOUT), 0.0, 0.0, 0.0, 0.0
    for number in range(4):
        rng = np.random.default_rng(number)
        updates = [(rng.laplace(size=LAYOUT.size) ** 3).astype(np.float32) for _ in range(3)]
        aggregate = play(method, updates, state)
        mean = np.mean(updates, axis=0, dtype=np.float64)
        u, bias_u = 0.7 * u + summed(mean[:3000]), 0.7 * bias_u + mean[3000:]
        e, bias_e = e + u, bias_e + bias_u
        estimate = np.concatenate([shown(e), bias_e])
        chosen = np.argsort(-np.abs(estimate))[: round(0.02 * LAYOUT.size)]
        expected = np.zeros(LAYOUT.size)
        expected[chosen] = estimate[chosen]
        np.testing.assert_allclose(aggregate.mean, expected, rtol=1e-4, atol=1e-4)
        cells = summed(expected[:3000]) != 0
        u, e = np.where(cells, 0, u), np.where(cells, 0, e)
        bias_u, bias_e = (np.where(expected[3000:] != 0, 0, v) for v in (bias_u, bias_e))
        state = aggregate.state
        np.testing.assert_allclose(state["error0"], e, atol=2e-3)
        np.testing.assert_allclose(state["momentum1"], bias_u, atol=1e-4)


def test_what_is_no_such_sketch_does_not_count():
    method = fedsparq.method("fetchsgd")
    update = np.ones(LAYOUT.size, np.float32)
    sound, _ = method.compress(update, method.init(LAYOUT), np.random.default_rng(0))
    table = sound.values[0]
    assert isinstance(table, Sketch)
    forged = [
        Payload.full(LAYOUT, update),
        replace(sound, values=(replace(table, seed=1), sound.values[1])),
        replace(sound, values=(replace(table, table=table.table[:, :-1]), sound.values[1])),
    ]
    plain = play(method, [update], method.aggregator.init(LAYOUT))
    aggregate = play(method, [update], method.aggregator.init(LAYOUT), forged)
    assert aggregate.shares == {0: 1.0, 1: 0.0, 2: 0.0, 3: 0.0}
    np.testing.assert_array_equal(aggregate.mean, plain.mean)


def test_halves_that_do_not_fit_are_refused():
    method = fedsparq.method("fetchsgd")
    with pytest.raises(OptionError, match="Sketched needs a server that adds up sketches of 5 rows"):
        method.with_server(aggregator=fedsparq.Mean())
    with pytest.raises(OptionError, match="it must be odd"):
        fedsparq.method("fetchsgd", rows=4)


def test_the_sketch_is_all_that_is_sent():
    method = fedsparq.method("fetchsgd", size=0.2)
    payload, _ = method.compress(np.ones(LAYOUT.size, np.float32), method.init(LAYOUT), np.random.default_rng(0))
    assert len(fedsparq.encode(payload)) <= 4 * (0.2 * 3000 + 60) + 60
