"""What both sides agree on: roles, offsets, the digest that tells layouts apart, and how tensors become a vector."""

import json

import numpy as np
import pytest
import xxhash

from fedsparq.errors import OptionError, UpdateError
from fedsparq.layout import MAX_SIZE, Buffers, Layout

ARRAYS = {
    "conv.weight": np.zeros((8, 3, 3, 3), np.float32),
    "bn.weight": np.zeros(8, np.float32),
    "bn.running_mean": np.zeros(8, np.float32),
    "bn.running_var": np.zeros(8, np.float32),
    "bn.num_batches_tracked": np.zeros((), np.int64),
    "head.bias": np.zeros(10, np.float16),
}


def test_offsets_follow_each_other_by_role():
    layout = Layout.of(ARRAYS)
    assert [(t.name, t.offset, t.size) for t in layout.parameters] == [
        ("conv.weight", 0, 216),
        ("bn.weight", 216, 8),
        ("head.bias", 224, 10),
    ]
    assert [(t.name, t.span) for t in layout.buffers] == [
        ("bn.running_mean", slice(0, 8)),
        ("bn.running_var", slice(8, 16)),
    ]
    assert [t.name for t in layout.counters] == ["bn.num_batches_tracked"]
    assert (layout.size, layout.buffer_size, layout.counter_size) == (234, 16, 1)
    assert layout.bounds.tolist() == [0, 216, 224, 234]


def test_shapes_alone_are_float32_parameters():
    layout = Layout.of({"a": (2, 3), "b": 4, "c": [np.int64(5)], "d": ()})
    assert [(t.shape, t.dtype, t.role) for t in layout.tensors] == [
        ((2, 3), "float32", "parameter"),
        ((4,), "float32", "parameter"),
        ((5,), "float32", "parameter"),
        ((), "float32", "parameter"),
    ]
    assert layout.size == 6 + 4 + 5 + 1


def test_an_empty_layout_is_a_layout():
    layout = Layout.of({})
    assert (layout.size, layout.bounds.tolist()) == (0, [0])


def test_the_digest_is_the_one_the_format_defines():
    text = "parameter float32 3x2 w\nparameter float32  s\ncounter int64 1 n\n"
    layout = Layout.of({"w": (3, 2), "s": (), "n": np.zeros(1, np.int64)})
    assert layout.digest == xxhash.xxh3_64_intdigest(text.encode())


def test_any_difference_changes_the_digest():
    layouts = [
        {"a": (2, 3), "b": (4,)},
        {"b": (4,), "a": (2, 3)},
        {"a": (3, 2), "b": (4,)},
        {"a": (2, 3), "b": (5,)},
        {"a": (2, 3), "c": (4,)},
        {"a": (2, 3)},
        {"a": (2, 3), "b": np.zeros(4, np.float16)},
        {"a": (2, 3), "b": np.zeros(4, np.int64)},
        {"a": (2, 3), "b": (4,), "c": (0,)},
    ]
    assert len({Layout.of(shapes).digest for shapes in layouts}) == len(layouts)
    assert Layout.of(layouts[0]).digest == Layout.of(dict(layouts[0])).digest


def test_json_and_back():
    layout = Layout.of(ARRAYS)
    assert Layout.from_json(layout.to_json()) == layout
    assert Layout.from_json('{"a": [2, 3], "b": [4]}') == Layout.of({"a": (2, 3), "b": (4,)})
    assert Layout.from_json('{"tensors": [3]}') == Layout.of({"tensors": (3,)})
    assert Layout.from_json(Layout.of({}).to_json()) == Layout.of({})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1]",
        '{"a": "x"}',
        '{"a": [-1]}',
        '{"a": [1.5]}',
        '{"tensors": [{"name": "a", "shape": [1]}]}',
        '{"tensors": [{"name": "a", "shape": [1], "dtype": "float32", "role": "guest"}]}',
        json.dumps({"tensors": [{"name": "a", "shape": [1], "dtype": "float32", "role": "parameter"}] * 2}),
    ],
)
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(OptionError):
        Layout.from_json(text)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, "int"),
        ({"a": "abc"}, "'a'"),
        ({"a": (2, -1)}, "'a'"),
        ({"a": (True,)}, "'a'"),
        ({"a": np.zeros(3, np.complex64)}, "complex64"),
        ({1: (2,), "1": (3,)}, "used 2 times"),
        ({"a\nb": (2,)}, "line break"),
        ({"a": (MAX_SIZE + 1,)}, "4,294,967,295"),
    ],
)
def test_what_has_no_layout_is_refused(model, message):
    with pytest.raises(OptionError, match=message):
        Layout.of(model)


def test_a_torch_module():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(4, 2))
    module[2].weight.requires_grad_(False)
    layout = Layout.of(module)
    assert {t.name: t.role for t in layout.tensors} == {
        "0.weight": "parameter",
        "0.bias": "parameter",
        "1.weight": "parameter",
        "1.bias": "parameter",
        "1.running_mean": "buffer",
        "1.running_var": "buffer",
        "1.num_batches_tracked": "counter",
        "2.weight": "buffer",  # frozen, so it is not compressed
        "2.bias": "parameter",
    }
    assert [t.name for t in layout.tensors] == list(module.state_dict())
    module[2].weight.requires_grad_(True)
    assert Layout.of(module) == Layout.of({k: v.numpy() for k, v in module.state_dict().items()})


