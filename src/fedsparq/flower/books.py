"""What both strategies share: who is asked and how, what came back, and what it weighed."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from typing import Generic, TypeVar

import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from fedsparq.compress.payload import Everything, Floats, Payload
from fedsparq.compress.pipeline import Method
from fedsparq.errors import FedSparQError, OptionError, RunError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import Reply, method_digest
from fedsparq.federate.rules import Event, Rules
from fedsparq.federate.server import RoundOutcome, Server, ServerState, Verdict
from fedsparq.flower.header import KEY, Header, with_header
from fedsparq.flower.mod import SET_UP, examples, only_arrays
from fedsparq.flower.records import layout_of, pack, size, to_model, unwrap, wrap
from fedsparq.layout import Layout
from fedsparq.wire.frame import encode

S = TypeVar("S", bound=Server)


@dataclass(frozen=True)
class Traffic:
    """One closed round: bytes as they left either side, without Flower's own; replies, and how many came dense."""

    round: int
    up_bytes: int = 0
    down_bytes: int = 0
    replies: int = 0
    dense: int = 0
    counted: tuple[int, ...] = ()
    """The nodes whose replies went into the model."""
    kept: float = 0.0
    """Which share of the coordinates was sent, on average."""
    events: tuple[Event, ...] = field(default=(), repr=False)


@dataclass
class _Round:
    """A round under way."""

    grid: Grid
    asked: dict[int, Message]
    holding: set[int] = field(default_factory=set)
    """The nodes that were told to keep the model."""
    shared: dict[tuple[int, int], ArrayRecord] = field(default_factory=dict)
    """Blobs that several nodes are sent."""
    up: int = 0
    down: int = 0
    replies: int = 0
    dense: int = 0
    set_up: str = ""
    """What a node said is wrong with the set-up."""


