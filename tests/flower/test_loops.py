"""Compression hangs on messages: the strategy's own loop, its own arrays for each node, several rounds in flight."""

import random
import time
from logging import WARNING

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAvg,
    Result,
)
from toy import client_app, model, step, values

from fedsparq import DiskStore, OptionError, decode
from fedsparq.federate.exact import to_vector
from fedsparq.federate.messages import Reply
from fedsparq.flower import Compressed, FedSparQ, compress
from fedsparq.flower.records import unwrap
from flower_models import layout_of
from inprocess_grid import InProcessGrid


class Compressing(InProcessGrid):
    """Notes of each reply whether it came compressed."""

    def __init__(self, apps) -> None:
        self.compressed: list[bool] = []
        super().__init__(apps, fate=self.note)

    def note(self, reply: Message) -> Message:
        self.compressed.append(reply.has_content() and unwrap(reply.content["arrays"]) is not None)
        return reply


class OwnStart(FedAvg):
    """As Flower's advanced-pytorch: a loop of its own, and attributes that the server app sets."""

    save_path = None

    def set_save_path(self, path) -> None:
        self.save_path = path

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, *rest, **more) -> Result:
        result, arrays, config = Result(), initial_arrays, train_config or ConfigRecord()
        for number in range(1, num_rounds + 1):
            replies = grid.send_and_receive(self.configure_train(number, arrays, config, grid), timeout=timeout)
            arrays = self.aggregate_train(number, replies)[0] or arrays
            (self.save_path / f"{number}").write_text("saved")
        result.arrays = arrays
        return result


def test_the_inner_strategys_own_start_runs_and_its_attributes_are_reached(tmp_path):
    strategy = Compressed(OwnStart(fraction_evaluate=0.0))
    (tmp_path := tmp_path / "saved").mkdir()
    strategy.set_save_path(tmp_path)
    strategy.fraction_train = 0.7
    assert (strategy.save_path, strategy.inner.fraction_train) == (tmp_path, 0.7)
    grid = Compressing([client_app(compress())] * 3)
    result = strategy.start(grid, model(), num_rounds=3, timeout=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]
    assert [len(r.counted) for r in strategy.rounds] == [2, 2, 2]
    assert list(result.arrays) == list(model())
    assert all(grid.compressed)
    with pytest.raises(AttributeError, match="no_such_thing"):
        strategy.no_such_thing  # noqa: B018


class Personal(FedAvg):
    """Each node has a model of its own, and gets only that."""

    def configure_train(self, server_round, arrays, config, grid):
        self.own = getattr(self, "own", None) or {node: model(node) for node in grid.get_node_ids()}
        return [
            Message(RecordDict({"arrays": own, "config": ConfigRecord()}), node, MessageType.TRAIN)
            for node, own in self.own.items()
        ]

    def aggregate_train(self, server_round, replies):
        for reply in replies:
            self.own[reply.metadata.src_node_id] = reply.content["arrays"]
        return next(iter(self.own.values())), None


@pytest.mark.parametrize("downlink", [None, "lattice"])
def test_each_node_trains_on_what_the_strategy_sent_to_it(downlink, caplog):
    seen: list[ArrayRecord] = []
    strategy = Compressed(Personal(), "fedavg", downlink=downlink)
    with caplog.at_level(WARNING, "flwr"):
        strategy.start(InProcessGrid([client_app(compress(), seen=seen)] * 3), model(), num_rounds=3, timeout=1)
    for node in range(3):
        for got, name in ((seen[node][name], name) for name in model(counters=False)):
            assert (got.numpy() == model(100 + node)[name].numpy()).all()
    for node, own in strategy.inner.own.items():
        expected = model(node)
        for _ in range(3):
            expected = ArrayRecord({n: Array(np.asarray(v)) for n, v in step(expected, node - 100).items()})
        for name in expected:
            np.testing.assert_allclose(own[name].numpy(), expected[name].numpy(), rtol=1e-5, atol=1e-6)
    said = [r.message for r in caplog.records if "models of their own" in r.message]
    assert len(said) == (downlink is not None)


class Adapters(FedAvg):
    """Sends only a part of the model, as those do that train adapters."""

    def configure_train(self, server_round, arrays, config, grid):
        self.whole = arrays
        part = ArrayRecord({name: array for name, array in arrays.items() if name.startswith("fc.")})
        return super().configure_train(server_round, part, config, grid)

    def aggregate_train(self, server_round, replies):
        part, metrics = super().aggregate_train(server_round, replies)
        return ArrayRecord({**self.whole, **part}) if part else None, metrics


