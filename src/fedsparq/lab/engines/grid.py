"""An engine over Flower: the same broadcasts and replies, bit for bit, as messages of a Flower grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from flwr.app import ConfigRecord, ConfigRecordValues, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsparq.errors import RunError, WireError
from fedsparq.federate.client import Answer
from fedsparq.federate.rounds import Delivery
from fedsparq.flower.wrapped import unwrap, wrap
from fedsparq.lab.engines.engine import Asked, Engine
from fedsparq.lab.engines.worker import worker_of
from fedsparq.lab.tasks.devices import prepare_process
from fedsparq.threads import only_one

_MOST_SAID = 500
"""So many characters of what a node says of itself are kept."""
_MOST_SECONDS = 1e6


class GridEngine(Engine):
    """Carries a round's messages over a grid. `nodes` tells which node does a client's work.

    A node that fails leaves a remark and no answer; in a `strict` engine, where no node can be away, it ends the run.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[int, int], *, timeout: float | None = None, strict: bool = False
    ) -> None:
        self._grid, self._nodes, self._timeout, self._strict = grid, dict(nodes), timeout, strict
        self._clients = {node: client for client, node in self._nodes.items()}

    def exchange(self, asked: Asked) -> Iterator[Delivery]:
        messages = []
        for client, data in sorted(asked.broadcasts.items()):
            config = ConfigRecord({"client": client, "saved": asked.saved, "dying": client in asked.dying})
            content = RecordDict({"arrays": wrap(data), "config": config})
            messages.append(Message(content, self._nodes[client], MessageType.TRAIN))
        answers = dict.fromkeys(sorted(asked.broadcasts), Answer(None, ("no answer in time",)))
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            sender = self._clients.get(reply.metadata.src_node_id)
            if self._strict and reply.has_error():
                raise RunError(f"client {sender} failed: {reply.error.reason}")
            if sender in answers:
                try:
                    answers[sender] = _answer(reply)
                except Exception as error:  # whatever one node's answer does to its reader, the others' are read
                    answers[sender] = Answer(None, (f"refused: its answer cannot be read: {error!r}"[:_MOST_SAID],))
        for client, answer in answers.items():
            yield Delivery(client, answer)


def work(message: Message, spec: str, states: Path, client: int | None = None, keys: Path | None = None) -> Message:
    """A node's part: do the work of a client, the one named in the message unless the node has its own."""
    prepare_process()
    only_one()
    config = message.content.config_records["config"]
    data = unwrap(message.content.array_records["arrays"])
    if data is None:
        raise WireError("this message is not a broadcast of FedSparQ's")
    number = _count(config["client"]) if client is None else client
    answer = worker_of(spec, states, keys).answer(number, data, _count(config["saved"]), bool(config["dying"]))
    about: dict[str, ConfigRecordValues] = {"silent": answer.message is None}
    about |= {"remarks": list(answer.remarks), "seconds": [answer.train_seconds, answer.compress_seconds]}
    if answer.metrics:
        about |= {"metrics": list(answer.metrics), "measured": list(map(float, answer.metrics.values()))}
    return Message(RecordDict({"arrays": wrap(answer.message or b""), "about": ConfigRecord(about)}), reply_to=message)


def _count(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**32:
        raise WireError(f"a message names {str(value)[:80]} where a count belongs")
    return value


def _answer(reply: Message) -> Answer:
    """Read a node's answer. How many bytes it has is seen, not believed."""
    if reply.has_error():
        return Answer(None, (f"no answer: {(reply.error.reason or 'the node failed').strip()}"[:_MOST_SAID],))
    about = reply.content.config_records["about"]
    data = None if about["silent"] else unwrap(reply.content.array_records["arrays"])
    if data is None and not about["silent"]:
        raise WireError("its array is not one of FedSparQ's")
    said = tuple(remark[:_MOST_SAID] for remark in _texts(about["remarks"]))
    metrics = dict(zip(_texts(about.get("metrics", [])), _numbers(about.get("measured", [])), strict=True))
    train_seconds, compress_seconds = _numbers(about["seconds"])
    if not all(0 <= spent <= _MOST_SECONDS for spent in (train_seconds, compress_seconds)):
        raise WireError(f"it says that it took {train_seconds} and {compress_seconds} seconds")
    return Answer(data, said, len(data or b""), train_seconds, compress_seconds, metrics)


def _texts(values: object) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise WireError("it has something else where texts belong")
    return values


def _numbers(values: object) -> list[float]:
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise WireError("it has something else where numbers belong")
    return values
