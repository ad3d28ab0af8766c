"""Compressed and FedSparQ around an in-process grid."""

import random
import time

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    Krum,
    Strategy,
)
from toy import client_app, model, values

from fedsparq import OptionError, Validation
from fedsparq.errors import RunError
from fedsparq.flower import Compressed, FedSparQ, compress
from inprocess_grid import InProcessGrid


def play(strategy: Strategy, apps, rounds: int = 5, start: ArrayRecord | None = None, **grid_options):
    random.seed(0)  # Flower samples nodes, and so orders sums and ties, by the global generator
    grid = InProcessGrid(apps, **grid_options)
    result = strategy.start(grid, start or model(), num_rounds=rounds, timeout=1)
    return result.arrays, grid


def strategies(counters: bool):
    yield FedAvg(fraction_evaluate=0.0)
    yield FedAvgM(fraction_evaluate=0.0, server_momentum=0.5)
    yield FedProx(fraction_evaluate=0.0, proximal_mu=0.1)
    yield FedAdam(fraction_evaluate=0.0)
    yield FedMedian(fraction_evaluate=0.0)
    yield FedTrimmedAvg(fraction_evaluate=0.0)
    yield Krum(fraction_evaluate=0.0)
    if not counters:
        yield DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.0, 100.0, 3)
        yield DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(fraction_evaluate=0.0), 0.0, 3, 100.0, clipped_count_stddev=0.0
        )


@pytest.mark.parametrize("index", range(9))
def test_lossless_compression_changes_nothing(index):
    """Around any strategy, the method that sends everything gives the model that the bare strategy gives."""
    plain, packed = (list(strategies(counters=False))[index] for _ in range(2))
    start = model(counters=False)
    expected, _ = play(plain, [client_app()] * 3, start=start)
    got, _ = play(Compressed(packed, "fedavg"), [client_app(compress("fedavg"))] * 3, start=start)
    for name, value in values(got).items():
        np.testing.assert_allclose(value, expected[name].numpy(), rtol=2e-5, atol=2e-6, err_msg=name)
        assert value.dtype == np.float32


@pytest.mark.parametrize("index", range(7))
def test_types_and_integers_come_back_as_they_went(index):
    got, _ = play(Compressed(list(strategies(counters=True))[index]), [client_app(compress())] * 3)
    before = values(model())
    assert list(got) == list(before)
    for name, value in values(got).items():
        assert (value.dtype, value.shape) == (before[name].dtype, before[name].shape), name
    np.testing.assert_array_equal(got["mask"].numpy(), before["mask"])
    if index not in (1, 3):  # FedAvgM and FedAdam put momentum on everything
        assert got["bn.num_batches_tracked"].numpy() == 7 + 5


@pytest.mark.parametrize(
    "wrapper",
    [
        lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.0, 1.0, 3),
        lambda: DifferentialPrivacyServerSideAdaptiveClipping(
            FedAvg(fraction_evaluate=0.0), 0.0, 3, 1.0, clipped_count_stddev=0.0
        ),
    ],
)
def test_clipping_strategies_bear_integers(wrapper):
    """Flower's own clipping fails on integer arrays; behind ours it never sees them."""
    got, _ = play(Compressed(wrapper()), [client_app(compress())] * 3, rounds=2)
    assert got["bn.num_batches_tracked"].numpy() == 7  # no noise would cover the clients'
    assert list(got) == list(model())


@pytest.mark.parametrize(
    ("wrapper", "mod"),
    [
        (
            lambda: DifferentialPrivacyClientSideFixedClipping(FedAvg(fraction_evaluate=0.0), 0.1, 0.5, 3),
            fixedclipping_mod,
        ),
        (
            lambda: DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(fraction_evaluate=0.0), 0.1, 3, 0.5),
            adaptiveclipping_mod,
        ),
    ],
)
def test_clipping_on_the_client_comes_before_compression(wrapper, mod):
    start = model(counters=False)
    got, grid = play(Compressed(wrapper()), [client_app(compress(), mod)] * 3, rounds=2, start=start)
    assert not any(reply.has_error() for reply in grid.replies)
    assert any((value != start[name].numpy()).any() for name, value in values(got).items())


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_float_types_survive(dtype):
    from flwr.app import Array

    start = ArrayRecord({name: Array(value.astype(dtype)) for name, value in values(model(counters=False)).items()})
    seen: list[ArrayRecord] = []
    got, _ = play(
        Compressed(FedAvg(fraction_evaluate=0.0)), [client_app(compress(), seen=seen)] * 3, rounds=2, start=start
    )
    assert {array.dtype for record in (got, *seen) for array in record.values()} == {dtype}


