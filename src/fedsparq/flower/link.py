"""What a server remembers of its nodes, and what it sends them, whatever loop sends it."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from dataclasses import replace

import xxhash
from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

from fedsparq.errors import OptionError
from fedsparq.federate.messages import Broadcast
from fedsparq.flower.blobs import pack, with_beside
from fedsparq.flower.channel import Channel, Sent
from fedsparq.flower.header import Header, is_name, with_header
from fedsparq.flower.records import size
from fedsparq.flower.reports import Reporter
from fedsparq.flower.stream import WORTH, Base, Stream
from fedsparq.method import Identity, Method


class Link:
    """Everything a strategy must remember of its nodes. Messages go out by `address`; `receive` reads the answers."""

    def __init__(self, method: Method, downlink: Method | None, federation: str = "") -> None:
        if federation and not is_name(federation):
            raise OptionError(f"federation={federation!r}: a name has letters, digits, '.', '_' and '-', at most 64")
        self.method, self.downlink, self.federation = method, downlink, federation
        named = xxhash.xxh3_64_intdigest(federation.encode()) & (2**63 - 1)
        self.session = named if federation else secrets.randbits(63)
        self.numbering = secrets.randbits(63)
        """Which numbering of rounds this is: nodes may remember rounds of other runs by the same numbers."""
        self.number = 0
        """The last round that messages were made for."""
        self.channels: dict[tuple[int, int], Channel] = {}
        self.streams: dict[int, Stream] = {}
        self.compressing: set[tuple[int, bool]] = set()
        """Nodes that have shown that they have the mod, each with whether that was in training."""
        self.norm_limit = math.inf
        self.report = Reporter()
        self.set_up = ""
        """What a node said is wrong with the set-up."""
        self.slowest = 0.0
        """How long the slowest reply of the last rounds took."""
        self.open: list[Sent] = []
        """Messages whose answers are waited for."""
        self.restored: set[int] = set()
        """The nodes that a checkpoint knew."""

    def address(self, messages: Iterable[Message]) -> list[Message]:
        """Give each message what its node must know, and its arrays as small as the node can take them.

        Nodes that have not shown yet that they compress are sent plain arrays: they may be without the mod. Messages
        that are neither for training nor for evaluation are left alone.
        """
        listed, bases, ours = list(messages), dict[int, Base](), []
        for message in listed:
            kind = message.metadata.message_type
            train = kind.startswith(MessageType.TRAIN)
            if message.has_content() and (train or kind.startswith(MessageType.EVALUATE)):
                base = self._base(message, bases)
                if base is not None:
                    ours.append((message, base, train))
                elif train:
                    self.report.add(down_bytes=sum(map(size, message.content.array_records.values())))
        trained = {message.metadata.dst_node_id for message, _, train in ours if train}
        if trained:
            self.number += 1
            if self.restored and not trained & self.restored:
                self.report.once(
                    "no node of the checkpoint takes part: what those still owe is not in this run. A simulation has "
                    "new node ids in each run; SuperNodes with registered keys keep theirs"
                )
        stream = self._shared([base for _, base, _ in ours]) if ours else None
        for message, base, train in ours:
            sent = Sent(self.number, message.metadata.dst_node_id, base, message, train)
            self.open.append(sent)
            message.content = self._content(sent, message.content, stream)
        return listed

    def again(self, sent: Sent) -> Message:
        """The message anew, with the whole model."""
        meta = sent.message.metadata
        stream = self.streams[sent.base.template.digest]
        stream.downlink.forget(sent.node)
        key = next(iter(sent.message.content.array_records))
        bare = RecordDict({**sent.message.content, key: sent.base.record})
        message = Message(
            self._content(sent, bare, stream), sent.node, meta.message_type, ttl=meta.ttl, group_id=meta.group_id
        )
        sent.message = message
        return message

    def acknowledge(self, sent: Sent, share: float) -> bool:
        """Say which share of a reply counted; False if it was given up before, and must not count."""
        return self.channel(sent).acknowledge(sent, share)

    def give_up(self, sent: Sent) -> None:
        """No reply to this message will count any more."""
        if sent in self.open:
            self.open.remove(sent)
        if sent.train:
            self.channel(sent).acknowledge(sent, 0.0)

    def give_up_unanswered(self, messages: Iterable[Message]) -> None:
        """None of these messages is waited for any longer."""
        ids = {id(message) for message in messages}
        for sent in [sent for sent in self.open if id(sent.message) in ids]:
            self.give_up(sent)

    def channel(self, sent: Sent) -> Channel:
        return self.channels.setdefault((sent.node, sent.base.layout.digest), Channel(numbering=self.numbering))

    def stream(self, base: Base) -> Stream:
        digest = base.template.digest
        if digest not in self.streams:
            self.streams[digest] = Stream(base.template, self.downlink)
        return self.streams[digest]

    def check_set_up(self) -> None:
        """End the run if nobody could take part for a reason that lasts."""
        if self.set_up and not self.report.rounds[-1].replies:
            raise OptionError(f"no node could take part: {self.set_up}")

    def _base(self, message: Message, bases: dict[int, Base]) -> Base | None:
        """What a message holds, if that can be compressed. It travels plain otherwise, and that is said once."""
        records = message.content.array_records
        if len(records) != 1:
            self.report.once(f"a message with {len(records)} ArrayRecords cannot be compressed; it travels plain")
            return None
        record = next(iter(records.values()))
        base = bases.setdefault(id(record), Base(record))
        strange = {array.stype for array in record.values()} - {"numpy.ndarray"}
        if strange or not base.layout.size:
            why = f"arrays of the kind {strange.pop()!r}" if strange else "a model without float32 or float16 arrays"
            self.report.once(f"{why} cannot be compressed; messages travel plain")
            return None
        if any(array.dtype == "float64" for array in record.values()):
            self.report.once("float64 arrays travel exactly and uncompressed; cast them to float32 to compress them")
        return base

    def _shared(self, bases: list[Base]) -> Stream | None:
        """The stream of a model that all these messages have; None where nodes have models of their own."""
        base = bases[0]
        worth = sum(len(array.data) for array in base.exact.values()) >= WORTH
        if self.downlink is None and not worth:
            return None
        if len({id(each) for each in bases}) > 1 and len({each.digest for each in bases}) > 1:
            if self.downlink is not None:
                self.report.once("nodes are sent models of their own: the way down is plain, without `downlink`")
            return None
        stream = self.stream(base)
        stream.prepare(base)
        return stream

    def _content(self, sent: Sent, content: RecordDict, stream: Stream | None) -> RecordDict:
        base, node, compressing = sent.base, sent.node, (sent.node, sent.train) in self.compressing
        key = next(iter(content.array_records))
        header = Header(self.session, self._broadcast(sent, hold=False), self.federation)
        header = replace(header, numbering=self.channel(sent).numbering)
        record = base.record
        if stream is not None and stream.method is not None and (compressing or stream.is_exact):
            header = replace(header, version=stream.version, broadcast=replace(header.broadcast, hold=True))
            if compressing:
                parts = stream.parts(node)
                record = with_beside(pack(base.template, parts.blobs), parts.beside)
                header = replace(header, base=parts.base, digest=stream.digest())
        elif stream is not None and stream.method is None:
            header = replace(header, version=stream.version)
            known = stream.exact.get(stream.held(node)) if compressing else None
            if known:
                changed = stream.changed(known)
                gone = [(at, entry) for at, entry in enumerate(base.template.entries) if _left(entry[0], base, changed)]
                record = ArrayRecord({n: a for n, a in record.items() if n not in {entry[0] for _, entry in gone}})
                header = replace(header, base=stream.held(node), omitted=tuple(gone))
        sent.version = header.version
        data = header.encode()
        weight = size(record) + len(data)
        self.report.add(down_bytes=weight) if sent.train else self.report.evaluated(weight)
        return RecordDict({**with_header(content, data), key: record})

    def _broadcast(self, sent: Sent, hold: bool) -> Broadcast:
        channel = self.channel(sent)
        identity = self.method.identity or Identity("")
        layout, number = sent.base.layout.digest, max(sent.number, channel.last.round + 1, 1)
        if not sent.train:
            return Broadcast(number, channel.last, layout, identity, 0, hold, (b"",))
        channel.begin(sent)
        sent.named = frozenset(each.reply for each in (channel.last, *channel.also_counted))
        sets = channel.also_counted, channel.pending(sent.number)
        return Broadcast(sent.number, channel.last, layout, identity, 0, hold, (b"",), self.norm_limit, *sets)


def _left(name: str, base: Base, changed: dict[str, Array]) -> bool:
    return name in base.exact and name not in changed
