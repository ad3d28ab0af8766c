"""Every type that Flower carries comes back as it went: to the limits of integers, and bit for bit where exact."""

import random
from dataclasses import replace
from logging import WARNING

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from toy import client_app, model

from fedsparq import OptionError
from fedsparq.federate.exact import Beside
from fedsparq.federate.messages import Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.flower.records import unwrap, wrap
from fedsparq.methods.registry import METHODS
from fedsparq.payload.frame import frame_kind
from fedsparq.protocols import ClientRule
from inprocess_grid import InProcessGrid

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def record(**arrays) -> ArrayRecord:
    weight = {"w.weight": np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)}
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in {**weight, **arrays}.items()})


def changing(change, mod=None) -> ClientApp:
    app = ClientApp()

    @app.train(mods=[mod or compress()])
    def train(message: Message, context: Context) -> Message:
        after = {name: change(name, array.numpy()) for name, array in message.content["arrays"].items()}
        arrays = ArrayRecord({name: Array(np.asarray(value)) for name, value in after.items()})
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)

    return app


def moved(name, value):
    return value + np.float32(0.5) if name == "w.weight" else value


MAKE = [
    lambda: Compressed(FedAvg(fraction_evaluate=0.0), "fedavg"),
    lambda: Compressed(FedAvg(fraction_evaluate=0.0), "fedavg", downlink="lattice"),
    lambda: FedSparQ("fedavg", downlink="lattice"),
]


@pytest.mark.parametrize("make", MAKE)
def test_integers_are_exact_to_their_limits(make):
    limits = {
        kind: np.array([np.iinfo(kind).min, np.iinfo(kind).max, 1, np.iinfo(kind).max - 1], kind) for kind in INTEGERS
    }
    start = record(**limits, flags=np.array([True, False]), scalar=np.int64(2**62 + 1), none=np.zeros((0, 3), np.int32))
    result = make().start(InProcessGrid([changing(moved)] * 3), start, num_rounds=3, timeout=1)
    assert list(result.arrays) == list(start)
    for name in start:
        if name != "w.weight":
            got, expected = result.arrays[name].numpy(), start[name].numpy()
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
            np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize(("make", "top"), [(MAKE[0], 2**40), (MAKE[1], 2**40), (MAKE[2], 2**64 - 1)])
def test_integers_that_nodes_change_arrive_exactly(make, top):
    """Around a strategy of Flower's they pass through floats, which hold far smaller integers."""

    def to_top(name, value):
        return np.array([top, top - 1], np.uint64) if name == "big" else moved(name, value)

    start = record(big=np.array([0, 1], np.uint64))
    result = make().start(InProcessGrid([changing(to_top)] * 3), start, num_rounds=2, timeout=1)
    assert result.arrays["big"].numpy().tolist() == [top, top - 1]


@pytest.mark.parametrize("make", MAKE)
def test_float64_is_exact_and_said(make, caplog):
    value = np.array([1 + 2**-50, np.pi, 1e300 if make is not MAKE[2] else 1e5 + 2**-30])

    def nudged(name, before):
        return before + 2**-45 if name == "precise" and before.max() < 10 else moved(name, before)

    start = record(precise=value)
    random.seed(0)
    with caplog.at_level(WARNING, "flwr"):
        result = make().start(InProcessGrid([changing(nudged)] * 2), start, num_rounds=2, timeout=1)
    np.testing.assert_array_equal(result.arrays["precise"].numpy(), value)
    assert len([r for r in caplog.records if "float64 arrays travel exactly" in r.message]) == 1


def test_half_floats_scalars_and_empty_arrays():
    half = np.array([0.5, -2.25, 1e-7, 65504], np.float16)
    start = record(half=half, one=np.float32(3.5), none=np.zeros((0, 4), np.float32))
    result = MAKE[0]().start(InProcessGrid([changing(moved)] * 2), start, num_rounds=2, timeout=1)
    assert result.arrays["half"].numpy().dtype == np.float16
    np.testing.assert_array_equal(result.arrays["half"].numpy(), half)
    assert result.arrays["one"].numpy() == np.float32(3.5)
    assert result.arrays["none"].numpy().shape == (0, 4)
    np.testing.assert_allclose(result.arrays["w.weight"].numpy(), start["w.weight"].numpy() + 1, rtol=1e-5)


