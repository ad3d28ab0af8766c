"""What Flower's differential privacy promises, still holds with compression behind it."""

import random
from logging import INFO

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Strategy,
)
from toy import SHAPES, client_app, model, values

from fedsparq import DiskStore, Mean, OptionError
from fedsparq.aggregate import PrivateMean
from fedsparq.errors import RunError
from fedsparq.flower import Compressed, FedSparQ, compress
from flower_models import layout_of
from inprocess_grid import InProcessGrid

CLIP = 0.2


def quiet(**options):
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1, **options)


class Norms(FedAvg):
    """Measures how far each reply is from what was sent: parameters and float buffers together."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
        self.norms: list[float] = []

    def configure_train(self, server_round, arrays, config, grid):
        self.sent = values(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        listed = list(replies)
        for reply in listed:
            if reply.has_content():
                after = values(reply.content["arrays"])
                moved = [after[n].astype(np.float64) - self.sent[n] for n in after if after[n].dtype.kind == "f"]
                self.norms.append(float(np.sqrt(sum(np.square(part).sum() for part in moved))))
        return super().aggregate_train(server_round, listed)


@pytest.mark.parametrize("method", ["fedsparq", "fedsparq-adaptive", "stc", "fedavg", "fedpaq", "float16"])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("counters", [False])
def test_after_lost_replies_no_norm_is_above_the_clip(method, adaptive, counters):
    random.seed(0)
    inner = Norms()
    if adaptive:
        strategy = DifferentialPrivacyClientSideAdaptiveClipping(inner, 0.01, 3, CLIP, clip_norm_lr=1e-9)
    else:
        strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.01, CLIP, 3)
    mod = adaptiveclipping_mod if adaptive else fixedclipping_mod
    came = iter(range(100))

    def losing(reply: Message) -> Message | None:
        """Of each round two replies are lost, and each node's three times in a row."""
        number = next(came) // 3
        return reply if (number // 3) % 3 == reply.metadata.src_node_id - 100 else None

    wrapped = Compressed(strategy, method, downlink=None)
    grid = InProcessGrid([client_app(compress(method), mod)] * 3, fate=losing)
    wrapped.start(grid, model(counters=counters), num_rounds=12, timeout=0.01)
    assert len(inner.norms) == 12
    assert max(inner.norms) <= CLIP
    assert max(inner.norms) > CLIP / 10
    assert not [event for r in wrapped.rounds for event in r.events if "refused" in event.reason]


def test_what_is_clipped_off_stays_in_the_residual(tmp_path):
    """Clipped updates (each of norm 0.2) = what was sent + what is owed, parameters only."""
    start = ArrayRecord({"w.weight": Array(np.random.default_rng(0).normal(size=500).astype(np.float32))})
    inner, clipped = Norms(), []
    lost = iter([True, True, True, False, False, False])

    def far(message, context, call_next):
        reply = call_next(message, context)
        before = message.content["arrays"]["w.weight"].numpy()
        moved = np.random.default_rng(len(clipped)).normal(size=500)
        moved *= CLIP / np.linalg.norm(moved)
        clipped.append(moved)
        reply.content["arrays"] = ArrayRecord({"w.weight": Array((before + moved).astype(np.float32))})
        return reply

    strategy = Compressed(DifferentialPrivacyClientSideFixedClipping(inner, 0.0, CLIP, 1), "fedsparq")
    grid = InProcessGrid([client_app(compress(state=tmp_path), far)], fate=lambda reply: None if next(lost) else reply)
    result = strategy.start(grid, start, num_rounds=6, timeout=0.01)
    assert max(inner.norms) <= CLIP
    layout = layout_of(start)
    (folder,) = tmp_path.glob(f"run-*/node-100/{layout.digest:016x}")
    state = DiskStore(folder).load(0, layout).state
    arrived = result.arrays["w.weight"].numpy() - start["w.weight"].numpy()
    np.testing.assert_allclose(arrived + state.compression.residual, np.sum(clipped, axis=0), atol=1e-5)


def test_server_side_wrappers_clip_what_they_decode():
    for wrap in (lambda: Compressed(DifferentialPrivacyServerSideFixedClipping(quiet(), 0.0, CLIP, 3), "stc"),):
        random.seed(0)
        start = model(counters=False)
        grid = InProcessGrid([client_app(compress())] * 3)
        result = wrap().start(grid, start, num_rounds=1, timeout=1)
        moved = [values(result.arrays)[name] - start[name].numpy() for name in start]
        assert 0 < np.sqrt(sum(np.square(part).sum() for part in moved)) <= CLIP * 1.0001


def test_after_local_noise_nothing_is_kept_clipped_or_corrected(tmp_path):
    """What follows `LocalDpMod` is post-processing: its noise must not pile up in a residual, says the keyword."""
    noisy = LocalDpMod(clipping_norm=1.0, sensitivity=1.0, epsilon=10.0, delta=1e-5)
    inner = Norms()
    strategy = Compressed(DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 1e-6, 3), "fedsparq")
    grid = InProcessGrid([client_app(compress(state=tmp_path, error_feedback=False), noisy)] * 3)
    strategy.start(grid, model(counters=False), num_rounds=4, timeout=1)
    assert min(inner.norms) > 1e-3
    layout = layout_of(model(counters=False))
    for number in range(3):
        (folder,) = tmp_path.glob(f"run-*/node-{100 + number}/{layout.digest:016x}")
        assert DiskStore(folder).load(number, layout).state.compression.residual is None


