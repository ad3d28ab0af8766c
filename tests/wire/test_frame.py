"""Whole messages: what surrounds the layers, and every way in which a message can be wrong."""

import struct

import numpy as np
import pytest
from forge import (
    ALL,
    BITMAP,
    EMPTY,
    FLOAT16,
    FLOAT32,
    GAPS,
    RICE,
    SEEDED,
    floats,
    halves,
    message,
    raw,
    refused,
    varint,
    with_checksum,
    with_new_checksum,
)

import fedsparq
from fedsparq import Buffers, Layout, Payload, WireError
from fedsparq.payload import (
    BucketLevels,
    Codebook,
    Float16Values,
    Float32Values,
    RotatedSigns,
    Seeded,
    Sparse,
    UniformLevels,
)
from fedsparq.wire.chunks import CHUNK
from fedsparq.wire.index import CODINGS

LAYOUT = Layout.of({"a": (4,), "none": (0,), "b": (2,)})
NONE = bytes([FLOAT16])
"""A layer without coordinates still says how it would write values."""


def sample(name, layout=LAYOUT, seed=0, **options):
    method = fedsparq.method(name, **options)
    update = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    return method.compress(update, method.init(layout), np.random.default_rng(seed))[0]


def test_a_message_by_hand():
    blob = message(
        LAYOUT,
        bytes([FLOAT16, BITMAP])
        + varint(2)
        + raw(b"\x0a")
        + halves(1.5, -2)
        + NONE
        + bytes([FLOAT32, ALL])
        + floats(7, 8),
    )
    received = fedsparq.decode(blob, LAYOUT)
    assert received.dense().tolist() == [0, 1.5, 0, -2, 7, 8]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_kind_of_bytes_will_do(kind):
    payload = sample("fedsparq")
    received = fedsparq.decode(kind(fedsparq.encode(payload)), LAYOUT)
    assert received.dense().tobytes() == payload.dense().tobytes()


@pytest.mark.parametrize("thing", [None, 3, "FSQ1", [1, 2], np.zeros(30, np.uint8), memoryview(bytes(80))[::2]])
def test_what_is_not_bytes_is_refused(thing):
    refused(thing, LAYOUT)


@pytest.mark.parametrize("name", ["fedavg", "float16", "fedpaq", "random-10", "top-10", "fedsparq"])
def test_cut_or_lengthened_anywhere(name):
    layout = Layout.of({"a": (300,), "b": (20,)})
    blob = fedsparq.encode(sample(name, layout))
    for length in range(len(blob)):
        refused(blob[:length], layout)
        if length < len(blob) - 8:
            refused(with_checksum(blob[:length]), layout)
    refused(blob + b"\0", layout, "checksum")
    refused(with_new_checksum(blob + b"\0"), layout)
    refused(with_checksum(blob[:-8] + b"\0"), layout, "1 trailing")


@pytest.mark.parametrize("name", ["fedavg", "float16", "fedpaq", "random-10", "top-10", "fedsparq"])
def test_every_bit_of_every_byte_flipped(name):
    blob = fedsparq.encode(sample(name, Layout.of({"a": (60,)})))
    for i in range(len(blob)):
        for bit in range(8):
            damaged = bytearray(blob)
            damaged[i] ^= 1 << bit
            refused(bytes(damaged), LAYOUT)


def test_a_message_for_another_model():
    blob = fedsparq.encode(sample("fedsparq"))
    for other in ({"a": (4,), "b": (2,)}, {"a": (2, 2), "none": (0,), "b": (2,)}, {"x": (4,), "none": (0,), "b": (2,)}):
        refused(blob, Layout.of(other), "same tensors")


def test_a_message_that_claims_to_be_for_another_model():
    small, large = Layout.of({"a": (50,)}), Layout.of({"a": (5000,)})
    for name in fedsparq.METHODS:
        blob = fedsparq.encode(sample(name, large))
        refused(with_new_checksum(blob[:5] + struct.pack("<Q", small.digest) + blob[13:]), small)


def test_wrong_magic_and_unknown_flags():
    good = bytes([FLOAT16, EMPTY, FLOAT16, FLOAT16, EMPTY])
    assert not fedsparq.decode(message(LAYOUT, good), LAYOUT).dense().any()
    refused(message(LAYOUT, good, magic=b"FSQ2"), LAYOUT, "FSQ2")
    for flags in (0x10, 0x80, 0xFF):
        refused(message(LAYOUT, good, flags=flags), LAYOUT, "later version")
    for flags in (5, 8):
        refused(message(LAYOUT, good, flags=flags), LAYOUT, "contradict")
    refused(b"", LAYOUT, "too few")


SEED = struct.pack("<QI", 99, 3)


@pytest.mark.parametrize(
    ("flags", "body", "match"),
    [
        (1, struct.pack("<QI", 99, 7), "do not fit"),
        (1, struct.pack("<QI", 99, 2**32 - 1), "do not fit"),
        (1, SEED + bytes([FLOAT32, ALL]) + floats(1, 2, 3, 4) + NONE + bytes([FLOAT32, ALL]) + floats(5, 6), "mixed"),
        (0, bytes([FLOAT32, SEEDED]) + floats(1, 2, 3), "mixed"),
        (1, SEED, "ends"),
        (1, b"\1\2\3", "ends"),
    ],
)
def test_seeds_that_do_not_fit(flags, body, match):
    refused(message(LAYOUT, body, flags), LAYOUT, match)


