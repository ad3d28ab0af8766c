"""Levels coded by context: back as they went, smaller where they cluster, and refused where the stream is wrong."""

import numpy as np
import plain_context
import pytest
from forge import UNIFORM, floats, message, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsparq import Layout, decode
from fedsparq.errors import WireError
from fedsparq.wire import context

SHAPES = st.one_of(
    st.tuples(st.integers(1, 400)),
    st.tuples(st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5)),
)

TOPS = st.one_of(st.integers(1, 3), st.integers(1, 70), st.integers(71, 32767))


def made(shapes, density, top, seed):
    """(tensor, highest level, levels) of some layers."""
    layout = Layout.of({f"layer{i}": shape for i, shape in enumerate(shapes)})
    rng = np.random.default_rng(seed)
    layers = []
    for tensor in layout.parameters:
        levels = rng.integers(1, top + 1, tensor.size) * rng.choice([-1, 1], tensor.size)
        layers.append((tensor, top, np.where(rng.random(tensor.size) < density, levels, 0).astype(np.int16)))
    return layers


def back(stream, layers):
    return list(context.unpack(np.frombuffer(stream, np.uint8), [(tensor, top) for tensor, top, _ in layers]))


@given(st.lists(SHAPES, min_size=1, max_size=4), st.floats(0, 1), TOPS, st.integers(0, 2**32))
@settings(max_examples=150)
def test_levels_come_back_and_the_plain_decoder_agrees(shapes, density, top, seed):
    layers = made(shapes, density, top, seed)
    stream = context.pack(layers)
    plain = plain_context.Decoder(stream)
    for (tensor, _, levels), found in zip(layers, back(stream, layers), strict=True):
        np.testing.assert_array_equal(found, levels)
        assert plain.layer(tensor.shape, top) == levels.tolist()


def entropy_bytes(levels):
    _, counts = np.unique(levels, return_counts=True)
    return -(counts * np.log2(counts / levels.size)).sum() / 8


def test_independent_levels_cost_their_entropy():
    layers = made([(200, 150)], 0.05, 1, 0)
    assert len(context.pack(layers)) < 1.03 * entropy_bytes(layers[0][2])


def test_clusters_cost_far_less():
    rng = np.random.default_rng(1)
    layout = Layout.of({"w": (120, 400)})
    rows, columns = rng.lognormal(sigma=1.2, size=120), rng.lognormal(sigma=1.2, size=400)
    values = np.outer(rows, columns) * rng.laplace(size=(120, 400))
    levels = np.where(np.abs(values) > np.quantile(np.abs(values), 0.95), np.sign(values), 0).astype(np.int16).ravel()
    assert len(context.pack([(layout.parameters[0], 1, levels)])) < 0.8 * entropy_bytes(levels)


def test_the_stream_must_be_used_up_and_end_in_no_zero():
    layers = made([(30, 30)], 0.2, 2, 3)
    stream = context.pack(layers)
    for wrong in (stream + b"\0", stream + b"\7" * 8):
        with pytest.raises(WireError, match="end before"):
            back(wrong, layers)


def test_nothing_sent_takes_next_to_nothing():
    layers = made([(100, 100)], 0.0, 1, 0)
    assert len(context.pack(layers)) < 40


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), (1, 1, 0)),
        ((7,), (1, 7, 0)),
        ((128, 784), (128, 784, 28)),
        ((10, 12), (10, 12, 0)),
        ((16, 6, 5, 5), (16, 150, 5)),
    ],
)
def test_a_tensor_as_a_matrix(shape, expected):
    assert context.matrix(shape) == expected


def test_a_large_model_is_not_read_by_context():
    """Every coordinate is visited, whatever was sent: above its limit nobody writes it."""
    body = bytes([UNIFORM, 1]) + floats(1.0) + bytes([0])
    small, large = (Layout.of({"w": (size,)}) for size in (context.CONTEXT_LIMIT, context.CONTEXT_LIMIT + 1))
    assert decode(message(small, body, flags=4), small).layout == small
    refused(message(large, body, flags=4), large, f"{context.CONTEXT_LIMIT:,}")
