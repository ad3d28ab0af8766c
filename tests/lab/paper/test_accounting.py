import numpy as np
import pytest

import fedsparq
from fedsparq import Layout, Payload
from fedsparq.lab.paper import message_bytes
from fedsparq.layout import Buffers
from fedsparq.payload import (
    BucketLevels,
    Codebook,
    Dense,
    Float16Values,
    Float32Values,
    RotatedSigns,
    Seeded,
    Sparse,
    UniformLevels,
    Values,
)


class Threes(Values):
    """A kind of value from outside the package."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def decode(self):
        return np.full(self.count, 3, np.float32)

    def write(self, writer, part): ...

    @classmethod
    def read(cls, reader, header, count, tensor): ...

    @classmethod
    def join(cls, header, data, indices, tensor): ...


def levels(*values):
    return np.array(values, np.int16)


def ones(count):
    return np.ones(count, np.float32)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (Float32Values(ones(5)), 5 * 4),
        (Float16Values(np.zeros(5, np.uint16)), 5 * 2),
        (UniformLevels(np.float32(0.25), levels(-3, 1)), 1),  # levels up to 3 with a sign: 3 bits, 6 in all
        (UniformLevels(np.float32(0.25), levels(-300, 1, 1)), 4),  # up to 300: 10 bits, 30 in all
        (UniformLevels(np.float32(0.25), levels()), 0),
        (Codebook(ones(60), levels(*[1, -1] * 8)), 2),  # one level occurs: its sign alone
        (BucketLevels(2, ones(2), np.array([0, 0, 1], np.uint32), levels(1, 2, -2)), 1),
        (RotatedSigns(5, 0, ones(1), np.zeros(1, np.uint8)), 4 + 1),
        (Threes(5), 5 * 4),
    ],
)
def test_each_kind_of_value(values, expected):
    layout = Layout.of({"a": (len(values),)})
    assert message_bytes(Payload(layout, Dense(len(values)), (values,))) == expected


def test_indices_cost_four_bytes_where_they_are_listed():
    layout, values = Layout.of({"a": (1000,)}), (Float32Values(ones(10)),)
    assert message_bytes(Payload(layout, Seeded(1000, 10, 5), values)) == 10 * 4
    assert message_bytes(Payload(layout, Sparse(np.arange(10, dtype=np.uint32)), values)) == 10 * (4 + 4)


def test_layers_add_up():
    layout = Layout.of({"a": (3,), "none": (0,), "b": (2,)})
    values = (
        Float16Values(np.zeros(2, np.uint16)),
        Float32Values(ones(0)),
        UniformLevels(np.float32(0.25), levels(-3)),
    )
    assert message_bytes(Payload(layout, Sparse(np.array([0, 2, 4], np.uint32)), values)) == 3 * 4 + 2 * 2 + 1


def test_buffers_count_as_they_are():
    layout = Layout.of({"a": ones(3), "mean": np.zeros(2, np.float32), "seen": np.zeros((), np.int64)})
    buffers = Buffers(np.zeros(2, np.float32), np.zeros(1, np.int64))
    plain = Payload.full(layout, ones(layout.size))
    assert message_bytes(Payload.full(layout, ones(layout.size), buffers)) == message_bytes(plain) + 2 * 4 + 8


@pytest.mark.parametrize(
    ("name", "bytes_per_coordinate"), [("fedavg", 4), ("float16", 2), ("random-10", 0.4), ("top-10", 0.8)]
)
def test_each_method_in_the_papers_bytes(name, bytes_per_coordinate):
    layout = Layout.of({"a": (50, 20)})
    method = fedsparq.method(name)
    update = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    payload, _ = method.compress(update, method.init(layout), np.random.default_rng(1))
    assert message_bytes(payload) == 1000 * bytes_per_coordinate
