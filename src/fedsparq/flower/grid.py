"""A grid around another: what a strategy sends leaves compressed, and what it gets is plain.

This is the only place that reads what a node sent. Whatever is wrong with it refuses that answer, and the round goes
on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedsparq.errors import OptionError, UpdateError, WireError
from fedsparq.federate.events import MAX_REASON, Reporter
from fedsparq.federate.exact import ArraySpec, NamedModel
from fedsparq.federate.ledger import Ledger, Received, Ticket
from fedsparq.federate.public import PublicModel
from fedsparq.federate.serialized import NUMPY
from fedsparq.flower.mod import BEHIND, SET_UP
from fedsparq.flower.records import KEY, STYPE, cast, only_arrays, size, to_record, unwrap, with_frame

_AT_ONCE = 16
_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_PATIENCE, _LEAST_PATIENCE = 5.0, 60.0


@dataclass(eq=False)
class Request:
    """A message to a node, and what the ledger knows of it."""

    first: Message
    """With the id under which the strategy waits for a reply."""
    content: RecordDict
    """As the strategy made it."""
    ticket: Ticket
    current: Message
    """As it was sent last: anew, where the node asked for the whole model."""

    @property
    def plain_bytes(self) -> int:
        """How many bytes its arrays take uncompressed."""
        return sum(map(size, self.content.array_records.values()))

    @property
    def purpose(self) -> tuple[int, bool]:
        return self.ticket.client, self.ticket.train


@dataclass(frozen=True)
class Arrived:
    """A reply as the strategy shall see it, and what is in it where it answers a request of ours."""

    message: Message
    request: Request | None = None
    received: Received | None = None

    @property
    def ticket(self) -> Ticket | None:
        """Of a reply that may count."""
        return self.request.ticket if self.request and not self.message.has_error() else None


_Models = dict[int, tuple[ArrayRecord, NamedModel]]
"""The models of some messages, by the records that hold them."""
Deliver = Callable[[Arrived], Any]
Publish = Callable[[list[NamedModel]], None]


@dataclass
class LinkedGrid(Grid):
    """All of a grid's interface. `deliver` makes of a reply what a loop of somebody's own shall see.

    `send_and_receive` gives replies one by one, but a list to a loop of somebody's own. It waits no longer than
    `timeout`; without a `deadline` of its own, no longer either than five times the slowest reply so far, and at
    least a minute.
    """

    inner: Grid
    ledger: Ledger
    report: Reporter
    deliver: Deliver = lambda arrived: arrived
    """Flower's own `start` hands replies on without looking at them: they stay ours."""
    publish: Publish = lambda models: None
    """Told of the models that leave for training, before they do."""
    deadline: float | None = None
    types: ArraySpec | None = None
    """The types that models are brought back to, where somebody's own loop sends others."""
    set_up: str = ""
    """What a node said is wrong with the set-up."""
    requests: dict[str, Request] = field(default_factory=dict)
    """Those without an answer, by the id of the message that was sent last."""
    renamed: dict[str, str] = field(default_factory=dict)
    """For messages that were sent again, their newest ids."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._push(self._addressed(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for _, reply in self._read(message_ids)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = self.stream(messages, timeout)
        return list(replies) if self.types is not None else replies

    def stream(self, messages: Iterable[Message], timeout: float | None = None) -> Iterator[Any]:
        """Replies one by one, as they come."""
        waiting = dict.fromkeys(filter(None, self._push(self._addressed(messages))))
        sent, begun, pause, answered = list(waiting), time.monotonic(), _PAUSE, False
        while waiting:  # what is there is taken, however short the patience
            arrived, again = 0, len(self.renamed)
            ids = list(waiting)
            for at in range(0, len(ids), _AT_ONCE):
                for name, reply in self._read(ids[at : at + _AT_ONCE]):
                    waiting.pop(name, None)
                    arrived += 1
                    yield reply
            answered |= arrived > 0
            if len(self.renamed) > again:
                begun, pause = time.monotonic(), _PAUSE
                continue
            left = self._patience(timeout, answered) - (time.monotonic() - begun)
            if left <= 0:
                break
            pause = _PAUSE if arrived else min(2 * pause, _LONGEST_PAUSE)
            if waiting and not arrived:
                time.sleep(min(pause, left))
        for name in sent:
            request = self.requests.pop(self.renamed.pop(name, name), None)
            if request is not None:
                self.ledger.settle(request.ticket, 0.0)

    def set_run(self, run: Run) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Run:
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def _patience(self, timeout: float | None, answered: bool) -> float:
        limits = [math.inf if timeout is None else timeout]
        if self.deadline is not None:
            limits.append(self.deadline)
        elif answered and self.ledger.slowest:
            limits.append(max(_LEAST_PATIENCE, _PATIENCE * self.ledger.slowest))
        return min(limits)

    # what leaves

    def _addressed(self, messages: Iterable[Message]) -> list[tuple[Message, Request | None]]:
        """Give each message what its node must know, and its arrays as small as the node can take them.

        Messages that are neither for training nor for evaluation are left alone.
        """
        listed, models, ours = list(messages), _Models(), list[tuple[Message, NamedModel, bool]]()
        for message in listed:
            kind = message.metadata.message_type
            train = kind.startswith(MessageType.TRAIN)
            if message.has_content() and (train or kind.startswith(MessageType.EVALUATE)):
                model = self._model(message, models)
                if model is not None:
                    ours.append((message, model, train))
                elif train:
                    plain = sum(map(size, message.content.array_records.values()))
                    self.report.add(down_bytes=plain, plain_bytes=plain)
        trained = {message.metadata.dst_node_id for message, _, train in ours if train}
        if trained:
            self.publish([model for _, model, train in ours if train])
            self.ledger.number += 1
            if self.ledger.restored and not trained & self.ledger.restored:
                self.report.once(
                    "no node of the checkpoint takes part: what those still owe is not in this run. A simulation has "
                    "new node ids in each run; SuperNodes with registered keys keep theirs"
                )
        public = self.ledger.publish(model for _, model, _ in ours) if ours else None
        if public is None and ours and self.ledger.downlink is not None:
            self.report.once("nodes are sent models of their own: the way down is plain, without `downlink`")
        requests: dict[int, Request] = {}
        for message, model, train in ours:
            ticket = Ticket(message.metadata.dst_node_id, self.ledger.number, model, train)
            request = requests[id(message)] = Request(message, message.content, ticket, message)
            self.report.add(train, plain_bytes=request.plain_bytes)
            message.content = self._framed(request, public)
        return [(message, requests.get(id(message))) for message in listed]

    def _model(self, message: Message, models: _Models) -> NamedModel | None:
        """What a message holds, if that can be compressed. It travels plain otherwise, and that is said once."""
        records = message.content.array_records
        if len(records) != 1:
            self.report.once(f"a message with {len(records)} ArrayRecords cannot be compressed; it travels plain")
            return None
        key, record = next(iter(records.items()))
        if id(record) not in models:
            models[id(record)] = record, NamedModel.of(record if self.types is None else cast(record, self.types))
        model = models[id(record)][1]
        if self.types is not None:
            message.content = RecordDict({**message.content, key: to_record(model.arrays())})
        strange = {array.stype for array in record.values()} - {NUMPY}
        if strange or not model.layout.size:
            why = f"arrays of the kind {strange.pop()!r}" if strange else "a model without float32 or float16 arrays"
            self.report.once(f"{why} cannot be compressed; messages travel plain")
            return None
        if any(array.dtype == "float64" for array in record.values()):
            self.report.once("float64 arrays travel exactly and uncompressed; cast them to float32 to compress them")
        return model

    def _framed(self, request: Request, public: PublicModel | None) -> RecordDict:
        """A request's content as it leaves: with a frame, unless its node cannot read one."""
        ticket, content = request.ticket, request.content
        frame = self.ledger.frame(ticket, public)
        if public is not None and self.ledger.codec.get(request.purpose) is False:
            ticket.version = 0
            self.report.add(ticket.train, down_bytes=sum(map(size, content.array_records.values())))
            return content
        data, plain = frame.encode(), sum(map(size, content.array_records.values())) if frame.plain else 0
        self.report.add(ticket.train, down_bytes=len(data) + plain)
        probe = None if frame.plain or ticket.carries_model else ticket.model.spec
        return with_frame(content, data, plain=frame.plain, spec=probe)

    def _push(self, listed: list[tuple[Message, Request | None]]) -> list[str]:
        ids = list(self.inner.push_messages([message for message, _ in listed]))
        sent = set(ids)
        for message, request in listed:
            if request is not None and message.metadata.message_id in sent:
                self.requests[message.metadata.message_id] = request
            elif request is not None:
                self.ledger.settle(request.ticket, 0.0)
        return ids

    def _again(self, request: Request) -> None:
        """Send a request again: with the model that its node needs, or plain."""
        self.requests.pop(request.current.metadata.message_id, None)
        meta, public = request.first.metadata, self.ledger.publics.get(request.ticket.model.named_spec.digest)
        content = self._framed(request, public)
        request.current = Message(content, meta.dst_node_id, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)
        for name in self._push([(request.current, request)]):
            self.renamed[meta.message_id] = name

    # what comes back

    def _read(self, message_ids: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Replies as the strategy shall see them, with the ids of the messages that they answer."""
        for reply in self.inner.pull_messages([self.renamed.get(name, name) for name in message_ids]):
            arrived = self._received(reply)
            if arrived is not None:
                name = arrived.request.first.metadata.message_id if arrived.request else ""
                yield (
                    name or reply.metadata.reply_to_message_id,
                    self.deliver(arrived),
                )

    def _received(self, reply: Message) -> Arrived | None:
        """What a reply is; None where its node was asked again instead."""
        request = self._request(reply)
        if request is None:
            return self._unasked(reply)
        ticket = request.ticket
        try:
            arrived = (self._failed if reply.has_error() else self._content)(request, reply)
        except Exception as error:  # whatever a node sent: it is that node's answer that is refused
            reason = str(error) if isinstance(error, WireError | UpdateError) else f"{type(error).__name__}: {error}"
            self.report.refuse(ticket.client, ticket.number, reason)
            self.ledger.settle(ticket, 0.0)
            refusal = Error(0, f"fedsparq refused the reply: {reason[:MAX_REASON]}")
            arrived = Arrived(Message(refusal, reply_to=request.first), request)
        if arrived is not None:
            if ticket.train and arrived.message.has_content():
                self.report.add(plain_bytes=request.plain_bytes)
            self.requests.pop(request.current.metadata.message_id, None)
            self.ledger.answered(ticket)
        return arrived

    def _request(self, reply: Message) -> Request | None:
        meta, answered = reply.metadata, reply.metadata.reply_to_message_id
        if answered:
            return self.requests.get(answered)
        # Mods of Flower's that fail after the app make their error as an answer to the app's answer.
        nodes = {meta.src_node_id, meta.dst_node_id} if reply.has_error() else {meta.src_node_id}
        theirs = [request for request in self.requests.values() if request.ticket.client in nodes]
        return theirs[-1] if reply.has_error() and theirs else theirs[0] if len(theirs) == 1 else None

    def _unasked(self, reply: Message) -> Arrived:
        """A reply to a message that was not compressed, or that nobody waits for any more."""
        records = reply.content.array_records if reply.has_content() else {}
        if any(unwrap(record) is not None for record in records.values()):
            node = reply.metadata.src_node_id
            self.report.refuse(node, self.ledger.number, "it answers no message that is waited for")
            return Arrived(Message(Error(0, "fedsparq: a reply that came too late"), reply_to=reply))
        if records and reply.metadata.message_type.startswith(MessageType.TRAIN):
            plain = sum(map(size, records.values()))
            self.report.add(up_bytes=plain, plain_bytes=plain, replies=1, dense=1)
        return Arrived(reply)

    def _failed(self, request: Request, reply: Message) -> Arrived | None:
        ticket, said = request.ticket, reply.error.reason or "the node failed"
        reason = said[:MAX_REASON]
        unread = STYPE in said and not said.startswith("fedsparq")
        if unread and ticket.version and request.purpose not in self.ledger.codec:
            self.ledger.codec[request.purpose] = False
            self._again(request)
            return None
        if reason.startswith(SET_UP):
            self.set_up = reason = reason.removeprefix(SET_UP)
        if BEHIND in said:  # how far it says it is, is its own affair
            self.ledger.renumber(ticket)
        self.report.failed(ticket.client, ticket.number, reason)
        self.ledger.settle(ticket, 0.0)
        return Arrived(Message(Error(reply.error.code, said[:MAX_REASON]), reply_to=request.first), request)

    def _content(self, request: Request, reply: Message) -> Arrived | None:
        ticket, content = request.ticket, reply.content
        probed = ticket.version and not ticket.carries_model
        marker = content.config_records.get(KEY)
        proof, remarks = (marker.get("proof"), marker.get("remarks")) if marker is not None else (None, None)
        about = RecordDict({name: each for name, each in content.items() if name != KEY})
        data = [unwrap(record) for record in about.array_records.values()]
        if len(data) == 1 and data[0] is not None:
            key, frame = next(iter(about.array_records)), data[0]
            if len(about.array_records[key]) != 1:
                raise WireError("there are more arrays beside a frame")
            self.report.add(ticket.train, up_bytes=len(frame))
            received = self.ledger.receive(ticket, frame)
            if received is None:
                if not probed:
                    self._note(ticket, remarks)
                self._again(request)
                return None
            self._note(ticket, remarks)
            self.report.add(replies=1)
            self.report.kept.append(received.payload.kept / ticket.model.layout.size)
            # Flower's records refer to each other in a circle: left alone, the bytes would stay until gc comes by.
            about.array_records[key].clear()
            return Arrived(Message(about, reply_to=request.first), request, received)
        self._note(ticket, remarks)
        if not ticket.train:
            if isinstance(proof, bytes):
                self.ledger.evaluated(ticket, proof)
            self.report.add(False, up_bytes=sum(map(size, about.array_records.values())))
            return Arrived(Message(about, reply_to=request.first), request)
        if len(data) != 1:
            self.report.once("a reply without exactly one ArrayRecord cannot be compressed; it travels plain")
        else:
            ticket.model.check_plain(only_arrays(about)[1])
        self.report.add(up_bytes=sum(map(size, about.array_records.values())), replies=1, dense=1)
        self.ledger.forget(ticket)
        return Arrived(Message(about, reply_to=request.first), request)

    def _note(self, ticket: Ticket, remarks: object) -> None:
        for remark in remarks if isinstance(remarks, list) else []:
            self.report.note(ticket.client, ticket.number, str(remark))

    def check_set_up(self) -> None:
        """End the run if nobody could take part for a reason that lasts."""
        if self.set_up and not self.report.rounds[-1].replies:
            raise OptionError(f"no node could take part: {self.set_up}")
