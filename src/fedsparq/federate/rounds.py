"""The one round driver: it opens a round, hands answers to the server, asks again who lost its model, closes.

Engines differ only in how they carry messages. In a Flower app the loop is the strategy's own, and compression hangs on
its messages: see flower/grid.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedsparq.federate.client import Answer
from fedsparq.federate.server import RoundOutcome, Server


@dataclass(frozen=True)
class Delivery:
    """What came back from a client: an answer, or silence."""

    client: int
    answer: Answer


Ask = Callable[[Sequence[int]], Iterable[Delivery]]
"""Sends the open round's broadcast to some clients, and gives their answers as they come."""


@dataclass
class Traffic:
    """What a round sent, and how long its parts took."""

    up: int = 0
    down: int = 0
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """What clients measured of models of their own."""
    seconds: dict[str, float] = field(default_factory=lambda: {"train": 0.0, "compress": 0.0, "aggregate": 0.0})

    def add(self, server: Server, delivery: Delivery) -> None:
        """Count what an answer weighed and took; the server notes what its client has to say."""
        answer = delivery.answer
        self.up += answer.sent
        self.seconds["train"] += answer.train_seconds
        self.seconds["compress"] += answer.compress_seconds
        for name, value in answer.metrics.items():
            self.metrics.setdefault(name, []).append(value)
        for remark in answer.remarks:
            server.note(delivery.client, remark)


def play_round(server: Server, clients: Sequence[int], ask: Ask, traffic: Traffic) -> RoundOutcome:
    """A whole round. Who asks for the whole model is asked again when all others have answered."""
    server.open_round(clients)
    while clients:
        lost = []
        for delivery in ask(clients):
            begun = time.perf_counter()
            if _deliver(server, delivery, traffic):
                lost.append(delivery.client)
            traffic.seconds["aggregate"] += time.perf_counter() - begun
        clients = lost
    begun = time.perf_counter()
    outcome = server.close_round()
    traffic.seconds["aggregate"] += time.perf_counter() - begun
    return outcome


def _deliver(server: Server, delivery: Delivery, traffic: Traffic) -> bool:
    """Hand an answer to the server; whether it asks for the whole model."""
    answer = delivery.answer
    traffic.add(server, delivery)
    if answer.message is None:
        return False
    return server.receive(delivery.client, answer.message, answer.train_seconds + answer.compress_seconds).resend
