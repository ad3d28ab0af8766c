"""Compiled reading and writing of float16 layers: the same bytes, payloads and verdicts as chunk by chunk."""

from __future__ import annotations

import numpy as np
import pytest
from forge import (
    ALL,
    BITMAP,
    EMPTY,
    FLOAT16,
    GAPS,
    RICE,
    SEEDED,
    compressed,
    halves,
    message,
    raw,
    varint,
    with_checksum,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fuzz import mutate

import fedsparq
from fedsparq import Layout, Payload, WireError
from fedsparq.payload import Dense, Float16Values, Float32Values, Reader, Seeded, Sparse, Writer, libzstd
from fedsparq.wire import frame
from fedsparq.wire.chunks import CHUNK, read_layers, write_layers
from fedsparq.wire.float16_layers import read_float16, write_float16

pytestmark = pytest.mark.skipif(libzstd.packer() is None, reason="this build of Python's zstd hides libzstd")

SIZES = st.one_of(st.integers(0, 130), st.sampled_from([255, 256, 1000, 4096, 5000, 40_000, 120_000]))
SHARES = st.one_of(st.sampled_from([0.0, 0.04, 0.15, 0.3, 1.0]), st.floats(0.001, 1))
KINDS = ["laplace", "few", "any", "equal"]


def made(layers: list[tuple[int, float]], kind: str, seed: int) -> Payload:
    """A payload of layers with (size, share that is sent)."""
    rng = np.random.default_rng(seed)
    layout = Layout.of({f"layer{i}": (size,) for i, (size, _) in enumerate(layers)})
    marks = [rng.random(size) < share for size, share in layers]
    indices = np.flatnonzero(np.concatenate(marks)).astype(np.uint32)
    values = tuple(Float16Values(bits_of(kind, int(mark.sum()), rng)) for mark in marks)
    return Payload(layout, Dense(layout.size) if indices.size == layout.size else Sparse(indices), values)


def bits_of(kind: str, count: int, rng: np.random.Generator) -> np.ndarray:
    match kind:
        case "laplace":
            return rng.laplace(scale=1e-3, size=count).astype(np.float16).view(np.uint16)
        case "few":
            return rng.choice([0.5, -0.5, 1.25], size=count).astype(np.float16).view(np.uint16)
        case "any":
            return (rng.integers(0, 0x7C00, count) | rng.integers(0, 2, count) << 15).astype(np.uint16)
        case _:
            return np.full(count, 0x3C00, np.uint16)


def written(write, payload: Payload, threads: int) -> bytes:
    writer = Writer()
    assert write(writer, payload, threads) is not False
    return writer.bytes()


def same(one, other) -> None:
    (selection, values), (expected, expected_values) = one, other
    assert type(selection) is type(expected)
    assert selection.count == expected.count
    assert selection.indices.dtype == np.uint32
    assert selection.indices.tobytes() == expected.indices.tobytes()
    assert [v.bits.tobytes() for v in values] == [v.bits.tobytes() for v in expected_values]
    assert all(v.bits.dtype == np.uint16 for v in values)


def check(payload: Payload) -> None:
    expected = written(write_layers, payload, 1)
    for threads in (1, 2, 3):
        assert written(write_float16, payload, threads) == expected
        reader = Reader(memoryview(b"before" + expected + b"behind"), 6)
        found = read_float16(reader, payload.layout, threads)
        assert found is not None
        assert reader.left == len(b"behind")
        same(found, (payload.selection, payload.values))
    same(read_layers(Reader(memoryview(expected)), payload.layout, None, None), (payload.selection, payload.values))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(SIZES, SHARES), min_size=1, max_size=6), st.sampled_from(KINDS), st.integers(0, 2**32))
def test_both_ways_give_the_same(layers, kind, seed):
    check(made(layers, kind, seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 5])
def test_layers_of_several_chunks(size, kind):
    for share in (1.0, 0.5, 0.2, 0.1, 0.01, 0.001, 0.0):
        check(made([(7, 0.5), (size, share), (0, 0.0), (3000, 0.1)], kind, size))


def test_chunks_that_differ():
    rng = np.random.default_rng(0)
    shares = np.repeat([1.0, 0.0, 0.5, 0.1, 0.01], CHUNK)
    indices = np.flatnonzero(rng.random(shares.size) < shares).astype(np.uint32)
    values = Float16Values(bits_of("laplace", indices.size, rng))
    check(Payload(Layout.of({"a": (shares.size,)}), Sparse(indices), (values,)))


def test_no_layers():
    check(Payload(Layout.of({"n": np.zeros(3, np.int64)}), Dense(0), ()))


def test_more_indices_than_bytes():
    """Where values are all alike, a coordinate takes less than the memory that is set aside at first."""
    check(made([(3000, 0.04)] * 40, "equal", 0))
    check(made([(CHUNK, 0.3)], "equal", 0))