@pytest.mark.parametrize("mod", [fixedclipping_mod, LocalDpMod(1.0, 1.0, 1.0, 1e-5)])
def test_mods_in_the_wrong_order_end_the_run(mod):
    strategy = Compressed(DifferentialPrivacyClientSideFixedClipping(quiet(), 0.0, CLIP, 3))
    with pytest.raises(RunError):
        strategy.start(InProcessGrid([client_app(mod, compress())] * 3), model(counters=False), num_rounds=3, timeout=1)


def weighing(weights, integer=None):
    def mod(message, context, call_next):
        reply = call_next(message, context)
        reply.content["metrics"]["num-examples"] = weights[int(context.node_config["partition-id"])]
        if integer is not None:
            arrays = dict(reply.content["arrays"])
            arrays["bn.num_batches_tracked"] = Array(np.array(integer, np.int64))
            reply.content["arrays"] = ArrayRecord(arrays)
        return reply

    return mod


@pytest.mark.parametrize("make", [lambda: Compressed(quiet(), "fedavg"), lambda: FedSparQ("fedavg")])
def test_fractional_weights_and_far_moving_integers_count(make):
    random.seed(0)
    mod = weighing([0.1, 0.2, 0.3], integer=7 + 5_000_000_000)
    result = make().start(InProcessGrid([client_app(compress(), mod)] * 3), model(), num_rounds=1, timeout=1)
    random.seed(0)
    expected = quiet().start(
        InProcessGrid([client_app(weighing([0.1, 0.2, 0.3]))] * 3), model(), num_rounds=1, timeout=1
    )
    for name in SHAPES:
        np.testing.assert_allclose(result.arrays[name].numpy(), expected.arrays[name].numpy(), rtol=1e-4, atol=1e-5)
    assert result.arrays["bn.num_batches_tracked"].numpy() == 7 + 5_000_000_000