def test_a_seed_by_hand():
    drawn = Seeded(6, 3, 99).indices
    inside = np.searchsorted(drawn, 4)
    body = SEED + bytes([FLOAT32, SEEDED]) + floats(*[1, 2, 3][:inside]) + bytes([FLOAT32])
    body += bytes([FLOAT32, SEEDED]) + floats(*[1, 2, 3][inside:])
    received = fedsparq.decode(message(LAYOUT, body, 1), LAYOUT)
    assert received.selection == Seeded(6, 3, 99)
    assert received.dense()[drawn].tolist() == [1, 2, 3]


def test_the_largest_seed():
    layout = Layout.of({"a": (100,)})
    values = sample("random-10", layout).values
    payload = Payload(layout, Seeded(100, 10, 2**64 - 1), values)
    assert fedsparq.decode(fedsparq.encode(payload), layout).selection == payload.selection


WITH_BUFFERS = Layout.of(
    {"w": (1,), "bn.running_var": np.zeros(2, np.float32), "bn.num_batches_tracked": np.zeros((), np.int64)}
)


def buffers_message(buffers, counters):
    return message(WITH_BUFFERS, bytes([FLOAT16, EMPTY]) + buffers + counters, flags=2)


def test_buffers_by_hand():
    received = fedsparq.decode(buffers_message(raw(floats(1.5, -2)), raw(struct.pack("<q", -7))), WITH_BUFFERS)
    assert received.buffers.statistics.tolist() == [1.5, -2]
    assert received.buffers.counters.tolist() == [-7]
    assert received.buffers.statistics.flags.writeable


@pytest.mark.parametrize(
    ("buffers", "counters"),
    [
        (raw(floats(np.nan, 1)), raw(struct.pack("<q", 1))),
        (raw(floats(1, np.inf)), raw(struct.pack("<q", 1))),
        (raw(floats(1)), raw(struct.pack("<q", 1))),
        (raw(floats(1, 2)), raw(b"\0" * 7)),
        (raw(floats(1, 2)), raw(b"\0" * 9)),
        (varint(2**40) + floats(1, 2), raw(struct.pack("<q", 1))),
    ],
)
def test_buffers_that_do_not_fit(buffers, counters):
    refused(buffers_message(buffers, counters), WITH_BUFFERS)


def test_encoding_buffers_of_another_model_is_refused():
    payload = sample("fedavg", WITH_BUFFERS)
    wrong = Buffers(np.zeros(3, np.float32), np.zeros(1, np.int64))
    with pytest.raises(WireError, match=r"\[2\]"):
        fedsparq.encode(Payload(WITH_BUFFERS, payload.selection, payload.values, wrong))


@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
@pytest.mark.parametrize("options", [{"multiplier": 3.0}, {"multiplier": 0.5}, {"multiplier": 5.0}], ids=str)
def test_layers_around_the_size_of_a_piece(size, options):
    layout = Layout.of({"first": (7,), "large": (size,), "last": (3,)})
    payload = sample("fedsparq", layout, **options)
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    assert received.dense().tobytes() == payload.dense().tobytes()
    np.testing.assert_array_equal(received.indices, payload.indices)


def test_pieces_of_one_layer_may_differ_in_their_coding():
    layout = Layout.of({"a": (4 * CHUNK,)})
    rng = np.random.default_rng(0)
    indices = np.concatenate(
        [
            np.arange(CHUNK),
            CHUNK + np.flatnonzero(rng.random(CHUNK) < 0.5),
            3 * CHUNK + np.flatnonzero(rng.random(CHUNK) < 0.01),
        ]
    ).astype(np.uint32)
    values = Float16Values(rng.integers(0, 0x7C00, indices.size).astype(np.uint16))
    payload = Payload(layout, Sparse(indices), (values,))
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    np.testing.assert_array_equal(received.indices, indices)
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_values_that_do_not_belong_to_their_layers_indices_are_refused():
    indices = Sparse(np.array([1, 2], np.uint32))
    values = (
        Float32Values(np.ones(1, np.float32)),
        Float32Values(np.empty(0, np.float32)),
        Float32Values(np.ones(1, np.float32)),
    )
    with pytest.raises(WireError, match="'a': the payload has 1 values for 2 indices"):
        fedsparq.encode(Payload(LAYOUT, indices, values))


def rotated(index, signs=b"\0"):
    """A layer of three rotated coordinates: one block, filled up to eight."""
    return bytes([10]) + struct.pack("<Qf", 5, 1.0) + index + signs


def test_a_rotated_layer_is_sent_as_a_whole():
    layout = Layout.of({"a": (3,)})
    assert fedsparq.decode(message(layout, rotated(bytes([ALL]))), layout).kept == 3
    refused(message(layout, rotated(bytes([EMPTY]), b"")), layout, "'a'.*needs every coordinate")
    refused(message(layout, rotated(bytes([BITMAP, 1]) + raw(b"\1"))), layout, "'a'.*needs every coordinate")


def test_an_accumulator_is_not_touched_by_what_is_refused_late():
    layout = Layout.of({"a": (4,), "b": (2,)})
    body = bytes([FLOAT32, ALL]) + floats(1, 2, 3, 4) + bytes([FLOAT32, ALL]) + floats(5, np.nan)
    accumulator = np.full(6, 0.5, np.float32)
    with pytest.raises(WireError, match="'b'"):
        fedsparq.decode(message(layout, body), layout).add_to(accumulator)
    assert (accumulator == 0.5).all()


def test_names_of_codings_are_those_of_the_format():
    named = {"empty": EMPTY, "all": ALL, "bitmap": BITMAP, "gaps": GAPS, "rice": RICE, "seeded": SEEDED}
    assert {name: code for code, name in enumerate(CODINGS)} == named
    kinds = (Float32Values, Float16Values, UniformLevels, Codebook, BucketLevels, RotatedSigns)
    assert [kind.code for kind in kinds] == [0, 1, 2, 3, 6, 10]