def test_the_app_sees_plain_arrays_and_its_own_config():
    seen: list[ArrayRecord] = []
    app = client_app(compress(), seen=seen)
    play(Compressed(FedAvg(fraction_evaluate=0.0)), [app] * 3, rounds=2)
    assert len(seen) == 6
    for arrays in seen:
        assert list(arrays) == list(model())
        assert all(array.stype == "numpy.ndarray" for array in arrays.values())


@pytest.mark.parametrize(("method", "times"), [("fedsparq", 3), ("fedsparq-adaptive", 25)])
def test_both_directions_are_one_blob_after_the_first_contact(method, times):
    big = ArrayRecord({f"layer{i}.weight": value for i, value in enumerate(_large(40, 5000))})
    apps = [_pulling(compress(method))] * 3
    _, grid = play(Compressed(FedAvg(fraction_evaluate=0.0), method, downlink=method), apps, rounds=1, start=big)
    first_down = dict(grid.down)
    grid2 = InProcessGrid(apps)
    Compressed(FedAvg(fraction_evaluate=0.0), method, downlink=method).start(grid2, big, num_rounds=4, timeout=1)
    dense = 40 * 5000 * 4
    later = (grid2.down[100] - first_down[100]) / 3
    assert first_down[100] > dense
    assert later < dense / times
    assert grid2.up[100] / 4 < dense / times


def test_our_count_of_bytes_is_flowers_within_its_overhead():
    strategy = Compressed(FedAvg(fraction_evaluate=0.0))
    _, grid = play(strategy, [client_app(compress())] * 3)
    ours_up, ours_down = (sum(getattr(r, k) for r in strategy.rounds) for k in ("up_bytes", "down_bytes"))
    messages = 5 * 3
    assert 0 < sum(grid.up.values()) - ours_up < 1500 * messages
    assert 0 < sum(grid.down.values()) - ours_down < 2500 * messages


def test_an_uncompressed_client_works_and_is_counted_as_dense():
    strategy = Compressed(FedAvg(fraction_evaluate=0.0), "fedavg")
    got, _ = play(strategy, [client_app(compress()), client_app(), client_app(compress())])
    expected, _ = play(FedAvg(fraction_evaluate=0.0), [client_app()] * 3)
    assert [r.dense for r in strategy.rounds] == [1] * 5
    assert [len(r.counted) for r in strategy.rounds] == [3] * 5
    for name in ("conv.weight", "fc.bias"):
        np.testing.assert_allclose(got[name].numpy(), expected[name].numpy(), rtol=1e-5, atol=1e-6)
    ours = FedSparQ("fedavg", downlink="float16")
    play(ours, [client_app(compress()), client_app(), client_app(compress())])
    assert [r.dense for r in ours.rounds] == [1] * 5


def test_a_compressing_client_of_a_plain_server_sends_plain_arrays():
    expected, _ = play(FedAvg(fraction_evaluate=0.0), [client_app()] * 3)
    got, _ = play(FedAvg(fraction_evaluate=0.0), [client_app(compress("fedsparq"))] * 3)
    assert all((value == expected[name].numpy()).all() for name, value in values(got).items())


def test_different_methods_are_told_apart_in_one_sentence():
    with pytest.raises(OptionError, match="compresses with 'top-10', the server with 'fedsparq'; name the same method"):
        play(Compressed(FedAvg(fraction_evaluate=0.0)), [client_app(compress("top-10"))] * 3, rounds=1)
    with pytest.raises(OptionError, match=r"'fedsparq multiplier=2.0', the server with 'fedsparq'"):
        play(FedSparQ(), [client_app(compress("fedsparq", multiplier=2))] * 3, rounds=1)


def test_what_is_left_to_the_federation_need_not_be_named_by_clients():
    strategy = FedSparQ("fedsparq-adaptive", bits=8, fraction_train=0.5, min_train_nodes=2)
    play(strategy, [client_app(compress("fedsparq-adaptive", bits=8))] * 4, rounds=2)
    assert [r.replies for r in strategy.rounds] == [2, 2]
    named = client_app(compress("fedsparq-adaptive", drift="sent"))
    with pytest.raises(OptionError, match="drift=left-out instead of sent"):
        play(FedSparQ("fedsparq-adaptive", fraction_train=0.5), [named] * 4, rounds=1)
    with pytest.raises(OptionError, match=r"bits=8\.0 instead of 0\.2"):
        play(FedSparQ("fedsparq-adaptive", bits=8), [client_app(compress("fedsparq-adaptive"))] * 3, rounds=1)


