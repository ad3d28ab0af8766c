"""Every method by name: from an update to bytes and back, bit for bit, whatever the update."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import Exact, Layout
from fedsparq.compress.payload import Everything, Listed, Seeded
from fedsparq.errors import OptionError, UpdateError
from made_updates import FILLS, fill, fills, layouts

NAMES = list(fedsparq.METHODS)
THE_PAPERS = ["fedavg", "float16", "fedpaq", "random-10", "top-10", "fedsparq"]


def travels_unchanged(payload, layout):
    blob = fedsparq.encode(payload)
    received = fedsparq.decode(blob, layout)
    sent = payload.dense()
    assert received.dense().tobytes() == sent.tobytes()
    assert received.kept == payload.kept
    assert fedsparq.encode(received) == blob
    accumulator = np.zeros(layout.size, np.float32)
    received.add_to(accumulator)
    np.testing.assert_array_equal(accumulator, sent)
    return blob


def test_the_papers_six_methods_are_there():
    assert set(THE_PAPERS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_round_trip_over_random_layouts(name, layout, kinds, seed):
    method = fedsparq.method(name)
    state = method.init(layout)
    for r in range(3):
        update = fill(layout, kinds, seed + r)
        payload, state = method.compress(update, state, np.random.default_rng([seed, r]))
        assert np.isfinite(payload.dense()).all()
        travels_unchanged(payload, layout)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", FILLS)
def test_round_trip_over_every_kind_of_layer(name, kind):
    layout = Layout.of({"w": (40, 50), "one": (1,), "none": (0, 4), "scalar": ()})
    method = fedsparq.method(name)
    state = method.init(layout)
    for r in range(3):
        payload, state = method.compress(fill(layout, [kind], r), state, np.random.default_rng(r))
        travels_unchanged(payload, layout)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shapes", [{}, {"none": (0,)}, {"one": (1,)}, {"scalar": ()}], ids=str)
def test_round_trip_of_the_smallest_models(name, shapes):
    layout = Layout.of(shapes)
    method = fedsparq.method(name)
    state = method.init(layout)
    for r in range(3):
        payload, state = method.compress(np.full(layout.size, -0.1, np.float32), state, np.random.default_rng(r))
        travels_unchanged(payload, layout)


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_of_twelve_million(name):
    layout = Layout.of({"embedding": (11_000_000,), "none": (0,), "head": (1000, 999), "bias": (1000,)})
    assert layout.size == 12_000_000
    method = fedsparq.method(name)
    rng = np.random.default_rng(0)
    update = rng.standard_normal(layout.size, np.float32) ** 3 * np.float32(1e-3)
    payload, _ = method.compress(update, method.init(layout), rng)
    blob = fedsparq.encode(payload)
    assert fedsparq.decode(blob, layout).dense().tobytes() == payload.dense().tobytes()


@pytest.mark.parametrize(
    "options",
    [
        {"scope": "global"},
        {"start": "zero"},
        {"residual": "kept-only"},
        {"residual": "off"},
        {"rounding": "stochastic"},
    ],
    ids=str,
)
@given(layout=layouts(), kinds=fills(), seed=st.integers(0, 2**32))
@settings(max_examples=15)
def test_round_trip_of_fedsparqs_options(options, layout, kinds, seed):
    method = fedsparq.method("fedsparq", **options)
    state = method.init(layout)
    for r in range(3):
        payload, state = method.compress(fill(layout, kinds, seed + r), state, np.random.default_rng(r))
        travels_unchanged(payload, layout)


@pytest.mark.parametrize("name", NAMES)
def test_buffers_and_counters_travel_exactly(name):
    arrays = {
        "conv.weight": np.zeros((3, 3), np.float32),
        "bn.running_mean": np.zeros(4, np.float32),
        "bn.num_batches_tracked": np.zeros((), np.int64),
    }
    layout = Layout.of(arrays)
    method = fedsparq.method(name)
    payload, _ = method.compress(np.ones(9, np.float32), method.init(layout), np.random.default_rng(0))
    exact = Exact(np.array([1e-45, -0.0, 3.4e38, 1 / 3], np.float32), np.array([-(2**63)], np.int64))
    blob = fedsparq.encode(fedsparq.Payload(layout, payload.selection, payload.values, exact))
    received = fedsparq.decode(blob, layout).exact
    assert received.buffers.tobytes() == exact.buffers.tobytes()
    assert received.counters.tolist() == [-(2**63)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_the_layers_name(name, bad):
    layout = Layout.of({"first": (10,), "none": (0,), "second.weight": (30, 3), "last": (2,)})
    update = np.ones(layout.size, np.float32)
    update[10 + 17] = bad
    method = fedsparq.method(name)
    state = method.init(layout)
    with pytest.raises(UpdateError, match=r"'second\.weight'.* 17 of 90"):
        method.compress(update, state, np.random.default_rng(0))


@pytest.mark.parametrize(
    "update",
    [
        np.zeros(5, np.float32),
        np.zeros(6, np.float64),
        np.zeros(6, np.float16),
        np.zeros(6, ">f4"),
        np.zeros((2, 3), np.float32),
        [0.0] * 6,
        None,
    ],
    ids=lambda u: f"{getattr(u, 'dtype', type(u).__name__)}{getattr(u, 'shape', '')}",
)
def test_an_update_of_another_kind_is_refused(update):
    layout = Layout.of({"a": (6,)})
    method = fedsparq.method("fedsparq")
    with pytest.raises(UpdateError, match=r"float32\[6\]"):
        method.compress(update, method.init(layout), np.random.default_rng(0))


@pytest.mark.parametrize("name", NAMES)
def test_read_only_and_strided_updates_are_read_like_any_other(name):
    layout = Layout.of({"a": (60,), "b": (40,)})
    method = fedsparq.method(name)
    plain = np.random.default_rng(2).normal(size=100).astype(np.float32)
    frozen, strided = plain.copy(), np.repeat(plain, 2)[::2]
    frozen.flags.writeable = False
    blobs = {
        fedsparq.encode(method.compress(update, method.init(layout), np.random.default_rng(3))[0])
        for update in (plain, frozen, strided)
    }
    assert len(blobs) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_result_is_a_function_of_update_state_and_seed(name):
    layout = Layout.of({"a": (500,)})
    update = np.random.default_rng(1).normal(size=500).astype(np.float32)
    method = fedsparq.method(name)
    first, second = (
        fedsparq.encode(method.compress(update, method.init(layout), np.random.default_rng(5))[0]) for _ in range(2)
    )
    assert first == second


def test_how_each_method_says_its_places():
    layout = Layout.of({"a": (500,)})
    update = np.random.default_rng(1).normal(size=500).astype(np.float32)

    def selection(name):
        method = fedsparq.method(name)
        return method.compress(update, method.init(layout), np.random.default_rng(0))[0].selection

    assert isinstance(selection("fedavg"), Everything)
    assert isinstance(selection("float16"), Everything)
    assert isinstance(selection("fedpaq"), Listed)  # most levels are zero, and are not sent
    assert isinstance(selection("random-10"), Seeded)
    assert isinstance(selection("top-10"), Listed)
    assert isinstance(selection("fedsparq"), Listed)


def test_a_seeded_mask_costs_no_index():
    layout = Layout.of({"a": (10_000,)})
    method = fedsparq.method("random-10")
    payload, _ = method.compress(np.ones(10_000, np.float32), method.init(layout), np.random.default_rng(0))
    assert payload.kept == 1000
    assert len(fedsparq.encode(payload)) <= 4 * 1000 + 40


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("fedsparc", {}, "fedsparq"),
        ("fedsparq", {"betta": 0.9}, "beta"),
        ("fedsparq", {"scope": "client"}, "layer"),
        ("fedsparq", {"beta": "much"}, "number"),
        ("fedpaq", {"levels": 2.5}, "whole number"),
        ("eden", {"fraction": 0.1}, "none"),
    ],
)
def test_unknown_names_and_options_are_refused_with_what_there_is(name, options, message):
    with pytest.raises(OptionError, match=message):
        fedsparq.method(name, **options)
