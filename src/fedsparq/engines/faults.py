"""Things that go wrong in the field, made to happen: an engine around another one.

What happens to a client in a round is a function of the seed, the round and the client alone, so that two runs with the
same spec suffer the same faults, however often one of them is killed and resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np

from fedsparq.compress.payload import Floats, Listed, Payload
from fedsparq.engines.local import Delivery, Engine
from fedsparq.engines.transit import Transit
from fedsparq.experiments.spec import FaultSpec
from fedsparq.federate.client import Answer
from fedsparq.federate.messages import Reply, decode_answer
from fedsparq.layout import Layout
from fedsparq.wire.frame import decode, encode


class ServerCrashError(Exception):
    """The server dies here, in the middle of a round."""


class FaultyEngine:
    """Loses, delays, doubles and damages messages, crashes clients and the server, and lets some clients lie."""

    def __init__(
        self, inner: Engine, faults: FaultSpec, layout: Layout, clients: int, seed: int, transit: Path
    ) -> None:
        self._inner, self._faults, self._layout, self._seed, self._folder = inner, faults, layout, seed, transit
        self._under_way: Transit | None = None
        self._crashed: set[int] = set()
        order = np.random.default_rng([seed, 3]).permutation(clients)
        self.hostile = frozenset(int(client) for client in order[: round(faults.hostile * clients)])

    def __enter__(self) -> FaultyEngine:
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        if self._under_way is not None:
            yield from self._ask(number, 1, requests, saved, dying, self._under_way)
            return
        before, self._under_way = Transit.load(self._folder, number - 1), Transit()
        try:
            self._under_way.last |= before.last
            yield from (Delivery(client, Answer(message)) for client, message in before.late)
            answers = self._ask(number, 0, requests, saved, dying, self._under_way)
            yield from self._until_crash(number, answers, len(requests))
            self._under_way.save(self._folder, number)
            Transit.forget(self._folder, saved)
        finally:
            self._under_way = None

    def _until_crash(self, number: int, answers: Iterator[Delivery], steps: int) -> Iterator[Delivery]:
        """The server crashes once a round at most: before any of the answers, or after the last. All clients have
        answered by then: they do not know of it."""
        rng = np.random.default_rng([self._seed, number, 5])
        if number in self._crashed or rng.random() >= self._faults.server_crash:
            yield from answers
            return
        self._crashed.add(number)
        yield from list(answers)[: int(rng.integers(steps + 1))]
        raise ServerCrashError

    def _ask(
        self,
        number: int,
        again: int,
        requests: Mapping[int, bytes],
        saved: int,
        dying: frozenset[int],
        under_way: Transit,
    ) -> Iterator[Delivery]:
        """Answers to these requests, as they arrive; `again` is 1 for the requests of whole models."""
        chances = {client: np.random.default_rng([self._seed, number, client, 4, again]) for client in requests}
        sent = {}
        for client, message in requests.items():
            dies, damaged = chances[client].random(2) < (self._faults.crash_before, self._faults.flip)
            dying |= {client} if dies else frozenset()
            sent[client] = _flipped(message, chances[client]) if damaged else message
        for delivery in self._inner.exchange(number, sent, saved, dying):
            rng = chances[delivery.client]
            if delivery.client in dying and delivery.answer.message is None:
                yield _with(delivery, None, "died before its state was saved")
            elif delivery.answer.message is None:
                yield delivery
            else:
                yield from self._disturb(delivery, delivery.answer.message, rng, under_way)

    def _disturb(
        self, delivery: Delivery, message: bytes, rng: np.random.Generator, under_way: Transit
    ) -> Iterator[Delivery]:
        faults, client = self._faults, delivery.client
        chances = faults.drop, faults.late, faults.duplicate, faults.flip, faults.crash_after
        lost, late, doubled, damaged, dead = rng.random(5) < chances
        arriving = message
        if client in self.hostile:
            arriving = self._lie(client, message, rng, under_way.last)
            under_way.last[client] = message
        elif damaged:
            arriving = _flipped(message, rng)
        if dead:
            yield Delivery(client, replace(_with(delivery, None, "died before it sent its answer").answer, sent=0))
        elif lost:
            yield _with(delivery, None, "answer lost on the way")
        elif late:
            under_way.late.append((client, arriving))
            yield _with(delivery, None, "answer delayed beyond the round")
        else:
            yield _with(delivery, arriving)
            if doubled:
                yield Delivery(client, Answer(arriving))

    def _lie(self, client: int, message: bytes, rng: np.random.Generator, last: Mapping[int, bytes]) -> bytes:
        kinds = self._faults.hostile_kinds
        match kinds[int(rng.integers(len(kinds)))]:
            case "random":
                return rng.bytes(len(message))
            case "replay":
                return last.get(client, message)
            case "nan":
                return self._forged(message, np.float32(np.nan))
            case "scale":
                return self._forged(message, np.float32(self._faults.hostile_scale))

    def _forged(self, message: bytes, factor: np.float32) -> bytes:
        """The client's own reply with every value multiplied, well formed down to its checksum."""
        reply = decode_answer(message)
        if not isinstance(reply, Reply):
            return message
        honest = decode(reply.blob, self._layout)
        values = tuple(Floats(factor * v.decoded()) for v in honest.values)
        return replace(
            reply, blob=encode(Payload(self._layout, Listed(honest.positions), values, honest.exact))
        ).encode()


def _with(delivery: Delivery, message: bytes | None, remark: str = "") -> Delivery:
    remarks = (*delivery.answer.remarks, remark) if remark else delivery.answer.remarks
    return replace(delivery, answer=replace(delivery.answer, message=message, remarks=remarks))


def _flipped(message: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(message)
    at = int(rng.integers(8 * len(data)))
    data[at >> 3] ^= 1 << (at & 7)
    return bytes(data)