@pytest.mark.parametrize("downlink", [None, "lattice"])
def test_a_strategy_that_sends_a_part_of_the_model_sends_that_part(downlink):
    seen: list[ArrayRecord] = []
    strategy = Compressed(Adapters(fraction_evaluate=0.0), downlink=downlink)
    result = strategy.start(InProcessGrid([client_app(compress(), seen=seen)] * 3), model(), num_rounds=3, timeout=1)
    assert {tuple(arrays) for arrays in seen} == {("fc.weight", "fc.bias")}
    assert (result.arrays["conv.weight"].numpy() == model()["conv.weight"].numpy()).all()
    assert (result.arrays["fc.weight"].numpy() != model()["fc.weight"].numpy()).any()


def test_a_strategy_around_ours_is_refused():
    """It would see compressed messages."""
    for inner in (Compressed(FedAvg(fraction_evaluate=0.0)), FedSparQ()):
        wrapped = DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 0.3, 3)
        with pytest.raises(OptionError, match="FedSparQ outermost"):
            wrapped.start(InProcessGrid([client_app(compress())] * 3), model(counters=False), num_rounds=1, timeout=1)


@pytest.mark.parametrize("downlink", [None, "lattice"])
def test_differential_privacy_inside_compresses(downlink):
    for wrapper, mods in (
        (lambda inner: DifferentialPrivacyServerSideFixedClipping(inner, 0.0, 0.3, 3), ()),
        (lambda inner: DifferentialPrivacyClientSideFixedClipping(inner, 0.0, 0.3, 3), (fixedclipping_mod,)),
    ):
        random.seed(0)
        start = model(counters=False)
        strategy = Compressed(wrapper(FedAvg(fraction_evaluate=0.0)), downlink=downlink)
        grid = Compressing([client_app(compress(), *mods)] * 3)
        result = strategy.start(grid, start, num_rounds=4, timeout=1)
        assert all(grid.compressed)
        layout = layout_of(start)
        moved = to_vector(result.arrays, layout) - to_vector(start, layout)
        assert 0 < np.linalg.norm(moved) < 4 * 0.3 * 1.001
        assert [len(r.counted) for r in strategy.rounds] == [3] * 4


class InFlight(FedAvg):
    """Keeps two rounds in flight: each round's replies are pulled only after the next one's messages are out."""

    def start(self, grid, initial_arrays, num_rounds=3, timeout=3600, train_config=None, *rest, **more) -> Result:
        arrays, waiting, result = initial_arrays, [], Result()
        for number in range(1, num_rounds + 1):
            waiting.append(grid.push_messages(self.configure_train(number, arrays, ConfigRecord(), grid)))
            if len(waiting) == 2:
                arrays = self.aggregate_train(number - 1, grid.pull_messages(waiting.pop(0)))[0] or arrays
        arrays = self.aggregate_train(num_rounds, grid.pull_messages(waiting.pop()))[0] or arrays
        result.arrays = arrays
        return result


@pytest.mark.parametrize("lost", [set(), {(100, 2), (101, 3), (102, 4)}])
def test_with_several_rounds_in_flight_nothing_is_lost_and_nothing_counts_twice(lost, tmp_path):
    layout, sent, deltas = layout_of(model()), {}, {}

    def fate(message):
        reply = Reply.decode(unwrap(message.content["arrays"]))
        key = message.metadata.src_node_id, reply.round
        sent[key] = decode(reply.blob, layout).dense()
        return None if key in lost else message

    strategy = Compressed(InFlight(fraction_evaluate=0.0))
    app = client_app(compress(state=tmp_path), deltas=deltas)
    strategy.start(InProcessGrid([app] * 3, fate=fate), model(), num_rounds=6, timeout=1)
    counted = {(node, r.round) for r in strategy.rounds for node in r.counted}
    assert counted == set(sent) - lost
    (session,) = tmp_path.iterdir()
    for node in (100, 101, 102):
        store = DiskStore(session / f"node-{node}" / f"{layout.digest:016x}")
        state = store.load(node - 100, layout).state
        waiting = {Reply.decode(reply).round: Reply.decode(reply) for reply in state.undecided}
        # What the server has counted, but not told yet, is still in flight here: it must not be counted twice below.
        owed = sum(decode(reply.blob, layout).dense() for n, reply in waiting.items() if (node, n) not in counted)
        total = sum(payload for key, payload in sent.items() if key in counted and key[0] == node)
        np.testing.assert_allclose(
            total + owed + state.compression.residual, np.sum(deltas[node - 100], axis=0), atol=3e-5
        )


