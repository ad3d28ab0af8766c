"""Experiments over Flower: the same broadcasts and replies, bit for bit, as messages of a Flower grid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import TracebackType

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedsparq.engines.desk import Desk, Task
from fedsparq.engines.local import Delivery
from fedsparq.errors import RunError, WireError
from fedsparq.experiments.spec import RunSpec
from fedsparq.federate.client import Answer
from fedsparq.flower.records import unwrap, wrap


class GridEngine:
    """Carries a round's messages over a grid. `nodes` tells which node does a client's work.

    A node that fails leaves a remark and no answer; in a `strict` engine, where no node can be away, it ends the run.
    """

    def __init__(
        self, grid: Grid, nodes: Mapping[int, int], *, timeout: float | None = None, strict: bool = False
    ) -> None:
        self._grid, self._nodes, self._timeout, self._strict = grid, dict(nodes), timeout, strict
        self._clients = {node: client for client, node in self._nodes.items()}

    def __enter__(self) -> GridEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def exchange(
        self, number: int, requests: Mapping[int, bytes], saved: int, dying: frozenset[int] = frozenset()
    ) -> Iterator[Delivery]:
        messages = [
            Message(_request(client, data, saved, client in dying), self._nodes[client], MessageType.TRAIN)
            for client, data in sorted(requests.items())
        ]
        answers = dict.fromkeys(sorted(requests), Answer(None, ("no answer in time",)))
        for reply in self._grid.send_and_receive(messages, timeout=self._timeout):
            client = self._clients.get(reply.metadata.src_node_id)
            if self._strict and reply.has_error():
                raise RunError(f"client {client} failed: {reply.error.reason}")
            if client in answers:
                answers[client] = _answer(reply)
        for client, answer in answers.items():
            yield Delivery(client, answer)


def work(message: Message, spec: str, states: Path, client: int | None = None) -> Message:
    """A node's part: do the work of a client, the one named in the message unless the node has its own."""
    torch.set_num_threads(1)
    config = message.content.config_records["config"]
    data = unwrap(message.content.array_records["arrays"])
    if data is None:
        raise WireError("this message is not a broadcast of FedSparQ's")
    number = int(str(config["client"])) if client is None else client
    desk = Desk(_task(spec), states)
    answer = desk.answer(number, data, int(str(config["saved"])), bool(config["dying"]))
    about = ConfigRecord(
        {
            "silent": answer.message is None,
            "remarks": list(answer.remarks),
            "sent": answer.sent,
            "train-seconds": answer.train_seconds,
            "compress-seconds": answer.compress_seconds,
        }
    )
    return Message(RecordDict({"arrays": wrap(answer.message or b""), "about": about}), reply_to=message)


def _request(client: int, data: bytes, saved: int, dies_before_saving: bool) -> RecordDict:
    config = ConfigRecord({"client": client, "saved": saved, "dying": dies_before_saving})
    return RecordDict({"arrays": wrap(data), "config": config})


def _answer(reply: Message) -> Answer:
    if reply.has_error():
        return Answer(None, (f"no answer: {(reply.error.reason or 'the node failed').strip()}",))
    about = reply.content.config_records["about"]
    data = unwrap(reply.content.array_records["arrays"])
    remarks = about["remarks"]
    if not isinstance(remarks, list):
        raise RunError("a node's answer is not one of FedSparQ's; run the same version everywhere")
    return Answer(
        None if about["silent"] else data,
        tuple(map(str, remarks)),
        int(str(about["sent"])),
        float(str(about["train-seconds"])),
        float(str(about["compress-seconds"])),
    )


@lru_cache(maxsize=1)
def _task(spec: str) -> Task:
    return Task(RunSpec.model_validate_json(spec))
