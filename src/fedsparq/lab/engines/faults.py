"""Things that go wrong in the field, made to happen: an engine around another one.

What happens to a client in a round is a function of the seed, the round and the client alone, so that two runs with the
same spec suffer the same faults, however often one of them is killed and resumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from fedsparq.archive import ArchiveError, pack, unpack, write_safely
from fedsparq.errors import RunError
from fedsparq.federate.client import Answer
from fedsparq.federate.messages import Reply, decode_answer
from fedsparq.federate.rounds import Delivery
from fedsparq.lab.engines.attacks import Attack, Overheard
from fedsparq.lab.engines.engine import Asked, Engine
from fedsparq.lab.specs import FaultSpec
from fedsparq.layout import Layout
from fedsparq.wire import decode

SLOW = 1e6
"""So many seconds a slow sender takes: longer than any deadline."""


class ServerCrashError(Exception):
    """The server dies here, in the middle of a round."""


@dataclass
class Delayed:
    """What is on its way after a round: answers that will come too late, and what hostile clients may send again.

    It is kept in files, so that it does not vanish with a killed process.
    """

    late: list[tuple[int, bytes]] = field(default_factory=list)
    last: dict[int, bytes] = field(default_factory=dict)

    def save(self, folder: Path, number: int) -> None:
        messages = {f"late.{index}": message for index, (_, message) in enumerate(self.late)}
        messages |= {f"last.{client}": message for client, message in self.last.items()}
        about = {"late": [client for client, _ in self.late], "last": list(self.last)}
        arrays = {name: np.frombuffer(message, np.uint8) for name, message in messages.items()}
        write_safely(folder / f"{number}.safetensors", pack(about, arrays), private=True)

    @classmethod
    def load(cls, folder: Path, number: int) -> Delayed:
        """As it was after a round; before the first one, nothing is on its way."""
        if number == 0:
            return cls()
        path = folder / f"{number}.safetensors"
        try:
            about, arrays = unpack(path.read_bytes())
        except (OSError, ArchiveError) as error:
            raise RunError(f"{path} cannot be read ({error}); remove the run's folder to start anew") from error
        late = [(client, arrays[f"late.{index}"].tobytes()) for index, client in enumerate(about["late"])]
        return cls(late, {client: arrays[f"last.{client}"].tobytes() for client in about["last"]})

    @staticmethod
    def forget(folder: Path, before: int) -> None:
        """Remove what no run will go back to."""
        for path in folder.glob("*.safetensors"):
            if int(path.stem) < before:
                path.unlink(missing_ok=True)


class FaultyEngine(Engine):
    """Loses, delays, doubles and damages messages, crashes clients and the server, and lets some clients lie."""

    def __init__(
        self, inner: Engine, faults: FaultSpec, layout: Layout, clients: int, seed: int, delayed: Path
    ) -> None:
        self._inner, self._faults, self._layout, self._seed, self._folder = inner, faults, layout, seed, delayed
        self._round, self._under_way = 0, Delayed()
        self._crashed: set[int] = set()
        self.attack = Attack(faults, clients, seed)
        self._heard, self._first = Overheard(layout.size if self.attack.omniscient else 0), b""

    def __enter__(self) -> Engine:
        self._inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.__exit__(*error)

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        again = self._round == asked.round
        if not again:
            before = Delayed.load(self._folder, asked.round - 1)
            self._round, self._under_way = asked.round, Delayed(last=before.last)
            self._heard, self._first = Overheard(self._heard.size), b""
            yield from (Delivery(client, Answer(message)) for client, message in before.late)
        answers = self._ask(asked, int(again))
        yield from answers if again else self._until_crash(asked.round, answers, len(asked.broadcasts))
        self._under_way.save(self._folder, asked.round)
        Delayed.forget(self._folder, asked.saved)

    def _until_crash(self, number: int, answers: Iterator[Delivery], steps: int) -> Iterator[Delivery]:
        """The server crashes once a round at most: before any of the answers, or after the last. All clients have
        answered by then: they do not know of it."""
        rng = np.random.default_rng([self._seed, number, 5])
        if number in self._crashed or rng.random() >= self._faults.server_crash:
            yield from answers
            return
        self._crashed.add(number)
        yield from list(answers)[: int(rng.integers(steps + 1))]
        self._round = 0
        raise ServerCrashError

    def _ask(self, asked: Asked, again: int) -> Iterator[Delivery]:
        """Answers to these requests, as they arrive; `again` is 1 for the requests of whole models."""
        chances, dying, sent = {}, asked.dying, {}
        for client, message in asked.broadcasts.items():
            chances[client] = np.random.default_rng([self._seed, asked.round, client, 4, again])
            dies, damaged = chances[client].random(2) < (self._faults.crash_before, self._faults.flip)
            dying |= {client} if dies else frozenset()
            sent[client] = _flipped(message, chances[client]) if damaged else message
        for delivery in self._overheard(self._inner.exchange(replace(asked, broadcasts=sent, dying=dying))):
            rng = chances[delivery.client]
            if self.attack.absent(asked.round, delivery.client):
                yield Delivery(delivery.client, Answer(None, ("has not joined yet",)))
            elif delivery.client in dying and delivery.answer.message is None:
                yield _with(delivery, None, "died before its state was saved")
            elif delivery.answer.message is None:
                yield delivery
            else:
                yield from self._disturb(asked.round, delivery, delivery.answer.message, rng)

    def _overheard(self, deliveries: Iterator[Delivery]) -> Iterator[Delivery]:
        """Answers as they come; for attackers that know all honest ones, once all are there."""
        if not self.attack.omniscient:
            yield from deliveries
            return
        answers = list(deliveries)
        for delivery in answers:
            message = delivery.answer.message
            if message is not None and delivery.client not in self.attack.hostile:
                reply = decode_answer(message)
                if isinstance(reply, Reply):
                    self._heard.add(decode(reply.blob, self._layout))
        yield from answers

    def _disturb(self, number: int, delivery: Delivery, message: bytes, rng: np.random.Generator) -> Iterator[Delivery]:
        faults, client, under_way = self._faults, delivery.client, self._under_way
        chances = faults.drop, faults.late, faults.duplicate, faults.flip, faults.crash_after
        lost, late, doubled, damaged, dead = rng.random(5) < chances
        arriving, kind = message, self.attack.kind(number, client)
        if kind == "slow":
            delivery = replace(delivery, answer=replace(delivery.answer, train_seconds=SLOW))
        if kind:
            self._first = self._first or message
            arriving = self._lie(kind, client, message, rng, under_way.last)
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

    def _lie(
        self, kind: str, client: int, message: bytes, rng: np.random.Generator, last: Mapping[int, bytes]
    ) -> bytes:
        if kind == "random":
            return rng.bytes(len(message))
        if kind == "replay":
            return last.get(client, message)
        return self.attack.forge(kind, message, self._layout, rng, self._heard, self._first)


def _with(delivery: Delivery, message: bytes | None, remark: str = "") -> Delivery:
    remarks = (*delivery.answer.remarks, remark) if remark else delivery.answer.remarks
    return replace(delivery, answer=replace(delivery.answer, message=message, remarks=remarks))


def _flipped(message: bytes, rng: np.random.Generator) -> bytes:
    data = bytearray(message)
    at = int(rng.integers(8 * len(data)))
    data[at >> 3] ^= 1 << (at & 7)
    return bytes(data)
