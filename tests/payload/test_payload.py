"""What a payload says of itself, and what it adds where."""

import numpy as np
import pytest

from fedsparq.errors import UpdateError
from fedsparq.layout import Buffers, Layout
from fedsparq.payload import (
    BucketLevels,
    Codebook,
    Dense,
    Float16Values,
    Float32Values,
    Payload,
    RotatedSigns,
    Seeded,
    Sparse,
    UniformLevels,
)
from fedsparq.wire import encode

LAYOUT = Layout.of({"a": (3,), "none": (0,), "b": (2,)})


def halves(*values):
    return Float16Values(np.array(values, np.float16).view(np.uint16))


SPARSE = Payload(
    LAYOUT,
    Sparse(np.array([0, 2, 4], np.uint32)),
    (
        halves(1.5, -2),
        Float32Values(np.empty(0, np.float32)),
        UniformLevels(np.float32(0.25), np.array([-3], np.int16)),
    ),
)
DENSE = Payload(
    LAYOUT,
    Dense(5),
    (
        Float32Values(np.array([1, -0.0, 3], np.float32)),
        halves(),
        Codebook(np.array([0.5, 2], np.float32), np.array([-2, 1], np.int16)),
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
    assert [layer.indices.tolist() for layer in layers] == [[0, 2], [], [4]]


def test_every_selection_counts_and_lists():
    assert (Dense(3).count, Dense(3).indices.tolist()) == (3, [0, 1, 2])
    assert (SPARSE.selection.count, SPARSE.kept, SPARSE.indices.tolist()) == (3, 3, [0, 2, 4])
    drawn = Seeded(1000, 10, 5)
    assert drawn.indices.size == drawn.count == 10
    assert (np.diff(drawn.indices.astype(int)) > 0).all()


EVERY_KIND = [
    Float32Values(np.array([0.5, -3, 2], np.float32)),
    Float16Values(np.array([0.5, -3, 2], np.float16).view(np.uint16)),
    UniformLevels(np.float32(0.5), np.array([1, -6, 4], np.int16)),
    Codebook(np.array([3, 0.5, 2, 99], np.float32), np.array([2, -1, 3], np.int16)),
    BucketLevels(2, np.array([0.5, 2], np.float32), np.array([0, 0, 1], np.uint32), np.array([1, -6, 1], np.int16)),
]


@pytest.mark.parametrize("values", EVERY_KIND, ids=lambda values: type(values).__name__)
def test_the_same_values_in_every_kind(values):
    layout = Layout.of({"a": (3,)})
    payload = Payload(layout, Dense(3), (values,))
    assert payload.dense().tolist() == [0.5, -3, 2]
    assert payload.largest() == values.largest() == 3
    assert payload.norm == pytest.approx(np.sqrt(0.25 + 9 + 4), rel=1e-15)
    assert payload.scaled(np.float32(0.25)).dense().tolist() == [0.125, -0.75, 0.5]
    accumulator = np.ones(3, np.float32)
    payload.add_to(accumulator, 2.0)
    assert accumulator.tolist() == [2, -5, 5]


def test_kinds_stay_what_they_are_when_scaled():
    layout = Layout.of({"a": (3,), "b": (3,)})
    halved = Payload(layout, Dense(6), (EVERY_KIND[1], EVERY_KIND[2])).scaled(np.float32(0.5))
    assert [type(values) for values in halved.values] == [Float16Values, type(EVERY_KIND[2])]


@pytest.mark.parametrize("values", [*EVERY_KIND[2:], RotatedSigns(8, 3, np.ones(1, np.float32), np.zeros(1, np.uint8))])
def test_what_costs_something_is_decoded_once(values):
    assert values.decode() is values.decode()


@pytest.mark.parametrize(
    "values",
    [
        Float32Values(np.array([1, np.nan], np.float32)),
        Float32Values(np.array([1, -np.inf], np.float32)),
        Float16Values(np.array([1, np.inf], np.float16).view(np.uint16)),
        Float16Values(np.array([np.nan, 1], np.float16).view(np.uint16)),
        UniformLevels(np.float32(np.inf), np.array([1, 1], np.int16)),
    ],
)
def test_the_largest_of_what_is_not_finite_is_nan(values):
    layout = Layout.of({"a": (2,), "b": (1,)})
    assert np.isnan(Payload(layout, Dense(3), (values, Float32Values(np.ones(1, np.float32)))).largest())


def test_nothing_has_norm_and_largest_zero():
    nothing = Payload.sparse(LAYOUT, [], np.empty(0, np.float32))
    assert (nothing.norm, nothing.largest(), nothing.kept) == (0, 0, 0)
    empty = Payload.full(Layout.of({}), np.empty(0, np.float32))
    assert (empty.norm, empty.largest(), empty.dense().size) == (0, 0, 0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_sparse_takes_indices_of_any_integer_dtype(dtype):
    indices, values = np.array([0, 2, 4], dtype), np.array([1, 2, 3], np.float32)
    payload = Payload.sparse(LAYOUT, indices, values)
    assert payload.indices.dtype == np.uint32
    assert [len(v) for v in payload.values] == [2, 0, 1]
    assert payload.dense().tolist() == [1, 0, 2, 0, 3]
    indices[:], values[:] = 0, 0
    assert payload.dense().tolist() == [1, 0, 2, 0, 3], "what was given was copied"


def test_sparse_takes_a_plain_list_and_every_second_value_of_an_array():
    payload = Payload.sparse(LAYOUT, [1, 3], np.arange(4, dtype=np.float32)[::2])
    assert payload.dense().tolist() == [0, 0, 0, 2, 0]
    assert all(v.decode().flags.c_contiguous for v in payload.values)


@pytest.mark.parametrize(
    ("indices", "values", "message"),
    [
        ([2, 1], [1, 2], "index 1 follows index 2"),
        ([1, 1], [1, 2], "index 1 follows index 1"),
        (np.array([4, 0], np.uint8), [1, 2], "index 0 follows index 4"),
        ([0, 5], [1, 2], "index 5 is out of range"),
        ([-1, 2], [1, 2], "index -1 is out of range"),
        ([2**40], [1], "out of range"),
        (np.array([2**64 - 1], np.uint64), [1], "out of range"),
        ([0.0, 1.0], [1, 2], "integers"),
        ([True, False], [1, 2], "flatnonzero"),
        ([[0, 1]], [1, 2], r"\[1, 2\]"),
        ([0, 1], [1], r"float32\[2\]"),
        ([0, 4], [1, np.nan], "'b'.*not a number"),
        ([0, 4], [np.inf, 1], "'a'.*infinite"),
    ],
)
def test_what_is_no_sparse_payload_is_refused(indices, values, message):
    with pytest.raises(UpdateError, match=message):
        Payload.sparse(LAYOUT, indices, np.array(values, np.float32))


def test_values_of_another_dtype_are_refused():
    with pytest.raises(UpdateError, match="float64"):
        Payload.sparse(LAYOUT, [0, 1], np.ones(2))
    with pytest.raises(UpdateError, match=r"float64\[5\]"):
        Payload.full(LAYOUT, np.ones(5))
    with pytest.raises(UpdateError, match=r"float32\[4\]"):
        Payload.full(LAYOUT, np.ones(4, np.float32))


def test_a_full_payload_is_the_vector():
    vector = np.arange(5, dtype=np.float32)
    buffers = Buffers(np.ones(2, np.float32), np.ones(1, np.int64))
    payload = Payload.full(LAYOUT, vector, buffers)
    assert payload.selection == Dense(5)
    assert payload.buffers is buffers
    np.testing.assert_array_equal(payload.dense(), vector)
    assert np.shares_memory(payload.values[0].data, vector)


@pytest.mark.parametrize("selection", [Dense(5), Sparse(np.arange(5, dtype=np.uint32))])
def test_a_payload_has_as_many_values_as_coordinates(selection):
    values = [Float32Values(np.ones(n, np.float32)) for n in (3, 0, 2)]
    with pytest.raises(UpdateError, match="2 layers; this layout has 3"):
        Payload(LAYOUT, selection, tuple(values[:2]))
    with pytest.raises(UpdateError, match=r"\[3, 0, 3\] values"):
        Payload(LAYOUT, selection, (*values[:2], values[0]))


def test_a_dense_payload_has_the_values_of_each_layer():
    two, three = Float32Values(np.ones(2, np.float32)), Float32Values(np.ones(3, np.float32))
    with pytest.raises(UpdateError, match=r"\[2, 0, 3\] values"):
        Payload(LAYOUT, Dense(5), (two, halves(), three))


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([2, 0, 4], "index 0 follows index 2; indices must strictly increase"),
        ([0, 0, 4], "index 0 follows index 0; indices must strictly increase"),
        ([0, 2, 5], "index 5 is out of range; this layout has 5 coordinates"),
    ],
)
@pytest.mark.parametrize("values", [Float32Values(np.ones(3, np.float32)), halves(1, 1, 1)])
def test_indices_that_compiled_loops_must_not_believe_are_refused(indices, message, values):
    none = Float32Values(np.empty(0, np.float32))
    payload = Payload(LAYOUT, Sparse(np.array(indices, np.uint32)), (values, none, none))
    for use in (payload.check_indices, lambda: encode(payload)):
        with pytest.raises(UpdateError, match=message):
            use()


def test_sound_indices_are_believed():
    for payload in (SPARSE, DENSE, Payload(LAYOUT, Sparse(np.empty(0, np.uint32)), (halves(),) * 3)):
        payload.check_indices()
