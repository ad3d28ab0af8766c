"""The round driver: every answer reaches the server, and who lost its model is asked again when all have answered."""

from collections.abc import Iterator, Sequence

from small_federation import client, reply, server, vector

from fedsparq.federate.client import Answer
from fedsparq.federate.downlink import Lattice
from fedsparq.federate.messages import Broadcast, FullWanted
from fedsparq.federate.rounds import Delivery, Traffic, play_round
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.federate.validation import Validation


class Engine:
    """Carries messages to clients in this process, and writes down to whom."""

    def __init__(self, made: Server) -> None:
        self.server, self.stores = made, [MemoryStore() for _ in range(3)]
        self.asked: list[list[int]] = []
        self.bases: dict[int, int] = {}

    def ask(self, clients: Sequence[int]) -> Iterator[Delivery]:
        listed = list(clients)
        self.asked.append(listed)
        for number in listed:
            message = self.server.broadcast(number)
            self.bases[number] = Broadcast.decode(message).base
            yield Delivery(number, client(number, self.stores[number]).answer(message))


def test_a_round_from_end_to_end() -> None:
    made, traffic = server(), Traffic()
    engine = Engine(made)
    outcome = play_round(made, [2, 0], engine.ask, traffic)
    assert outcome.counted == (0, 2)
    assert engine.asked == [[2, 0]]
    sent = [engine.stores[number].states[number].in_flight for number in (0, 2)]
    assert traffic.up == sum(map(len, sent))
    assert set(traffic.seconds) == {"train", "compress", "aggregate"}
    assert traffic.seconds["aggregate"] > 0


def test_who_lost_its_model_is_asked_again_at_the_end() -> None:
    made, traffic = server(down=Lattice()), Traffic()
    engine = Engine(made)
    play_round(made, range(3), engine.ask, Traffic())
    engine.stores[0] = MemoryStore()
    engine.asked, bases = [], []

    def ask(clients: Sequence[int]) -> Iterator[Delivery]:
        for delivery in engine.ask(clients):
            bases.append((delivery.client, engine.bases[delivery.client]))
            yield delivery

    outcome = play_round(made, range(3), ask, traffic)
    assert bases == [(0, 1), (1, 1), (2, 1), (0, 0)], "a change to what it is thought to hold, then the whole model"
    assert engine.asked == [[0, 1, 2], [0]]
    assert outcome.counted == (0, 1, 2)
    assert (0, "model not at hand: whole model asked for") in [(event.client, event.reason) for event in outcome.events]
    both = len(FullWanted(2).encode()) + sum(len(s.states[n].in_flight) for n, s in enumerate(engine.stores))
    assert traffic.up == both


def test_client_that_never_has_its_model_is_asked_only_twice() -> None:
    made = server(down=Lattice())
    play_round(made, range(2), Engine(made).ask, Traffic())
    times = []

    def ask(clients: Sequence[int]) -> Iterator[Delivery]:
        for number in clients:
            times.append(number)
            yield Delivery(number, Answer(FullWanted(2).encode()))

    outcome = play_round(made, [0], ask, Traffic())
    assert times == [0, 0]
    assert outcome.counted == ()
    assert "has been sent" in outcome.events[0].reason


def test_silence_remarks_and_refusals() -> None:
    made, traffic = server(validation=Validation(deadline=2.0)), Traffic()
    deliveries = [
        Delivery(0, Answer(None, ("lost on its way",), sent=7)),
        Delivery(1, Answer(reply(vector(1)), ("slow",), 24, train_seconds=1.5, compress_seconds=0.4)),
        Delivery(2, Answer(reply(vector(9)), (), 24, train_seconds=1.5, compress_seconds=0.6)),
        Delivery(3, Answer(b"nonsense", (), 8)),
    ]
    outcome = play_round(made, range(4), lambda clients: deliveries, traffic)
    assert traffic.up == 7 + 24 + 24 + 8
    assert traffic.seconds["train"] == 3.0
    assert traffic.seconds["compress"] == 1.0
    assert outcome.counted == (1,)
    assert [event.client for event in outcome.events] == [0, 1, 2, 3]
    assert [event.reason for event in outcome.events][:2] == ["lost on its way", "slow"]
    assert ["deadline" in event.reason for event in outcome.events] == [False, False, True, False]