@pytest.mark.parametrize(("aggregator", "weights"), [(None, [1, 1, 1]), (Mean("examples"), [10, 20, 30])])
def test_our_own_strategy_weighs_as_its_aggregator_says(aggregator, weights, caplog):
    start = model()
    updates = []
    for number in range(3):
        from toy import step

        updates.append(step(start, number)["fc.weight"] - start["fc.weight"].numpy())
    with caplog.at_level(INFO, "flwr"):
        strategy = FedSparQ("float16" if aggregator is None else "fedsparq", aggregator=aggregator)
        if aggregator is None:
            strategy = FedSparQ("float16", aggregator=Mean("uniform"))
            result = strategy.start(InProcessGrid([client_app(compress())] * 3), start, num_rounds=1, timeout=1)
        else:
            strategy = FedSparQ("float16", aggregator=aggregator)
            result = strategy.start(InProcessGrid([client_app(compress())] * 3), start, num_rounds=1, timeout=1)
    moved = result.arrays["fc.weight"].numpy() - start["fc.weight"].numpy()
    np.testing.assert_allclose(moved, np.average(updates, axis=0, weights=weights), atol=2e-4)
    said = "by num-examples" if aggregator is not None else "all alike"
    assert any(f"replies weigh {said}" in record.message for record in caplog.records)


def test_a_run_without_a_model_fails_with_the_reason():
    def failing(message, context, call_next):
        raise KeyError("num-partitions")

    for make in (lambda: Compressed(quiet()), lambda: FedSparQ()):
        with pytest.raises(RunError, match=r"ended without a model: .*num-partitions"):
            make().start(InProcessGrid([client_app(compress(), failing)] * 3), model(), num_rounds=2, timeout=1)
        with pytest.raises(RunError, match="ended without a model: no node answered in time"):
            make().start(
                InProcessGrid([client_app(compress())] * 3, fate=lambda reply: None),
                model(),
                num_rounds=1,
                timeout=0.01,
            )


def test_a_run_in_which_every_reply_was_refused_fails():
    def damage(reply):
        array = next(iter(reply.content["arrays"].values()))
        array.data = array.data[:-3] + b"abc"
        return reply

    for make in (lambda: Compressed(quiet()), lambda: FedSparQ()):
        with pytest.raises(RunError, match=r"ended without a model: .*checksum"):
            make().start(InProcessGrid([client_app(compress())] * 3, fate=damage), model(), num_rounds=2, timeout=1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Compressed(quiet(), "fedsparq-private"),
        lambda: FedSparQ("fedsparq-private"),
        lambda: compress("fedsparq-private"),
        lambda: FedSparQ("fedavg", aggregator=PrivateMean(1.0, 1.0, 2.0, 2, 3)),
    ],
)
def test_methods_that_need_a_plan_are_refused_in_an_app_of_ones_own(make):
    """The app's messages have no place for support and clip: nodes would not clip, and noise would cover nothing."""
    with pytest.raises(OptionError, match=r"cannot keep that promise.*fedsparq deploy"):
        make()


@pytest.mark.parametrize("promise", [{"epsilon": 4.0}, {"secure_sums": True}, {"example_clip": 1.0}])
def test_promises_of_a_run_are_refused_in_an_app_of_ones_own(promise):
    for make in (lambda: Compressed(quiet(), "fedavg", **promise), lambda: FedSparQ("fedsparq", **promise)):
        with pytest.raises(OptionError, match="a promise of a whole run"):
            make()
    with pytest.raises(OptionError, match="a promise of a whole run"):
        compress("fedsparq", **promise)


def test_flowers_own_secure_sums_fail_rather_than_send_updates_in_clear():
    """Flower's SecAgg+ is of its old API: with it in the mods no update leaves a node, and the run says so."""
    from flwr.client.mod import secaggplus_mod

    for mods in ((compress(), secaggplus_mod), (secaggplus_mod, compress())):
        with pytest.raises(RunError, match="ended without a model"):
            Compressed(quiet()).start(InProcessGrid([client_app(*mods)] * 3), model(), num_rounds=1, timeout=1)


class Relay(Strategy):
    """A strategy of somebody's around another one, under a name of its own for it."""

    def __init__(self, relayed):
        self.relayed = relayed

    def configure_train(self, server_round, arrays, config, grid):
        return self.relayed.configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        return self.relayed.aggregate_train(server_round, replies)

    def configure_evaluate(self, server_round, arrays, config, grid):
        return self.relayed.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(self, server_round, replies):
        return self.relayed.aggregate_evaluate(server_round, replies)

    def summary(self): ...