def test_the_federation_chooses_where_the_server_is_the_methods_own():
    def drift(strategy):
        return strategy._method.options["drift"]

    assert drift(FedSparQ("fedsparq-adaptive", fraction_train=0.1)) == "left-out"
    assert drift(FedSparQ("fedsparq-adaptive")) == "sent"
    assert drift(FedSparQ("fedsparq-adaptive", fraction_train=0.1, aggregator="robust")) == "sent"
    assert drift(FedSparQ("fedsparq-adaptive", fraction_train=0.1, validation=Validation(acknowledge=False))) == "sent"
    assert drift(Compressed(FedAvg(fraction_train=0.1), "fedsparq-adaptive")) == "sent"


def test_one_client_with_another_method_does_not_stop_the_others():
    strategy = Compressed(FedAvg(fraction_evaluate=0.0))
    play(strategy, [client_app(compress("fedsparq"))] * 2 + [client_app(compress("top-10"))], rounds=2)
    assert [r.replies for r in strategy.rounds] == [2, 2]
    assert any("compresses with 'top-10'" in event.reason for event in strategy.rounds[0].events)


def test_other_model_shapes_are_named():
    def reshaping(message, context, call_next):
        reply = call_next(message, context)
        arrays = values(reply.content["arrays"])
        reply.content["arrays"] = ArrayRecord({**_arrays(arrays), **_arrays({"fc.bias": np.zeros(6, np.float32)})})
        return reply

    with pytest.raises(OptionError, match=r"tensor 'fc.bias' has shape \(6,\), the model has \(5,\)"):
        play(Compressed(FedAvg(fraction_evaluate=0.0)), [client_app(compress(), reshaping)] * 3, rounds=1)


def test_unknown_names_and_options_fail_at_once():
    with pytest.raises(OptionError, match="there is no method 'zip'"):
        compress("zip")
    with pytest.raises(OptionError, match="no option 'level'"):
        Compressed(FedAvg(fraction_evaluate=0.0), "fedsparq", level=3)
    with pytest.raises(OptionError, match="need the name of the method"):
        compress(beta=0.5)


def test_hostile_replies_are_refused_and_the_rest_goes_on():
    def damage(reply):
        if reply.metadata.src_node_id == 101 and reply.has_content():
            array = next(iter(reply.content["arrays"].values()))
            array.data = array.data[:-3] + b"abc"
        return reply

    strategy = Compressed(FedAvg(fraction_evaluate=0.0))
    got, _ = play(strategy, [client_app(compress())] * 3, rounds=3, fate=damage)
    assert [r.replies for r in strategy.rounds] == [2, 2, 2]
    assert any("refused" in event.reason for event in strategy.rounds[0].events)
    assert all(np.isfinite(value).all() for value in values(got).values())


def test_fedsparq_obeys_its_validation():
    strategy = FedSparQ(validation=Validation(norm_limit="1e-9"))
    with pytest.raises(RunError, match=r"ended without a model: the update's norm .* is above the limit"):
        play(strategy, [client_app(compress())] * 3, rounds=1)
    assert strategy.rounds[0].counted == ()


def test_fedsparq_does_not_wait_beyond_its_deadline():
    strategy = FedSparQ(validation=Validation(deadline=0.2))
    random.seed(0)
    grid = InProcessGrid(
        [client_app(compress())] * 3, fate=lambda reply: None if reply.metadata.src_node_id == 101 else reply
    )
    start = time.monotonic()
    strategy.start(grid, model(), num_rounds=2, timeout=3600)
    assert time.monotonic() - start < 30
    assert [r.counted for r in strategy.rounds] == [(100, 102), (100, 102)]


def test_fedsparq_tells_the_proximal_term():
    configs: list[ConfigRecord] = []

    def spy(message, context, call_next):
        configs.append(message.content["config"])
        return call_next(message, context)

    play(FedSparQ(proximal_mu=0.25), [client_app(compress(), spy)] * 3, rounds=1)
    assert {config["proximal-mu"] for config in configs} == {0.25}
    assert all(set(config) == {"proximal-mu", "server-round"} for config in configs)


def _arrays(arrays):
    from flwr.app import Array

    return {name: Array(np.asarray(value)) for name, value in arrays.items()}


def _large(layers: int, size: int):
    rng = np.random.default_rng(1)
    return _arrays({str(i): rng.normal(size=size).astype(np.float32) for i in range(layers)}).values()


def _pulling(mod):
    from flwr.app import Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train(mods=[mod])
    def train(message, context):
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        after = {
            k: v + 0.01 * rng.laplace(size=v.shape).astype(np.float32)
            for k, v in values(message.content["arrays"]).items()
        }
        return Message(
            RecordDict({"arrays": ArrayRecord(_arrays(after)), "metrics": MetricRecord({"num-examples": 1})}),
            reply_to=message,
        )

    return app
