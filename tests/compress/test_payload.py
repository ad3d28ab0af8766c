"""What a payload says of itself, and what it adds where."""

import numpy as np
import pytest

import fedsparq
from fedsparq import Layout, Payload
from fedsparq.compress.payload import Everything, Floats, Halves, Listed, Magnitudes, Seeded, Steps
from fedsparq.errors import UpdateError

LAYOUT = Layout.of({"a": (3,), "none": (0,), "b": (2,)})


def halves(*values):
    return Halves(np.array(values, np.float16).view(np.uint16))


SPARSE = Payload(
    LAYOUT,
    Listed(np.array([0, 2, 4], np.uint32)),
    (halves(1.5, -2), Floats(np.empty(0, np.float32)), Steps(np.float32(0.25), np.array([-3], np.int16))),
)
DENSE = Payload(
    LAYOUT,
    Everything(5),
    (
        Floats(np.array([1, -0.0, 3], np.float32)),
        halves(),
        Magnitudes(np.array([0.5, 2], np.float32), np.array([-2, 1], np.int16)),
    ),
)


def test_dense():
    assert SPARSE.dense().tolist() == [1.5, 0, -2, 0, -0.75]
    assert DENSE.dense().tolist() == [1, 0, 3, -2, 0.5]
    assert np.signbit(DENSE.dense()[1])


@pytest.mark.parametrize("payload", [SPARSE, DENSE])
@pytest.mark.parametrize("weight", [1.0, -0.25, 0.0, 1e-3])
def test_adding_is_adding_the_dense_vector(payload, weight):
    accumulator = np.linspace(-1, 1, 5, dtype=np.float32)
    expected = accumulator + np.float32(weight) * payload.dense()
    payload.add_to(accumulator, weight)
    np.testing.assert_array_equal(accumulator, expected)


@pytest.mark.parametrize("payload", [SPARSE, DENSE])
def test_adding_to_every_second_place_of_an_array(payload):
    whole = np.zeros(10, np.float32)
    payload.add_to(whole[::2])
    np.testing.assert_array_equal(whole[::2], payload.dense())
    assert not whole[1::2].any()


def read_only():
    array = np.zeros(5, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    ("accumulator", "message"),
    [
        (np.zeros(4, np.float32), r"float32\[4\]"),
        (np.zeros(5), "float64"),
        (np.zeros((5, 1), np.float32), r"5, 1"),
        (read_only(), "read-only"),
    ],
)
def test_an_accumulator_that_does_not_fit_is_refused(accumulator, message):
    with pytest.raises(UpdateError, match=message):
        SPARSE.add_to(accumulator)


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 1e39])
def test_a_weight_that_is_not_finite_is_refused_and_nothing_touched(weight):
    accumulator = np.zeros(5, np.float32)
    with pytest.raises(UpdateError, match="weight"):
        SPARSE.add_to(accumulator, weight)
    assert not accumulator.any()


def test_layers_know_their_share():
    layers = list(SPARSE.layers())
    assert [(layer.name, layer.start, layer.size) for layer in layers] == [("a", 0, 3), ("none", 3, 0), ("b", 3, 2)]
    assert [layer.positions.tolist() for layer in layers] == [[0, 2], [], [4]]


def test_the_accounting_of_the_paper():
    assert SPARSE.kept == 3
    assert SPARSE.paper_bytes == 3 * 4 + 2 * 2 + 1  # a level of up to 3 and its sign: 3 bits
    assert DENSE.paper_bytes == 3 * 4 + 1
    layout = Layout.of({"a": (1000,)})
    drawn = Seeded(1000, 10, 5)
    assert Payload(layout, drawn, (Floats(np.ones(10, np.float32)),)).paper_bytes == 40


@pytest.mark.parametrize(
    ("name", "bytes_per_coordinate"), [("fedavg", 4), ("float16", 2), ("random-10", 0.4), ("top-10", 0.8)]
)
def test_each_method_in_the_papers_bytes(name, bytes_per_coordinate):
    layout = Layout.of({"a": (50, 20)})
    method = fedsparq.method(name)
    update = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(1))
    assert payload.paper_bytes == 1000 * bytes_per_coordinate
