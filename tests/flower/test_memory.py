"""What `FedSparQ` holds does not depend on how many replies there are; and what is missing gets a sentence."""

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from toy import client_app

from fedsparq import encode, method
from fedsparq.engines.blobs import wrap
from fedsparq.federate.messages import Reply
from fedsparq.flower import FedSparQ, compress
from fedsparq.flower.records import layout_of
from inprocess_grid import InProcessGrid

SIZE = 500_000


def peak_of(replies: int) -> int:
    """The most memory taken while so many replies are aggregated, each made only when it is asked for."""
    strategy = FedSparQ(min_train_nodes=replies, min_available_nodes=replies)
    grid = InProcessGrid([client_app(compress())] * replies)
    start = ArrayRecord({"w.weight": Array(np.zeros(SIZE, np.float32))})
    messages = list(strategy.configure_train(1, start, ConfigRecord(), grid))
    chosen, layout = method("fedsparq"), layout_of(start)
    update = np.random.default_rng(0).laplace(size=SIZE).astype(np.float32)
    payload, _ = chosen.compress(update, chosen.init(layout), np.random.default_rng(1))
    data = Reply(1, chosen.identity.digest, 1, encode(payload)).encode()

    def arriving() -> Iterator[Message]:
        for message in messages:
            content = {"arrays": wrap(bytes(bytearray(data))), "metrics": MetricRecord({"num-examples": 1})}
            yield Message(RecordDict(content), reply_to=message)

    tracemalloc.start()
    try:
        arrays, _ = strategy.aggregate_train(1, arriving())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(strategy.rounds[0].counted) == replies
    assert arrays is not None
    return peak


def test_memory_does_not_grow_with_the_number_of_clients():
    few, many = peak_of(3), peak_of(24)
    assert many < few + 1_000_000


def test_a_missing_extra_is_named():
    code = "import sys; sys.modules['flwr'] = None; sys.modules['flwr.app'] = None; import fedsparq.flower"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "MissingExtraError: fedsparq.flower needs Flower: pip install 'fedsparq[flower]'" in done.stderr
