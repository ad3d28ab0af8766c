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
                answers[sender] = _answer(reply)
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
    number = int(str(config["client"])) if client is None else client
    answer = worker_of(spec, states, keys).answer(number, data, int(str(config["saved"])), bool(config["dying"]))
    about: dict[str, ConfigRecordValues] = {"silent": answer.message is None, "sent": answer.sent}
    about |= {"remarks": list(answer.remarks), "seconds": [answer.train_seconds, answer.compress_seconds]}
    if answer.metrics:
        about |= {"metrics": list(answer.metrics), "measured": list(map(float, answer.metrics.values()))}
    return Message(RecordDict({"arrays": wrap(answer.message or b""), "about": ConfigRecord(about)}), reply_to=message)


def _answer(reply: Message) -> Answer:
    if reply.has_error():
        return Answer(None, (f"no answer: {(reply.error.reason or 'the node failed').strip()}",))
    about = reply.content.config_records["about"]
    remarks, seconds = about["remarks"], about.get("seconds")
    if not isinstance(remarks, list) or not isinstance(seconds, list):
        raise RunError("a node's answer is not one of FedSparQ's; run the same version everywhere")
    data = None if about["silent"] else unwrap(reply.content.array_records["arrays"])
    names, measured = about.get("metrics", []), about.get("measured", [])
    metrics = {}
    if isinstance(names, list) and isinstance(measured, list):
        metrics = {str(name): float(str(value)) for name, value in zip(names, measured, strict=True)}
    train_seconds, compress_seconds = map(float, seconds)
    return Answer(data, tuple(map(str, remarks)), int(str(about["sent"])), train_seconds, compress_seconds, metrics)