@pytest.mark.parametrize("step", [128, 129, 130, 16_385])
@pytest.mark.parametrize("size", [500, 5000, 100_000, CHUNK])
def test_gaps_of_more_than_a_byte_have_room(step, size):
    layout, indices = Layout.of({"a": (size,)}), np.arange(step - 1, size, step, dtype=np.uint32)
    check(Payload(layout, Sparse(indices), (Float16Values(np.arange(indices.size, dtype=np.uint16)),)))


def refused(payload: Payload) -> None:
    writer = Writer()
    assert not write_float16(writer, payload, 2)
    assert writer.bytes() == b""


def test_payloads_that_are_left_to_the_other_way():
    layout = Layout.of({"a": (100,), "b": (50,)})
    ones = [Float16Values(np.full(count, 0x3C00, np.uint16)) for count in (10, 5)]
    indices = np.arange(0, 150, 10, dtype=np.uint32)
    assert write_float16(Writer(), Payload(layout, Sparse(indices), tuple(ones)), 1)

    class Own(Float16Values):
        pass

    strided = Float16Values(np.full(20, 0x3C00, np.uint16)[::2])
    refused(Payload(layout, Seeded(150, 15, 3), tuple(ones)))
    refused(Payload(layout, Sparse(indices), (ones[0], Float32Values(np.ones(5, np.float32)))))
    refused(Payload(layout, Sparse(indices), (Own(ones[0].bits), ones[1])))
    refused(Payload(layout, Sparse(indices), (strided, ones[1])))
    refused(Payload(layout, Sparse(indices), (ones[1], ones[0])))
    refused(Payload(layout, Sparse(indices.astype(np.int64)), tuple(ones)))
    refused(Payload(layout, Sparse(indices[::-1].copy()), tuple(ones)))


@pytest.mark.parametrize("wrong", [[5, 5], [6, 5], [0, 2**32 - 1], [2**32 - 1, 0]])
def test_indices_that_do_not_rise_are_not_written_outside_of_any_memory(wrong):
    layout = Layout.of({"a": (100_000,)})
    indices = np.sort(np.random.default_rng(0).choice(100_000, 9_000, replace=False)).astype(np.uint32)
    indices[4000:4002] = wrong
    refused(Payload(layout, Sparse(indices), (Float16Values(np.zeros(9_000, np.uint16)),)))


def verdict(blob: bytes, layout: Layout) -> object:
    try:
        payload = fedsparq.decode(blob, layout)
    except WireError as error:
        return str(error)
    return payload.indices.tobytes(), payload.dense().tobytes(), [type(values) for values in payload.values]


def without(monkeypatch: pytest.MonkeyPatch, blob: bytes, layout: Layout) -> object:
    with monkeypatch.context() as patched:
        patched.setattr(libzstd, "_functions", lambda: None)
        return verdict(blob, layout)


LAYERS = {
    "small": [(2000, 0.1), (0, 0.0), (40, 0.3), (1, 1.0), (64, 0.02)],
    "every coding": [(3000, 0.5), (3000, 0.2), (9000, 0.1), (9000, 0.01), (500, 1.0), (500, 0.0)],
    "frames": [(60_000, 0.2), (60_000, 1.0)],
}


@pytest.mark.parametrize("name", LAYERS)
def test_damaged_messages_get_the_same_verdict(name, monkeypatch):
    rng = np.random.default_rng(1)
    payloads = [made(LAYERS[name], kind, seed) for seed, kind in enumerate(KINDS)]
    bodies = [fedsparq.encode(payload)[:-8] for payload in payloads]
    taken = 0
    for case in range(1500):
        body, other = (bodies[int(rng.integers(len(bodies)))] for _ in range(2))
        damaged = body[:13] + mutate(body, other, rng)[13:]
        blob = with_checksum(damaged)
        found = verdict(blob, payloads[0].layout)
        assert found == without(monkeypatch, blob, payloads[0].layout), case
        taken += not isinstance(found, str)
    assert 0 < taken < 1500


def test_a_message_that_ends_anywhere(monkeypatch):
    payload = made(LAYERS["small"], "laplace", 0)
    body = fedsparq.encode(payload)[:-8]
    for end in range(13, len(body)):
        blob = with_checksum(body[:end])
        assert verdict(blob, payload.layout) == without(monkeypatch, blob, payload.layout)
        assert read_float16(Reader(memoryview(blob)[:-8], 13), payload.layout, 1) is None