def test_a_weight_under_two_names_is_a_parameter_under_both():
    torch = pytest.importorskip("torch")
    module = torch.nn.ModuleDict({"a": torch.nn.Linear(3, 3, bias=False), "b": torch.nn.Linear(3, 3, bias=False)})
    module["b"].weight = module["a"].weight
    assert [t.role for t in Layout.of(module).tensors] == ["parameter", "parameter"]


def random_arrays(seed):
    """A model of every kind of tensor: all of its values fit float32 or int64."""
    rng = np.random.default_rng(seed)
    return {
        "w": rng.normal(size=(4, 3)).astype(np.float32),
        "half": rng.normal(size=(2, 5)).astype(np.float16),
        "double": rng.normal(size=6).astype(np.float32).astype(np.float64),
        "scalar": np.float32(rng.normal()).reshape(()),
        "none": np.empty((0, 7), np.float32),
        "bn.running_mean": rng.normal(size=8).astype(np.float32),
        "bn.running_var": rng.exponential(size=8).astype(np.float16),
        "bn.num_batches_tracked": np.array(2**60 + 1, np.int64),
        "steps": np.array([-(2**63), 2**63 - 1], np.int64),
        "small": rng.integers(-128, 128, (3, 2)).astype(np.int8),
        "bytes": rng.integers(0, 256, 5).astype(np.uint8),
        "mask": rng.random((2, 2)) < 0.5,
        "no counters": np.empty(0, np.int32),
    }


def identical(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array)
        assert found[name].flags.c_contiguous


def test_tensors_of_every_dtype_and_back():
    arrays = random_arrays(0)
    layout = Layout.of(arrays)
    vector, buffers = layout.flatten(arrays)
    assert (vector.dtype, vector.shape) == (np.float32, (4 * 3 + 10 + 6 + 1,))
    assert (buffers.statistics.dtype, buffers.statistics.shape) == (np.float32, (16,))
    assert (buffers.counters.dtype, buffers.counters.shape) == (np.int64, (1 + 2 + 6 + 5 + 4,))
    identical(layout.unflatten(vector, buffers), arrays)
    np.testing.assert_array_equal(vector[:12], arrays["w"].ravel())
    again, again_buffers = layout.flatten(layout.unflatten(vector, buffers))
    np.testing.assert_array_equal(again, vector)
    np.testing.assert_array_equal(again_buffers.counters, buffers.counters)


def test_the_order_of_the_arrays_and_their_memory_do_not_matter():
    arrays = random_arrays(1)
    layout = Layout.of(arrays)
    turned = {name: array.copy(order="F") for name, array in reversed(arrays.items())}
    np.testing.assert_array_equal(layout.flatten(turned)[0], layout.flatten(arrays)[0])
    spread = np.zeros(2 * layout.size, np.float32)
    vector, buffers = layout.flatten(arrays)
    spread[::2] = vector
    identical(layout.unflatten(spread[::2], buffers), arrays)


def test_flatten_copies_and_lists_will_do():
    layout = Layout.of({"a": (2, 2), "b": ()})
    given = np.ones((2, 2), np.float32)
    vector, buffers = layout.flatten({"a": given, "b": 3})
    given[:] = 9
    assert (vector.tolist(), buffers) == ([1, 1, 1, 1, 3], None)
    assert layout.flatten({"a": [[1, 2], [3, 4]], "b": 5.0})[0].tolist() == [1, 2, 3, 4, 5]


def test_an_empty_layout_is_an_empty_vector():
    vector, buffers = Layout.of({}).flatten({})
    assert (vector.size, buffers) == (0, None)
    assert Layout.of({}).unflatten(vector) == {}


def test_a_torch_model_and_back():
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    layout = Layout.of(module)
    vector, buffers = layout.flatten(module.state_dict())
    tensors = {name: torch.from_numpy(array) for name, array in layout.unflatten(vector, buffers).items()}
    module.load_state_dict(tensors)
    identical(layout.unflatten(vector, buffers), {name: value.numpy() for name, value in module.state_dict().items()})


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"a": np.zeros(3)}, "tensor 'b' of the model is missing"),
        ({"a": np.zeros(3), "b": np.zeros(2), "c": np.zeros(1)}, "tensor 'c' is not in the model"),
        ({"a": np.zeros(3), "b": np.zeros((1, 2))}, r"tensor 'b' has shape \(1, 2\), the model has \(2,\)"),
        ({"a": np.zeros(3), "b": 1.0}, r"tensor 'b' has shape \(\)"),
    ],
)
def test_arrays_of_another_model_are_refused(arrays, message):
    with pytest.raises(UpdateError, match=message):
        Layout.of({"a": (3,), "b": (2,)}).flatten(arrays)


def test_a_vector_or_buffers_of_another_model_are_refused():
    layout = Layout.of({"a": (3,), "bn.running_mean": np.zeros(2, np.float32), "n": np.zeros((), np.int64)})
    vector, buffers = np.zeros(3, np.float32), Buffers(np.zeros(2, np.float32), np.zeros(1, np.int64))
    assert list(layout.unflatten(vector, buffers)) == ["a", "bn.running_mean", "n"]
    with pytest.raises(UpdateError, match=r"parameters of the model are 3 values, got an array of \[4\]"):
        layout.unflatten(np.zeros(4, np.float32), buffers)
    with pytest.raises(UpdateError, match="buffers of the model are 2 values"):
        layout.unflatten(vector)
    with pytest.raises(UpdateError, match="counters of the model are 1 values"):
        layout.unflatten(vector, Buffers(buffers.statistics, np.zeros(2, np.int64)))
