"""What a server makes of its aggregator and its optimizer: shares, means and steps."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from sharing import Sharing
from small_federation import FEDAVG, reply, server, vector

from fedsparq.errors import OptionError
from fedsparq.federate.messages import NOTHING_COUNTED, Acknowledgement, Broadcast, reply_digest
from fedsparq.federate.server import Server
from fedsparq.layout import Arrays, Buffers, Layout
from fedsparq.method import Method
from fedsparq.optimize import Momentum
from fedsparq.protocols import Aggregate, Update


def opened(chosen: Method) -> Server:
    made = server(chosen)
    made.open_round([0, 1, 2])
    return made


def test_shares_reach_the_clients_with_the_next_broadcast() -> None:
    made = opened(FEDAVG.with_server(Sharing(lambda client, _: (1.0, 0.25, 0.0)[client])))
    messages = [reply(vector(value)) for value in (1, 4, 100)]
    for number, message in enumerate(messages):
        assert made.receive(number, message).taken
    outcome = made.close_round()
    assert outcome.counted == (0, 1)
    assert [(event.client, event.reason) for event in outcome.events] == [
        (2, "taken, but the aggregator let nothing of it count")
    ]
    assert np.array_equal(made.state.model.vector, vector(1 + 0.25 * 4))
    made.open_round([0, 1, 2])
    last = [Broadcast.decode(made.broadcast(number)).acknowledged for number in range(3)]
    digests = [reply_digest(message) for message in messages]
    assert last == [Acknowledgement(1, digests[0], 1.0), Acknowledgement(1, digests[1], 0.25), NOTHING_COUNTED]


def test_model_stays_where_nothing_counts_but_the_aggregator_remembers() -> None:
    made = opened(FEDAVG.with_server(Sharing(lambda *_: 0.0), Momentum()))
    made.receive(0, reply(vector(1)))
    assert made.close_round().counted == ()
    assert not made.state.model.vector.any()
    assert not made.state.optimizer["velocity"].any()
    assert made.state.aggregator["rounds"] == 1
    assert made.state.counted == {}


@dataclass(frozen=True)
class Given:
    """An aggregator that gives what the test says."""

    mean: Any
    shares: Any
    buffers: Buffers | None = None

    def init(self, layout: Layout) -> Arrays:
        return {}

    def open(self, layout: Layout, state: Arrays) -> "Given":
        return self

    def add(self, update: Update) -> None: ...

    def close(self) -> Aggregate:
        return Aggregate(self.mean, self.shares, self.buffers)


@pytest.mark.parametrize(
    ("mean", "shares", "words"),
    [
        (vector(1), {}, "each client of the round a share"),
        (vector(1), {0: 1.0}, "each client"),
        (vector(1), {0: 1.0, 1: 1.0, 2: 1.0}, "each client"),
        (vector(1), {0: 1.0, 1: 1.5}, "from 0 to 1"),
        (vector(1), {0: -0.1, 1: 1.0}, "from 0 to 1"),
        (vector(1), {0: math.nan, 1: 1.0}, "from 0 to 1"),
        (vector(1)[1:], {0: 1.0, 1: 1.0}, "finite mean of 12 values"),
        (vector(np.nan), {0: 1.0, 1: 1.0}, "finite mean of 12 values"),
        (np.full(12, 1e300), {0: 1.0, 1: 1.0}, "finite mean of 12 values"),
    ],
)
def test_aggregator_that_gives_what_it_must_not_is_named(mean: Any, shares: Any, words: str) -> None:
    made = opened(FEDAVG.with_server(Given(mean, shares)))
    for number in (0, 1):
        made.receive(number, reply(vector(1)))
    with pytest.raises(OptionError, match=f"aggregator 'Given' must give .*{words}"):
        made.close_round()
    assert made.state.round == 0
    assert not made.state.model.vector.any()


def test_mean_of_none_leaves_the_step_to_others() -> None:
    made = opened(FEDAVG.with_server(Given(None, {0: 1.0}), Momentum()))
    made.receive(0, reply(vector(1)))
    assert made.close_round().counted == (0,)
    assert made.state.counted[0].round == 1
    assert not made.state.model.vector.any()


def test_model_stays_float32_whatever_the_parts_give() -> None:
    class Doubled:
        def init(self, layout: Layout) -> Arrays:
            return {}

        def step(self, model: Any, mean: Any, state: Arrays) -> tuple[Any, Arrays]:
            assert mean.dtype == np.float32
            return model + np.float64(2) * mean, state

    made = opened(FEDAVG.with_server(Given(np.full(12, 0.5), {0: 1.0}), Doubled()))
    made.receive(0, reply(vector(1)))
    made.close_round()
    assert made.state.model.vector.dtype == np.float32
    assert np.array_equal(made.state.model.vector, vector(1))
