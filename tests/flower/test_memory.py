"""What `FedSparQ` holds does not depend on how many replies there are; and what is missing gets a sentence."""

import gc
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp.strategy import FedAvg
from toy import client_app

from fedsparq import encode, method
from fedsparq.federate.exact import NamedModel
from fedsparq.federate.messages import Reply
from fedsparq.flower import Compressed, FedSparQ, compress, mod
from fedsparq.flower.records import wrap
from flower_models import layout_of
from inprocess_grid import InProcessGrid

SIZE = 500_000


def peak_of(replies: int) -> int:
    """The most memory taken while so many replies are aggregated, each made only when it is asked for."""
    strategy = FedSparQ(min_train_nodes=replies, min_available_nodes=replies)
    start = ArrayRecord({"w.weight": Array(np.zeros(SIZE, np.float32))})
    chosen, layout = method("fedsparq"), layout_of(start)
    update = np.random.default_rng(0).laplace(size=SIZE).astype(np.float32)
    payload, _ = chosen.compress(update, chosen.init(layout), np.random.default_rng(1))
    data = Reply(1, chosen.identity.digest, 1, encode(payload)).encode()

    class Answering(InProcessGrid):
        """Answers are there from the start, and are made when they are pulled."""

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            self.sent = {str(number): message for number, message in enumerate(messages, 1)}
            for name, message in self.sent.items():
                message.metadata.__dict__["_message_id"] = name
            return list(self.sent)

        def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
            for name in message_ids:
                content = {"arrays": wrap(bytes(bytearray(data))), "metrics": MetricRecord({"num-examples": 1})}
                yield Message(RecordDict(content), reply_to=self.sent[name])

    grid = Answering([client_app(compress())] * replies)
    tracemalloc.start()
    try:
        arrays = strategy.start(grid, start, num_rounds=1).arrays
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(strategy.rounds[0].counted) == replies
    assert len(arrays) == 1
    return peak


def test_memory_does_not_grow_with_the_number_of_clients():
    few, many = peak_of(3), peak_of(24)
    assert many < few + 1_000_000


def held_while_training(tmp_path: Path, downlink: str | None) -> list[float]:
    """In each round, what the mod holds while the app trains beside the message, in sizes of the model."""
    held: list[float] = []
    entered = 0

    def watch(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        nonlocal entered
        gc.collect()
        entered = tracemalloc.get_traced_memory()[0]
        return call_next(message, context)

    app = ClientApp()

    @app.train(mods=[watch, compress(state=tmp_path)])
    def train(message: Message, context: Context) -> Message:
        held.append((tracemalloc.get_traced_memory()[0] - entered) / (4 * SIZE))
        ((name, array),) = message.content.array_records["arrays"].items()
        after = array.numpy() + np.random.default_rng(len(held)).laplace(size=SIZE).astype(np.float32)
        content = {"arrays": ArrayRecord({name: Array(after)}), "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    alone = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    start = ArrayRecord({"w.weight": Array(np.zeros(SIZE, np.float32))})
    tracemalloc.start()
    try:
        Compressed(alone, downlink=downlink).start(InProcessGrid([app]), start, num_rounds=3)
    finally:
        tracemalloc.stop()
    return held


def test_the_mod_holds_no_residual_and_no_second_model_while_the_app_trains(tmp_path):
    """It holds the last reply, which is small; and with the way down compressed, the model that it has made of it.

    The first round's residual is new memory that nobody has touched yet, which tracemalloc counts all the same.
    """
    assert held_while_training(tmp_path / "up", None)[1:] == pytest.approx([0, 0], abs=0.3)
    assert held_while_training(tmp_path / "both", "lattice")[1:] == pytest.approx([1, 1], abs=0.3)


def test_what_the_app_of_a_large_model_left_in_a_circle_is_gone_before_compression(tmp_path, monkeypatch):
    monkeypatch.setattr(mod, "LARGE", SIZE)
    left, alive = [], []
    compressed = NamedModel.difference
    monkeypatch.setattr(NamedModel, "difference", lambda *given: alive.append(left[-1]()) or compressed(*given))
    app = ClientApp()

    @app.train(mods=[compress(state=tmp_path)])
    def train(message: Message, context: Context) -> Message:
        def optimizer() -> object:
            return optimizer

        left.append(weakref.ref(optimizer))
        content = {"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})}
        return Message(RecordDict(content), reply_to=message)

    alone = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    start = ArrayRecord({"w.weight": Array(np.zeros(SIZE, np.float32))})
    gc.disable()
    try:
        Compressed(alone).start(InProcessGrid([app]), start, num_rounds=1)
    finally:
        gc.enable()
    assert alive == [None]


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['flwr'] = None; sys.modules['flwr.app'] = None; import fedsparq.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: fedsparq.flower needs Flower: pip install 'fedsparq[flower]'" in done.stderr
