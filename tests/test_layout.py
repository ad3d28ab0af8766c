"""What both sides agree on: roles, places, and the digest that tells layouts apart."""

import json

import numpy as np
import pytest
import xxhash

from fedsparq import Layout
from fedsparq.errors import OptionError
from fedsparq.layout import MAX_SIZE

ARRAYS = {
    "conv.weight": np.zeros((8, 3, 3, 3), np.float32),
    "bn.weight": np.zeros(8, np.float32),
    "bn.running_mean": np.zeros(8, np.float32),
    "bn.running_var": np.zeros(8, np.float32),
    "bn.num_batches_tracked": np.zeros((), np.int64),
    "head.bias": np.zeros(10, np.float16),
}


def test_places_follow_each_other_by_role():
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


def test_layers_are_found_by_place_and_empty_ones_never():
    layout = Layout.of({"a": (3,), "none": (0,), "b": (2,)})
    assert [layout.layer_at(i) for i in range(5)] == ["a", "a", "a", "b", "b"]


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
