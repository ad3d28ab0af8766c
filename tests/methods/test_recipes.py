"""Every method by name: from an update to bytes and back, bit for bit, whatever the update."""

import inspect

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedsparq
from fedsparq import METHODS, Buffers, Layout
from fedsparq.compress.feedback import (
    DeferredFeedback,
    ErrorControlled,
    ErrorFeedback,
    MomentumCorrected,
    NoFeedback,
    ScaledErrorFeedback,
    Shifted,
)
from fedsparq.errors import OptionError, UpdateError
from fedsparq.methods.demo import DecoupledMomentum
from fedsparq.optimize import Adam, Momentum, Sign, Step, Yogi
from fedsparq.payload import Dense, Seeded, Sparse
from fedsparq.rules import Proximal
from made_updates import FILLS, fill, fills, layouts

NAMES = list(METHODS)
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


EXAMPLES, UNIFORM = {"weighting": "examples"}, {"weighting": "uniform"}
PROXIMAL = {"proximal-mu": 0.01}
PARTS = {
    "fedavg": (EXAMPLES, {"server_momentum": 0.0}),
    "float16": ({"weighting": "uniform"}, {"rounding": "nearest"}),
    "fedpaq": (EXAMPLES | {"contractive": False}, {"levels": 64}),
    "random-10": ({"weighting": "uniform"}, {"fraction": 0.1}),
    "top-10": ({"weighting": "uniform"}, {"fraction": 0.1}),
    "fedsparq": (
        {"weighting": "uniform", "feedback": ErrorFeedback(), "config": PROXIMAL, "optimizer": Momentum(0.01)},
        {
            "beta": 0.9,
            "multiplier": 1.0,
            "scope": "layer",
            "start": "debiased",
            "residual": "full",
            "rounding": "nearest",
            "proximal_mu": 0.01,
            "server_momentum": 0.01,
        },
    ),
    "fedsparq-adaptive": (
        EXAMPLES | {"feedback": DeferredFeedback(), "optimizer": Momentum(0.3, restart=True), "contractive": False},
        {
            "bits": 0.2,
            "budget": "",
            "rounding": "stochastic",
            "deferred": 0.3,
            "beta": 0.5,
            "proximal_mu": 0.0,
            "server_momentum": 0.3,
            "drift": "sent",
            "stale": "sent",
        },
    ),
    "fedsparq-private": (
        {"weighting": "uniform", "feedback": ErrorFeedback(), "optimizer": Momentum(0.0)},
        {"fraction": 0.1, "top": 2, "known": 0.5, "small": 0.0, "server_momentum": 0.0},
    ),
    "mean-threshold": ({"weighting": "uniform", "feedback": ErrorFeedback()}, {"multiplier": 1.0}),
    "percentile": ({"weighting": "uniform", "feedback": ErrorFeedback()}, {"percentile": 90.0}),
    "stc": ({"weighting": "uniform", "feedback": ErrorFeedback()}, {"fraction": 0.01, "scope": "global"}),
    "dgc": (
        {"weighting": "uniform", "feedback": MomentumCorrected(0.5)},
        {"fraction": 0.01, "momentum": 0.5, "clip_norm": 0.0, "warmup": 4, "start": 0.25},
    ),
    "adacomp": ({"weighting": "uniform", "feedback": ErrorFeedback()}, {"conv_bin": 50, "bin": 500}),
    "uniform": (
        {"weighting": "uniform", "feedback": ErrorFeedback()},
        {"step": 2.0, "dead_zone": 0.6, "scope": "global"},
    ),
    "qsgd": (EXAMPLES | {"contractive": False}, {"levels": 16, "bucket": 512, "norm": "l2"}),
    "eden": (EXAMPLES, {}),
    "fedadam": (
        EXAMPLES | {"optimizer": Adam(0.1, 0.9, 0.99, 1e-3)},
        {"lr": 0.1, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    ),
    "fedyogi": (
        EXAMPLES | {"optimizer": Yogi(0.01, 0.9, 0.99, 1e-3)},
        {"lr": 0.01, "beta_1": 0.9, "beta_2": 0.99, "tau": 1e-3},
    ),
    "fedcom": (EXAMPLES | {"contractive": False}, {"levels": 64, "gamma": 1.0}),
    "fedcomgate": (EXAMPLES | {"contractive": False}, {"levels": 512, "gamma": 1.0}),
    "scaled-feedback": (UNIFORM | {"feedback": ScaledErrorFeedback(1.0)}, {"fraction": 0.01, "kappa": 1.0}),
    "sa-pef": (UNIFORM | {"feedback": ErrorFeedback()}, {"fraction": 0.01, "alpha": 0.5}),
    "econtrol": (UNIFORM | {"feedback": ErrorControlled(0.1)}, {"fraction": 0.1, "eta": 0.1, "lr": 1.0}),
    "ef21": (UNIFORM | {"feedback": Shifted(1.0, 0.5)}, {"fraction": 0.1, "new": 0.5, "lr": 1.0}),
    "soteriafl": (
        UNIFORM | {"feedback": Shifted((39 / 16000) ** 0.5), "contractive": False},
        {"fraction": 0.05, "gamma": None, "lr": 1.0},
    ),
    "jointsq": (UNIFORM | {"feedback": ErrorFeedback(), "contractive": False}, {"ratio": 0.032}),
    "fedfq": (EXAMPLES | {"contractive": False}, {"ratio": 0.032, "solver": "greedy"}),
    "powersgd": (UNIFORM | {"feedback": ErrorFeedback()}, {"rank": 4}),
    "drive": (EXAMPLES, {"scale": "unbiased"}),
    "fetchsgd": (
        UNIFORM | {"contractive": False},
        {"size": 0.1, "rows": 5, "fraction": 0.01, "momentum": 0.0, "seed": 0},
    ),
    "demo": (
        UNIFORM | {"feedback": DecoupledMomentum(0.999), "optimizer": Sign(0.003)},
        {"kept": 32, "momentum": 0.999, "lr": 0.003},
    ),
    "sobaa": (
        UNIFORM | {"feedback": ErrorFeedback()},
        {"fraction": 0.2, "power": 1.0, "noise": 0.1, "silent": 0.1, "estimate": "mean"},
    ),
    "spafl": (UNIFORM, {"penalty": 0.002}),
}
"""What each method is made of where it is not the usual (of FedAvg), and every option with its default."""


def test_the_papers_six_methods_are_there():
    assert set(THE_PAPERS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_parts_and_options_of_each_method(name):
    method, (parts, options) = fedsparq.method(name), PARTS[name]
    assert dict(method.options) == options
    usual = {"feedback": NoFeedback(), "weighting": "examples", "optimizer": Step(), "contractive": True, "config": {}}
    found = {
        "feedback": method.feedback,
        "weighting": getattr(method.aggregator, "weighting", "uniform"),
        "optimizer": method.optimizer,
        "contractive": method.traits.is_contractive,
        "config": {key: value for rule in method.traits.rules for key, value in rule.config.items()},
    }
    assert found == usual | parts


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_tells_of_its_options(name):
    recipe = METHODS[name]
    for option in inspect.signature(recipe).parameters:
        assert f"        {option}: " in recipe.__doc__


def test_options_of_0_leave_their_parts_out():
    method = fedsparq.method("fedsparq", proximal_mu=0, server_momentum=0)
    assert method.rules == ()
    assert method.optimizer == Step()
    assert fedsparq.method("fedavg", server_momentum=0.9).optimizer == Momentum(0.9)
    assert fedsparq.method("fedsparq-adaptive", proximal_mu=0.1).rules == (Proximal(0.1),)


def test_rounding_decides_how_the_adaptive_method_remembers():
    method = fedsparq.method("fedsparq-adaptive", rounding="nearest")
    assert method.feedback == ErrorFeedback()
    assert method.traits.is_contractive


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
    buffers = Buffers(np.array([1e-45, -0.0, 3.4e38, 1 / 3], np.float32), np.array([-(2**63)], np.int64))
    blob = fedsparq.encode(fedsparq.Payload(layout, payload.selection, payload.values, buffers))
    received = fedsparq.decode(blob, layout).buffers
    assert received.statistics.tobytes() == buffers.statistics.tobytes()
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


def test_how_each_method_says_its_indices():
    layout = Layout.of({"a": (500,)})
    update = np.random.default_rng(1).normal(size=500).astype(np.float32)

    def selection(name):
        method = fedsparq.method(name)
        return method.compress(update, method.init(layout), np.random.default_rng(0))[0].selection

    assert isinstance(selection("fedavg"), Dense)
    assert isinstance(selection("float16"), Dense)
    assert isinstance(selection("fedpaq"), Sparse)  # most levels are zero, and are not sent
    assert isinstance(selection("random-10"), Seeded)
    assert isinstance(selection("top-10"), Sparse)
    assert isinstance(selection("fedsparq"), Sparse)


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
