"""Messages damaged in ways that know the format, most with a checksum that holds: refused, or sound; never worse."""

import tracemalloc

import numpy as np
import pytest
from forge import varint, with_checksum, zstd

import fedsparq
from fedsparq import Buffers, Layout, Payload, WireError
from made_updates import FILLS, fill

LAYOUTS = [
    Layout.of({"w": (40, 50), "none": (0,), "b": (40,), "one": (1,)}),
    Layout.of({"w": (900,), "bn.running_mean": np.zeros(30, np.float32), "n": np.zeros(3, np.int64)}),
    Layout.of({"w": (64, 64), "head": (64, 10)}),
]
HEADER = 13
SPARE = 1 << 20
"""What a decoder may use beyond a few times the model: the objects of the interpreter."""


def messages(layout, seed):
    """What every method sends for every kind of update."""
    kinds = sorted(FILLS)
    buffers = Buffers(np.ones(layout.buffer_size, np.float32), np.arange(layout.counter_size))
    for i, name in enumerate(fedsparq.METHODS):
        method = fedsparq.method(name)
        state = method.init(layout)
        for r in range(4):
            update = fill(layout, ["laplace" if r < 2 else kinds[(i + r) % len(kinds)]], seed + r)
            payload, state = method.compress(update, state, np.random.default_rng(r))
            carried = buffers if layout.buffer_size else None
            yield fedsparq.encode(Payload(layout, payload.selection, payload.values, carried))


def numbers(rng):
    """Bytes that look like counts, lengths, codings and frames, but are not those that belong there."""
    value = int(rng.choice([0, 1, 2, 127, 128, 2000, 2**14, 2**20, 2**32 - 1, 2**63, 2**70]))
    frame = zstd.compress(bytes(int(rng.choice([0, 1, 100, 2000, 1 << 22]))))
    return [varint(value), varint(len(frame)) + frame, rng.bytes(int(rng.integers(1, 12))), b"\x80" * 11][
        int(rng.integers(4))
    ]


def mutate(body, other, rng):
    """One change of a message's body; `other` is another body of the same layout."""
    i, j = sorted(int(n) for n in rng.integers(0, len(body) + 1, 2))
    near = min(i + int(rng.integers(1, 9)), len(body))
    match int(rng.integers(9)):
        case 0:
            at = min(i, len(body) - 1)
            return body[:at] + bytes([body[at] ^ 1 << int(rng.integers(8))]) + body[at + 1 :]
        case 1:
            return body[:i] + bytes([int(rng.choice([0, 1, 2, 3, 4, 5, 6, 0x7F, 0x80, 0xFF]))]) + body[i + 1 :]
        case 2:
            return body[:i] + numbers(rng) + body[i:]
        case 3:
            return body[:i] + numbers(rng) + body[near:]
        case 4:
            return body[:i] + body[near:]
        case 5:
            return body[:i] + body[i:near] * int(rng.integers(2, 5)) + body[near:]
        case 6:
            return body[:i] + other[j:]
        case 7:
            return body[:i] + other[i:j] + body[j:]
        case _:
            return body[:i]


def check(blob, layout):
    """Decode and add; returns whether the message was taken."""
    accumulator = np.ones(layout.size, np.float32)
    try:
        payload = fedsparq.decode(blob, layout)
    except WireError:
        return False
    indices = payload.indices.astype(np.int64)
    assert payload.kept == indices.size <= layout.size
    assert (np.diff(indices) > 0).all()
    assert indices.size == 0 or (indices[0] >= 0 and indices[-1] < layout.size)
    dense = payload.dense()
    assert np.isfinite(dense).all()
    payload.add_to(accumulator)
    np.testing.assert_array_equal(accumulator, 1 + dense)
    assert fedsparq.decode(fedsparq.encode(payload), layout).dense().tobytes() == dense.tobytes()
    return True


def fuzz(cases, seed):
    rng = np.random.default_rng(seed)
    bodies = [[blob[:-8] for blob in messages(layout, seed)] for layout in LAYOUTS]
    taken = 0
    tracemalloc.start()
    try:
        for case in range(cases):
            which = case % len(LAYOUTS)
            layout, of_layout = LAYOUTS[which], bodies[which]
            body, other = (of_layout[int(rng.integers(len(of_layout)))] for _ in range(2))
            header = body[:HEADER]
            for _ in range(int(rng.integers(1, 4))):
                body = mutate(body, other, rng) or b"\0"
            if rng.random() < 0.8:
                body = header + body[HEADER:]  # the right digest: the damage lies deeper
            blob = with_checksum(body) if rng.random() < 0.95 else body
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            taken += check(blob, layout)
            assert tracemalloc.get_traced_memory()[1] - before < 40 * layout.size + SPARE
    finally:
        tracemalloc.stop()
    return taken


def test_undamaged_messages_are_taken():
    for layout in LAYOUTS:
        assert all(check(blob, layout) for blob in messages(layout, 1))


def test_damaged_messages():
    taken = fuzz(2_000, seed=1)
    assert taken < 1_000  # changed values and seeds make other sound messages; most damage must be seen


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_damaged_messages(seed):
    assert fuzz(5_000, seed) < 2_500