class Delivered(FedAvg):
    """A loop that never calls `aggregate_train`: it steps by itself."""

    def start(self, grid, initial_arrays, num_rounds=3, *rest, **more) -> Result:
        arrays, result = initial_arrays, Result()
        for number in range(1, num_rounds + 1):
            replies = grid.send_and_receive(self.configure_train(number, arrays, ConfigRecord(), grid), timeout=1)
            arrays = next(iter(replies)).content["arrays"]
        result.arrays = arrays
        return result


def test_a_loop_that_never_aggregates_counts_what_it_was_given():
    strategy = Compressed(Delivered(fraction_evaluate=0.0))
    grid = InProcessGrid([client_app(compress())] * 3)
    strategy.start(grid, model(), num_rounds=3, timeout=1)
    assert not any("put back" in event.reason for r in strategy.rounds for event in r.events)
    assert all(r.counted for r in strategy.rounds)


class TwoRecords(FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content = RecordDict({**message.content, "more": ArrayRecord({"x": Array(np.zeros(3))})})
            yield message


def test_what_cannot_be_compressed_travels_plain_is_counted_and_said_once(caplog):
    strategy = Compressed(TwoRecords(fraction_evaluate=0.0))
    with caplog.at_level(WARNING, "flwr"):
        result = strategy.start(InProcessGrid([client_app(compress())] * 3), model(), num_rounds=2, timeout=1)
    assert [r.dense for r in strategy.rounds] == [3, 3]
    assert len([r for r in caplog.records if "2 ArrayRecords cannot be compressed" in r.message]) == 1
    expected = FedAvg(fraction_evaluate=0.0).start(InProcessGrid([client_app()] * 3), model(), num_rounds=2, timeout=1)
    for name in model(counters=False):
        value = values(result.arrays)[name]
        np.testing.assert_allclose(value, expected.arrays[name].numpy(), rtol=1e-5, atol=1e-6)


def test_a_reply_with_two_records_travels_plain():
    def doubling(message, context, call_next):
        reply = call_next(message, context)
        reply.content = RecordDict({**reply.content, "more": ArrayRecord({"x": Array(np.zeros(3))})})
        return reply

    class Dropping(FedAvg):
        def aggregate_train(self, server_round, replies):
            for reply in replies:
                reply.content = RecordDict({name: each for name, each in reply.content.items() if name != "more"})
            return super().aggregate_train(server_round, replies)

    strategy = Compressed(Dropping(fraction_evaluate=0.0))
    strategy.start(InProcessGrid([client_app(compress(), doubling)] * 3), model(), num_rounds=2, timeout=1)
    assert [(r.replies, r.dense) for r in strategy.rounds] == [(3, 3), (3, 3)]


def test_metrics_of_the_reply_reach_the_strategy_untouched():
    got: list[MetricRecord] = []

    class Looking(FedAvg):
        def aggregate_train(self, server_round, replies):
            listed = list(replies)
            got.extend(reply.content["metrics"] for reply in listed)
            assert all(set(reply.content) == {"arrays", "metrics"} for reply in listed)
            return super().aggregate_train(server_round, listed)

    Compressed(Looking(fraction_evaluate=0.0)).start(
        InProcessGrid([client_app(compress())] * 3), model(), num_rounds=2, timeout=1
    )
    assert sorted(record["num-examples"] for record in got) == [10, 10, 20, 20, 30, 30]


@pytest.mark.parametrize("own", [False, True])
def test_a_node_that_never_answers_is_not_waited_for_an_hour(own, monkeypatch):
    """Without a deadline of the user's, a round waits for as long as rounds took so far, and some."""
    monkeypatch.setattr("fedsparq.flower.grid._LEAST_PATIENCE", 0.3)
    grid = InProcessGrid(
        [client_app(compress())] * 3, fate=lambda reply: None if reply.metadata.src_node_id == 101 else reply
    )
    strategy = FedSparQ() if own else Compressed(FedAvg(fraction_evaluate=0.0))
    begun = time.monotonic()
    strategy.start(grid, model(), num_rounds=2, timeout=3600)
    assert time.monotonic() - begun < 60
    assert [r.counted for r in strategy.rounds] == [(100, 102)] * 2