ONE = Layout.of({"a": (200,)})
FIVE = halves(1, 2, 3, 4, 5)
FORGED = {
    "the last index outside": bytes([FLOAT16, GAPS, 5, 6]) + raw(b"\0\0\0\0\xc4\x01") + FIVE,
    "the last index inside": bytes([FLOAT16, GAPS, 5, 6]) + raw(b"\0\0\0\0\xc3\x01") + FIVE,
    "a gap left over": bytes([FLOAT16, GAPS, 5, 6]) + raw(bytes(6)) + FIVE,
    "a gap missing": bytes([FLOAT16, GAPS, 5, 4]) + raw(bytes(4)) + FIVE,
    "a gap with a byte too many": bytes([FLOAT16, GAPS, 5, 6]) + raw(b"\0\0\0\0\x80\0") + FIVE,
    "no gaps": bytes([FLOAT16, GAPS, 5, 0]) + raw(b"") + FIVE,
    "no index": bytes([FLOAT16, GAPS, 0, 0]) + raw(b""),
    "every index, listed": bytes([FLOAT16, BITMAP]) + varint(200) + raw(b"\xff" * 25) + halves(*[1] * 200),
    "a count with a byte too many": bytes([FLOAT16, GAPS, 0x85, 0, 5]) + raw(bytes(5)) + FIVE,
    "a count of 2^70": bytes([FLOAT16, GAPS]) + b"\xff" * 10 + b"\x01",
    "a length of 2^63": bytes([FLOAT16, ALL]) + varint(2**63),
    "a bit too few": bytes([FLOAT16, BITMAP, 5]) + raw(b"\x0f" + bytes(24)) + FIVE,
    "a bit too many": bytes([FLOAT16, BITMAP, 5]) + raw(b"\x3f" + bytes(24)) + FIVE,
    "five bits": bytes([FLOAT16, BITMAP, 5]) + raw(b"\x1f" + bytes(24)) + FIVE,
    "a Rice code": bytes([FLOAT16, RICE, 5, 0]) + b"\0" + FIVE,
    "a Rice code with a bit behind it": bytes([FLOAT16, RICE, 5, 0]) + b"\x20" + FIVE,
    "a Rice parameter too large": bytes([FLOAT16, RICE, 5, 21]) + bytes(20) + FIVE,
    "a Rice code without an end": bytes([FLOAT16, RICE, 5, 0]) + b"\xff" * 50,
    "infinite": bytes([FLOAT16, GAPS, 1, 1]) + raw(b"\0") + raw(b"\xf8") + raw(b"\0"),
    "not a number": bytes([FLOAT16, GAPS, 1, 1]) + raw(b"\0") + raw(b"\xff") + raw(b"\0"),
    "the largest": bytes([FLOAT16, GAPS, 1, 1]) + raw(b"\0") + raw(b"\xf7") + raw(b"\xff"),
    "seeded": bytes([FLOAT16, SEEDED]) + FIVE,
    "a coding of later": bytes([FLOAT16, 6]) + FIVE,
    "another kind of value": bytes([7, EMPTY]),
    "empty": bytes([FLOAT16, EMPTY]),
    "zstd's own frames": bytes([FLOAT16, ALL]) + compressed(bytes(200)) + compressed(bytes(200)),
    "frames of too much": bytes([FLOAT16, ALL]) + compressed(bytes(201)) + compressed(bytes(200)),
    "a frame longer than its content": bytes([FLOAT16, ALL]) + compressed(bytes(range(200))) + raw(bytes(200)),
    "cut in its last stream": bytes([FLOAT16, ALL]) + raw(bytes(200)) + raw(bytes(199)),
    "cut in its last frame": bytes([FLOAT16, ALL]) + raw(bytes(200)) + compressed(bytes(200))[:-1],
    "a byte behind the end": bytes([FLOAT16, EMPTY, 0]),
    "nothing": b"",
}
SOUND = {"the last index inside", "five bits", "a Rice code", "the largest", "empty", "zstd's own frames"}


@pytest.mark.parametrize("name", FORGED)
def test_forged_messages_get_the_same_verdict(name, monkeypatch):
    blob = message(ONE, FORGED[name])
    found = verdict(blob, ONE)
    assert found == without(monkeypatch, blob, ONE)
    assert isinstance(found, str) == (name not in SOUND)


@pytest.mark.parametrize("kind", [bytes, bytearray, lambda blob: memoryview(bytearray(b"xyz" + blob))[3:]])
def test_any_kind_of_bytes_is_read_and_may_be_thrown_away(kind):
    payload = made(LAYERS["every coding"], "laplace", 3)
    blob = kind(fedsparq.encode(payload))
    received = fedsparq.decode(blob, payload.layout)
    if not isinstance(blob, bytes):
        blob[:] = bytes(len(blob))
    assert received.dense().tobytes() == payload.dense().tobytes()


def test_this_way_is_taken_and_the_other_gives_the_same_bytes(monkeypatch):
    payload = made(LAYERS["frames"], "laplace", 4)
    blob = fedsparq.encode(payload)
    with monkeypatch.context() as patched:
        patched.setattr(frame, "write_layers", None)
        patched.setattr(frame, "read_layers", None)
        assert fedsparq.encode(payload) == blob
        assert fedsparq.decode(blob, payload.layout).dense().tobytes() == payload.dense().tobytes()
    monkeypatch.setattr(libzstd, "_functions", lambda: None)
    assert fedsparq.encode(payload) == blob
    assert fedsparq.decode(blob, payload.layout).dense().tobytes() == payload.dense().tobytes()


def test_a_payload_that_does_not_fit_is_named_as_before():
    payload = made([(100, 0.1), (100, 0.5)], "laplace", 0)
    with pytest.raises(WireError, match="'layer0': the payload has"):
        fedsparq.encode(Payload(payload.layout, payload.selection, payload.values[::-1]))