def test_arrays_that_no_type_of_numpys_says_travel_exactly():
    """bfloat16 comes to Flower as two bytes without a meaning: they arrive as they are."""
    raw = Array("bfloat16", (3,), "numpy.ndarray", Array(np.array([b"ab", b"cd", b"ef"], "V2")).data)
    start = ArrayRecord({**record(), "brain": raw})
    seen: list[bytes] = []

    class Passing(FedAvg):
        """Averaging cannot take such arrays: a strategy that has them must look after them."""

        def aggregate_train(self, server_round, replies):
            listed = list(replies)
            seen.extend(reply.content["arrays"]["brain"].data for reply in listed)
            for reply in listed:
                floats = {n: a for n, a in reply.content["arrays"].items() if n != "brain"}
                reply.content = RecordDict({**reply.content, "arrays": ArrayRecord(floats)})
            arrays, metrics = super().aggregate_train(server_round, listed)
            return ArrayRecord({**arrays, "brain": raw}), metrics

    app = ClientApp()

    @app.train(mods=[compress()])
    def train(message: Message, context: Context) -> Message:
        arrays = dict(message.content["arrays"].items())
        arrays["w.weight"] = Array(arrays["w.weight"].numpy() + np.float32(1))
        metrics = MetricRecord({"num-examples": 1})
        return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)

    result = Compressed(Passing(fraction_evaluate=0.0)).start(InProcessGrid([app] * 2), start, num_rounds=2, timeout=1)
    assert set(seen) == {raw.data}
    assert result.arrays["brain"].data == raw.data


@pytest.mark.parametrize("method", ["fedsparq-adaptive", "random-10", "fedpaq", "fedsparq", "stc"])
@pytest.mark.parametrize("own", [False, True])
def test_tied_arrays_do_not_drift_apart(method, own):
    """An embedding and the layer after it are one tensor under two names."""
    tied = np.random.default_rng(1).normal(size=(30, 8)).astype(np.float32)
    start = record(**{"embed.weight": tied, "head.weight": tied.copy()})

    def pulled(name, value):
        return value * np.float32(0.9) + np.float32(0.01) if "weight" in name else value

    made = (
        FedSparQ(method, downlink="lattice")
        if own
        else Compressed(FedAvg(fraction_evaluate=0.0), method, downlink="lattice")
    )
    result = made.start(InProcessGrid([changing(pulled)] * 3), start, num_rounds=5, timeout=1)
    one, other = (result.arrays[name].numpy() for name in ("embed.weight", "head.weight"))
    np.testing.assert_array_equal(one, other)
    assert (one != tied).any()


def test_two_arrays_are_not_tied_because_one_node_says_so():
    """Node 102 says that two arrays of one shape are one: its reply may be read so, and nobody's model."""
    start = record(**{"a.weight": np.zeros((6, 8), np.float32), "b.weight": np.full((6, 8), 5, np.float32)})
    seen = list[np.ndarray]()

    def pulled(name, value):
        if name == "b.weight":
            seen.append(value)
        return value + np.float32(0.1)

    def lying(reply: Message) -> Message:
        frame = unwrap(reply.content["arrays"]) if reply.metadata.src_node_id == 102 and reply.has_content() else None
        if frame is not None and frame_kind(frame) == "R":
            beside = Beside({}, (("b.weight", "a.weight"),))
            frame = replace(Reply.decode(frame), beside=beside).encode()
            reply.content = RecordDict({**reply.content, "arrays": wrap(frame)})
        return reply

    strategy = Compressed(FedAvg(fraction_evaluate=0.0), "fedavg", downlink="lattice")
    strategy.start(InProcessGrid([changing(pulled)] * 3, lying), start, num_rounds=5, timeout=1)
    assert len(seen) == 15
    assert min(value.min() for value in seen) > 3