class Books(Generic[S]):
    """Keeps a server of ours for a strategy of Flower's."""

    def __init__(self, kind: type[S], method: Method, downlink: Method | None, rules: Rules | None = None) -> None:
        self.method = method
        self.rounds: list[Traffic] = []
        self._kind, self._downlink, self._rules = kind, downlink, rules
        self._session = secrets.randbits(63)
        self._server: S | None = None
        self._compressing: set[int] = set()
        self._round: _Round | None = None

    @property
    def server(self) -> S:
        if self._server is None:
            raise RunError("no round was configured; configure_train comes before aggregate_train")
        return self._server

    @property
    def layout(self) -> Layout:
        return self.server.layout

    @property
    def open(self) -> bool:
        """Whether replies are awaited."""
        return self._round is not None

    def address(self, messages: Iterable[Message], arrays: ArrayRecord, grid: Grid) -> list[Message]:
        """Open a round: give each message what its node must know, and the model as small as the node can take it.

        Nodes that have not shown yet that they compress are sent plain arrays: they may be without the mod.
        """
        listed = list(messages)
        if not listed:
            return []
        self._serve(arrays)
        current = self._round = _Round(grid, {message.metadata.dst_node_id: message for message in listed})
        self.server.open_round(current.asked)
        for message in listed:
            message.content = self._content(current, message, arrays)
        return listed

    def receive(self, replies: Iterable[Message], timeout: float | None) -> Iterator[tuple[Message, bool]]:
        """Each reply that is sound, with whether it came dense, and each error. Who lost its model is asked again."""
        current = self._current()
        lost = []
        for reply in replies:
            node = reply.metadata.src_node_id
            if reply.has_error():
                self._note_error(current, node, reply.error.reason or "")
                yield reply, False
                continue
            packed, verdict = self._take(current, node, reply.content)
            if packed is None or node not in current.holding:
                self.server.downlink.forget(node)
            if verdict.resend:
                lost.append(node)
            elif verdict.taken:
                current.replies += 1
                current.dense += packed is None
                yield reply, packed is None
            else:
                log(WARNING, "fedsparq: the reply of node %d was refused: %s", node, verdict.reason)
        if lost:
            again = [self._again(current, node) for node in lost]
            yield from self.receive(current.grid.send_and_receive(again, timeout=timeout), timeout)

    def close(self, outcome: RoundOutcome) -> None:
        """Write the round down. If nobody could take part for a reason that lasts, say it and end the run."""
        current, self._round = self._current(), None
        self.rounds.append(
            Traffic(
                outcome.round,
                current.up,
                current.down,
                current.replies,
                current.dense,
                outcome.counted,
                outcome.kept,
                outcome.events,
            )
        )
        dense = f", {current.dense} of them dense" if current.dense else ""
        log(INFO, f"fedsparq: {current.up:,} bytes up in {current.replies} replies{dense}; {current.down:,} down")
        if current.set_up and not current.replies:
            raise OptionError(f"no node could take part: {current.set_up}")

    def _current(self) -> _Round:
        if self._round is None:
            raise RunError("no round is open; configure_train comes before aggregate_train")
        return self._round

    def _serve(self, arrays: ArrayRecord) -> None:
        layout = layout_of(arrays)
        model = to_model(arrays, layout)
        if self._server is None:
            downlink = Downlink(layout, self._downlink)
            state = ServerState(model, np.zeros(layout.size, np.float32))
            self._server = self._kind(layout, self.method, state, rules=self._rules, downlink=downlink)
        elif self._server.layout.digest != layout.digest:
            raise OptionError("the model has other names, shapes or types than in the round before; use a new strategy")
        else:
            self._server.state = replace(self._server.state, model=model)

    def _content(self, current: _Round, message: Message, arrays: ArrayRecord) -> RecordDict:
        """A message's content for its node. One that holds the public model must have been sent just that."""
        node = message.metadata.dst_node_id
        request = self.server.request(node)
        key = only_arrays(message.content)[0]
        if node in self._compressing:
            record = self._blob(current, request.base, request.blobs)
        else:
            record = arrays
            public = self.server.downlink.public is self.server.state.model
            request = replace(request, base=0, blobs=(b"",), hold=request.hold and public)
        if request.hold:
            current.holding.add(node)
        header = Header(self._session, request).encode()
        current.down += size(record) + len(header)
        return RecordDict({**with_header(message.content, header), key: record})

    def _blob(self, current: _Round, base: int, blobs: tuple[bytes, ...]) -> ArrayRecord:
        place = base, len(blobs)
        if place not in current.shared:
            current.shared[place] = wrap(pack(self.layout, blobs))
        return current.shared[place]

    def _again(self, current: _Round, node: int) -> Message:
        first = current.asked[node]
        content = self._content(current, first, ArrayRecord())
        meta = first.metadata
        return Message(content, node, meta.message_type, ttl=meta.ttl, group_id=meta.group_id)

    def _take(self, current: _Round, node: int, content: RecordDict) -> tuple[bytes | None, Verdict]:
        """Hand a reply to the server; one that came dense as if it had been compressed without loss."""
        self._note_remarks(node, content)
        packed = None
        try:
            _, record = only_arrays(content)
            current.up += size(record)
            packed = unwrap(record)
            if packed is not None:
                self._compressing.add(node)
            return packed, self.server.receive(node, self._as_reply(record, content) if packed is None else packed)
        except FedSparQError as error:
            self.server.note(node, f"refused: {error}")
            return packed, Verdict(False, str(error))

    def _as_reply(self, record: ArrayRecord, content: RecordDict) -> bytes:
        after, before = to_model(record, self.layout), self.server.state.model
        update = after.vector - before.vector
        values = tuple(Floats(update[tensor.span]) for tensor in self.layout.parameters)
        blob = encode(Payload(self.layout, Everything(self.layout.size), values, after.exact))
        number = self.server.state.round + 1
        return Reply(number, method_digest(self.method), examples(content), blob).encode()

    def _note_remarks(self, node: int, content: RecordDict) -> None:
        record = content.config_records.get(KEY)
        remarks = record.get("remarks") if record is not None else None
        for remark in remarks if isinstance(remarks, list) else ():
            self.server.note(node, str(remark))

    def _note_error(self, current: _Round, node: int, reason: str) -> None:
        self.server.note(node, reason)
        if reason.startswith(SET_UP):
            current.set_up = reason.removeprefix(SET_UP)