WRAPPERS = {
    "server-fixed": lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 1e-6, 1e6, 3),
    "server-adaptive": lambda inner: DifferentialPrivacyServerSideAdaptiveClipping(inner, 1e-6, 3, 1e6),
    "client-fixed": lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 1e-6, 1e6, 3),
    "client-adaptive": lambda inner: DifferentialPrivacyClientSideAdaptiveClipping(inner, 1e-6, 3, 1e6),
}
ORDERS = {
    "inside": lambda private: Compressed(private(quiet())),
    "inside another": lambda private: Compressed(Relay(private(quiet()))),
    "around a private one": lambda private: Compressed(
        DifferentialPrivacyServerSideFixedClipping(Relay(private(quiet())), 0.0, 1e6, 3)
    ),
}


def telling(message, context, call_next):
    """A client whose integers say which one it is."""
    reply = call_next(message, context)
    number = int(context.node_config["partition-id"])
    arrays = dict(reply.content["arrays"])
    arrays["bn.num_batches_tracked"] = Array(np.array(1000 + number, np.int64))
    if "mask" in arrays:
        arrays["mask"] = Array(np.array([number == 1, number == 2, True]))
    reply.content["arrays"] = ArrayRecord(arrays)
    reply.content["metrics"]["norm_bit"] = 1
    return reply


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_integers_of_clients_are_not_released_by_differential_privacy(wrapper, order):
    """No noise covers them, so the server's own stay: in the result, and in what every round's clients are sent."""
    random.seed(0)
    seen: list[ArrayRecord] = []
    start = model()
    grid = InProcessGrid([client_app(compress(), telling, seen=seen)] * 3)
    result = ORDERS[order](WRAPPERS[wrapper]).start(grid, start, num_rounds=3, timeout=1)
    assert len(seen) == 9
    assert list(result.arrays) == list(start)
    for arrays in (*seen, result.arrays):
        for name in {"bn.num_batches_tracked", "mask"} & {*start}:
            assert arrays[name].dtype == start[name].dtype
            np.testing.assert_array_equal(arrays[name].numpy(), start[name].numpy())
    assert np.abs(result.arrays["fc.weight"].numpy() - start["fc.weight"].numpy()).max() > 1e-3


LARGE = {
    "client": lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.0, CLIP, 3),
    "server": lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.0, CLIP, 3),
}


@pytest.mark.parametrize(("wrapper", "compressed"), [("client", True), ("server", True), ("server", False)])
def test_large_weights_are_not_rounded_beyond_the_clip(wrapper, compressed):
    """Near a million a float32 is a multiple of 1/16: 0.2 over 38 of them is rounded to 0.385, if it is."""
    rng = np.random.default_rng(0)
    arrays = {name: 1e6 + rng.normal(size=19) for name in ("w.weight", "n.running_mean")}
    start, inner = ArrayRecord({name: Array(each.astype(np.float32)) for name, each in arrays.items()}), Norms()

    def far(message, context, call_next):
        reply, before = call_next(message, context), message.content["arrays"]
        moved = {name: Array(before[name].numpy() + np.float32(0.5)) for name in before}
        reply.content["arrays"] = ArrayRecord(moved)
        return reply

    mods = [compress("fedavg")] * compressed + [fixedclipping_mod] * (wrapper == "client") + [far]
    strategy = Compressed(LARGE[wrapper](inner), "fedavg")
    result = strategy.start(InProcessGrid([client_app(*mods)] * 3), start, num_rounds=2, timeout=1)
    assert CLIP / 2 < max(inner.norms) <= CLIP * 1.0001
    assert [array.dtype for array in result.arrays.values()] == ["float32"] * 2