@pytest.mark.parametrize("own", [False, True])
def test_a_node_of_a_federation_that_begins_anew_takes_no_integers_from_its_last_run(own, tmp_path):
    """The second run's first model has the parameters of the first run's, and other integers."""
    seen = list[int]()

    def noted(name, value):
        seen.extend([int(value)] if name == "counter" else [])
        return value

    for counter in (3, 7):
        app = changing(noted, compress(state=tmp_path))
        start = record(counter=np.int64(counter))
        strategy = {"downlink": "lattice", "federation": "wards"}
        made = FedSparQ("fedavg", **strategy) if own else Compressed(FedAvg(fraction_evaluate=0.0), **strategy)
        made.start(InProcessGrid([app] * 2), start, num_rounds=1, timeout=1)
    assert seen == [3, 3, 7, 7]


class Drifting(ClientRule):
    """A rule that changes gradients, and that no config can tell."""

    def gradient(self, gradient, weights, start, state) -> None:
        gradient += 1


def test_rules_that_only_the_app_can_run_are_refused_unless_it_says_so(monkeypatch):
    from fedsparq import Method, method

    def drifting() -> Method:
        return Method(method("fedsparq").compressor, "full", rules=(Drifting(),))

    drifting.__module__ = "fedsparq.methods.registry"
    monkeypatch.setitem(METHODS, "drifting", drifting)
    for make in (lambda **more: Compressed(FedAvg(), "drifting", **more), lambda **more: FedSparQ("drifting", **more)):
        with pytest.raises(
            OptionError, match=r"'drifting' changes the gradients .* 'drifting', .* runs=\[\"drifting\"\]"
        ):
            make()
        grid = InProcessGrid([client_app(compress())] * 3)
        with pytest.raises(OptionError, match=r"no node could take part: .* runs=\[\"drifting\"\] in compress"):
            make(runs=["drifting"]).start(grid, model(), num_rounds=1, timeout=1)
        grid = InProcessGrid([client_app(compress(runs=["drifting"]))] * 3)
        strategy = make(runs=["drifting"])
        strategy.start(grid, model(), num_rounds=2, timeout=1)
        assert len(strategy.rounds[-1].counted) == 3
    with pytest.raises(OptionError, match="must be a list"):
        Compressed(FedAvg(), runs="drifting")


def test_the_log_says_who_decides_what(caplog):
    with caplog.at_level("INFO", "flwr"):
        Compressed(FedAvg(fraction_evaluate=0.0)).start(
            InProcessGrid([client_app(compress())] * 2), model(), num_rounds=1, timeout=1
        )
    said = [r.message for r in caplog.records if "averages and steps" in r.message]
    assert said == [
        "fedsparq: 'fedsparq' compresses; FedAvg averages and steps, not the method, and its client rules "
        "(proximal-mu) reach the app only by its own config; FedSparQ() runs the whole method"
    ]


@pytest.mark.parametrize(
    ("method", "warned"), [("fedsparq", True), ("stc", True), ("float16", False), ("fedavg", False)]
)
def test_robust_strategies_with_sparse_methods_get_one_warning_that_names_the_better_choice(method, warned, caplog):
    from flwr.serverapp.strategy import FedMedian, FedTrimmedAvg, Krum

    for strategy in (FedMedian, FedTrimmedAvg, Krum):
        caplog.clear()
        with caplog.at_level(WARNING, "flwr"):
            Compressed(strategy(fraction_evaluate=0.0), method)
        said = [r.message for r in caplog.records if "compares nodes" in r.message]
        assert len(said) == warned
        assert all(f'FedSparQ({strategy.__name__}(...), "float16")' in text for text in said)


def test_the_legacy_api_is_told_how_to_move():
    class Legacy:
        pass

    with pytest.raises(OptionError, match=r"takes a strategy of flwr.serverapp.strategy, .* Message API"):
        Compressed(Legacy())  # type: ignore[arg-type]
