"""Whole messages: what surrounds the layers, and every way in which a message can be wrong."""

import struct

import numpy as np
import pytest
from forge import (
    ALL,
    BITMAP,
    EMPTY,
    FLOATS,
    GAPS,
    HALVES,
    RICE,
    SEEDED,
    floats,
    halves,
    message,
    raw,
    refused,
    reseal,
    seal,
    varint,
)

import fedsparq
from fedsparq import Exact, Layout, Payload, WireError
from fedsparq.compress.payload import Listed, Seeded
from fedsparq.wire.pieces import PIECE

LAYOUT = Layout.of({"a": (4,), "none": (0,), "b": (2,)})
NONE = bytes([HALVES])
"""A layer without coordinates still says how it would write values."""


def sample(name, layout=LAYOUT, seed=0, **options):
    method = fedsparq.method(name, **options)
    update = np.random.default_rng(seed).normal(size=layout.size).astype(np.float32)
    return method.compress(update, method.init(layout), np.random.default_rng(seed))[0]


def test_a_message_by_hand():
    blob = message(
        LAYOUT,
        bytes([HALVES, BITMAP])
        + varint(2)
        + raw(b"\x0a")
        + halves(1.5, -2)
        + NONE
        + bytes([FLOATS, ALL])
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
            refused(seal(blob[:length]), layout)
    refused(blob + b"\0", layout, "checksum")
    refused(reseal(blob + b"\0"), layout)
    refused(seal(blob[:-8] + b"\0"), layout, "behind the end")


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
        refused(reseal(blob[:5] + struct.pack("<Q", small.digest) + blob[13:]), small)


def test_wrong_magic_and_unknown_flags():
    good = bytes([HALVES, EMPTY, HALVES, HALVES, EMPTY])
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
        (1, SEED + bytes([FLOATS, ALL]) + floats(1, 2, 3, 4) + NONE + bytes([FLOATS, ALL]) + floats(5, 6), "mixed"),
        (0, bytes([FLOATS, SEEDED]) + floats(1, 2, 3), "mixed"),
        (1, SEED, "ends"),
        (1, b"\1\2\3", "ends"),
    ],
)
def test_seeds_that_do_not_fit(flags, body, match):
    refused(message(LAYOUT, body, flags), LAYOUT, match)


def test_a_seed_by_hand():
    payload = Payload(LAYOUT, Seeded(6, 3, 99), ())
    inside = np.searchsorted(payload.positions, 4)
    body = SEED + bytes([FLOATS, SEEDED]) + floats(*[1, 2, 3][:inside]) + bytes([FLOATS])
    body += bytes([FLOATS, SEEDED]) + floats(*[1, 2, 3][inside:])
    received = fedsparq.decode(message(LAYOUT, body, 1), LAYOUT)
    assert received.selection == Seeded(6, 3, 99)
    assert received.dense()[payload.positions].tolist() == [1, 2, 3]


def test_the_largest_seed():
    layout = Layout.of({"a": (100,)})
    values = sample("random-10", layout).values
    payload = Payload(layout, Seeded(100, 10, 2**64 - 1), values)
    assert fedsparq.decode(fedsparq.encode(payload), layout).selection == payload.selection


EXACT = Layout.of(
    {"w": (1,), "bn.running_var": np.zeros(2, np.float32), "bn.num_batches_tracked": np.zeros((), np.int64)}
)


def exact_message(buffers, counters):
    return message(EXACT, bytes([HALVES, EMPTY]) + buffers + counters, flags=2)


def test_the_exact_part_by_hand():
    received = fedsparq.decode(exact_message(raw(floats(1.5, -2)), raw(struct.pack("<q", -7))), EXACT)
    assert received.exact.buffers.tolist() == [1.5, -2]
    assert received.exact.counters.tolist() == [-7]
    assert received.exact.buffers.flags.writeable


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
def test_an_exact_part_that_does_not_fit(buffers, counters):
    refused(exact_message(buffers, counters), EXACT)


def test_encoding_an_exact_part_of_another_model_is_refused():
    payload = sample("fedavg", EXACT)
    wrong = Exact(np.zeros(3, np.float32), np.zeros(1, np.int64))
    with pytest.raises(WireError, match=r"\[2\]"):
        fedsparq.encode(Payload(EXACT, payload.selection, payload.values, wrong))


@pytest.mark.parametrize("size", [PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 5])
@pytest.mark.parametrize("options", [{"multiplier": 3.0}, {"multiplier": 0.5}, {"multiplier": 5.0}], ids=str)
def test_layers_around_the_size_of_a_piece(size, options):
    layout = Layout.of({"first": (7,), "large": (size,), "last": (3,)})
    payload = sample("fedsparq", layout, **options)
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    assert received.dense().tobytes() == payload.dense().tobytes()
    np.testing.assert_array_equal(received.positions, payload.positions)


def test_pieces_of_one_layer_may_differ_in_their_coding():
    layout = Layout.of({"a": (4 * PIECE,)})
    rng = np.random.default_rng(0)
    places = np.concatenate(
        [
            np.arange(PIECE),
            PIECE + np.flatnonzero(rng.random(PIECE) < 0.5),
            3 * PIECE + np.flatnonzero(rng.random(PIECE) < 0.01),
        ]
    ).astype(np.uint32)
    values = fedsparq.compress.payload.Halves(rng.integers(0, 0x7C00, places.size).astype(np.uint16))
    payload = Payload(layout, Listed(places), (values,))
    received = fedsparq.decode(fedsparq.encode(payload), layout)
    np.testing.assert_array_equal(received.positions, places)
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_an_accumulator_is_not_touched_by_what_is_refused_late():
    layout = Layout.of({"a": (4,), "b": (2,)})
    body = bytes([FLOATS, ALL]) + floats(1, 2, 3, 4) + bytes([FLOATS, ALL]) + floats(5, np.nan)
    accumulator = np.full(6, 0.5, np.float32)
    with pytest.raises(WireError, match="'b'"):
        fedsparq.decode(message(layout, body), layout).add_to(accumulator)
    assert (accumulator == 0.5).all()


def test_names_of_codings_are_those_of_the_format():
    from fedsparq.wire.index import Index
    from fedsparq.wire.values import Kind

    assert [int(i) for i in (Index.EMPTY, Index.ALL, Index.BITMAP, Index.GAPS, Index.RICE, Index.SEEDED)] == [
        EMPTY,
        ALL,
        BITMAP,
        GAPS,
        RICE,
        SEEDED,
    ]
    assert [int(k) for k in Kind] == [0, 1, 2, 3, 6, 10]
