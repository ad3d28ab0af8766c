"""A kind of value from outside the package travels like our own."""

from dataclasses import dataclass

import numpy as np
import pytest
from forge import ALL, message, refused

from fedsparq.errors import UpdateError, WireError
from fedsparq.layout import Layout
from fedsparq.payload import Dense, Float16Values, Payload, Seeded, Sparse, Values, register_values
from fedsparq.payload import values as values_module
from fedsparq.wire import decode, encode
from fedsparq.wire.chunks import CHUNK
from fedsparq.wire.inspect import inspect

LAYOUT = Layout.of({"w": (40, 30), "none": (0,), "b": (40,)})


@dataclass(frozen=True)
class Int8Values(Values):
    """One scale a layer, and a byte for each value."""

    scale: np.float32
    data: np.ndarray
    code = 64

    @classmethod
    def of(cls, values):
        scale = np.float32(np.abs(values).max(initial=0) / 127 or 1)
        return cls(scale, np.rint(values / scale).astype(np.int8))

    def __len__(self):
        return self.data.size

    def decode(self):
        return self.data * self.scale

    def write_header(self, writer):
        writer.byte(self.code)
        writer.raw(np.array([self.scale], "<f4"))

    def write(self, writer, part):
        data = self.data[part].view(np.uint8)
        writer.stream(data, writer.compress(data))

    @classmethod
    def read_header(cls, reader, code, tensor):
        scale = reader.array("<f4", 1)[0]
        if not np.isfinite(scale):
            raise WireError(f"layer {tensor.name!r}: the scale is not finite")
        return scale

    @classmethod
    def read(cls, reader, header, count, tensor):
        return reader.stream(count, count)[0].view(np.int8)

    @classmethod
    def join(cls, header, data, indices, tensor):
        return cls(header, data.astype(np.int8, copy=False))


@pytest.fixture(autouse=True)
def _registered_for_one_test(monkeypatch):
    monkeypatch.setattr(values_module, "_kinds", dict(values_module._kinds))
    register_values(Int8Values)


def made(layout, selection):
    vector = np.random.default_rng(0).normal(size=layout.size).astype(np.float32)
    cuts = np.searchsorted(selection.indices, layout.bounds)
    parts = np.split(vector[selection.indices], cuts[1:-1])
    return Payload(layout, selection, tuple(map(Int8Values.of, parts)))


SELECTIONS = {
    "dense": Dense(LAYOUT.size),
    "sparse": Sparse(np.arange(0, LAYOUT.size, 3, dtype=np.uint32)),
    "seeded": Seeded(LAYOUT.size, 100, 7),
}


@pytest.mark.parametrize("selection", SELECTIONS.values(), ids=SELECTIONS)
def test_there_and_back(selection):
    payload = made(LAYOUT, selection)
    blob = encode(payload)
    received = decode(blob, LAYOUT)
    assert {type(values) for values in received.values} == {Int8Values}
    assert received.dense().tobytes() == payload.dense().tobytes()
    assert encode(received) == blob
    accumulator, expected = np.ones(LAYOUT.size, np.float32), 1 + np.float32(0.5) * payload.dense()
    received.add_to(accumulator, 0.5)
    np.testing.assert_array_equal(accumulator, expected)
    assert received.largest() == np.abs(payload.dense()).max()
    assert received.scaled(np.float32(2)).dense().tolist() == (2 * payload.dense()).tolist()


def test_a_layer_of_several_chunks_keeps_its_dtype():
    layout = Layout.of({"large": (2 * CHUNK + 5,)})
    payload = made(layout, Dense(layout.size))
    (received,) = decode(encode(payload), layout).values
    assert received.data.dtype == np.int8
    np.testing.assert_array_equal(received.data, payload.values[0].data)


def test_layers_of_several_kinds():
    own = made(LAYOUT, Dense(LAYOUT.size)).values
    halves = Float16Values(np.ones(40, np.float16).view(np.uint16))
    payload = Payload(LAYOUT, Dense(LAYOUT.size), (*own[:2], halves))
    received = decode(encode(payload), LAYOUT)
    assert [type(values) for values in received.values] == [Int8Values, Int8Values, Float16Values]
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_an_inspection_accounts_for_it():
    blob = encode(made(LAYOUT, SELECTIONS["sparse"]))
    inspection = inspect(blob, LAYOUT)
    assert [layer.value_coding for layer in inspection.layers] == ["int8"] * 3
    spent = sum(layer.bytes for layer in inspection.layers)
    assert spent + sum(inspection.other_bytes.values()) == len(blob)
    assert list(inspection.other_bytes) == ["header", "checksum"]
    assert inspection.bound_bytes > 0


def test_a_side_that_does_not_know_it_names_its_code(monkeypatch):
    blob = encode(made(LAYOUT, SELECTIONS["dense"]))
    monkeypatch.delitem(values_module._kinds, 64)
    refused(blob, LAYOUT, "layer 'w': values of code 64 are not known here")


def test_its_own_errors_reach_the_caller():
    layout = Layout.of({"a": (1,)})
    body = bytes([64]) + np.array([np.nan], "<f4").tobytes() + bytes([ALL, 0, 1])
    refused(message(layout, body), layout, "'a': the scale is not finite")


def test_a_kind_that_joins_or_decodes_to_another_number_of_values_is_refused(monkeypatch):
    payload = made(LAYOUT, SELECTIONS["sparse"])
    blob = encode(payload)
    monkeypatch.setattr(Int8Values, "decode", lambda self: np.ones(3, np.float32))
    with pytest.raises(UpdateError, match=r"Int8Values decodes to \[3\] values for 400 coordinates"):
        payload.add_to(np.zeros(LAYOUT.size, np.float32))
    monkeypatch.setattr(Int8Values, "join", classmethod(lambda cls, h, data, i, t: cls(h, data[:-1])))
    refused(blob, LAYOUT, "'w': 399 values were read for 400 indices")
