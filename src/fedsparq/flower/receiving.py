"""What came back from a node: read against what it was sent."""

from __future__ import annotations

import time

from flwr.app import Error, Message, MessageType, RecordDict

from fedsparq.errors import FedSparQError, WireError
from fedsparq.federate.messages import FullWanted, decode_answer, reply_digest
from fedsparq.flower.arrivals import Arrived, check_beside, remarks_of, without_marker
from fedsparq.flower.blobs import read
from fedsparq.flower.channel import Sent
from fedsparq.flower.header import KEY
from fedsparq.flower.link import Link
from fedsparq.flower.mod import SET_UP
from fedsparq.flower.node import BEHIND
from fedsparq.flower.records import only_arrays, size
from fedsparq.method import Identity
from fedsparq.wire import decode

_OTHERS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
_ORDER = "compress() must be the first of the app's mods: mods=[compress(), ...]"


def receive(link: Link, reply: Message) -> Arrived:
    """Read a reply against what its node was sent. What is refused comes back as an error of ours."""
    sent = _sent(link, reply)
    if sent is None:
        return _unasked(link, reply)
    node, number = sent.node, sent.number
    if reply.has_error():
        return _failed(link, reply, sent)
    for remark in remarks_of(reply.content):
        link.report.note(node, number, remark)
    try:
        arrived = _read(link, reply, sent)
    except FedSparQError as error:
        return _refused(link, sent, str(error))
    if not arrived.wanted:
        link.open.remove(sent)
        sent.answered = True
        if sent.train:
            link.slowest = max(0.9 * link.slowest, time.monotonic() - sent.at)
    return arrived


def _refused(link: Link, sent: Sent, reason: str) -> Arrived:
    link.report.refuse(sent.node, sent.number, reason)
    link.give_up(sent)
    return Arrived(Message(Error(0, f"fedsparq refused the reply: {reason}"), reply_to=sent.message), sent)


def _sent(link: Link, reply: Message) -> Sent | None:
    meta, answered = reply.metadata, reply.metadata.reply_to_message_id
    exact = [sent for sent in link.open if answered and sent.message.metadata.message_id == answered]
    if exact or not reply.has_error():
        alone = [sent for sent in link.open if sent.node == meta.src_node_id] if not answered else []
        return exact[-1] if exact else alone[0] if len(alone) == 1 else None
    # Mods of Flower's that fail after the app make their error as an answer to the app's answer.
    theirs = [sent for sent in link.open if sent.node in (meta.src_node_id, meta.dst_node_id)]
    if theirs:
        meta.__dict__["_reply_to_message_id"] = theirs[-1].message.metadata.message_id
    return theirs[-1] if theirs else None


def _unasked(link: Link, reply: Message) -> Arrived:
    """A reply to a message that was not compressed, or that nobody waits for any more."""
    records = reply.content.array_records if reply.has_content() else {}
    if any(read(record) for record in records.values()):
        node = reply.metadata.src_node_id
        link.report.refuse(node, link.number, "it answers no message that is waited for")
        reply.content = RecordDict({})
        return Arrived(Message(Error(0, "fedsparq: a reply that came too late"), reply_to=reply))
    if records and reply.metadata.message_type.startswith(MessageType.TRAIN):
        link.report.add(up_bytes=sum(map(size, records.values())), replies=1, dense=1)
    return Arrived(reply)


def _failed(link: Link, reply: Message, sent: Sent) -> Arrived:
    reason = reply.error.reason or "the node failed"
    if any(name in reason for name in _OTHERS) and "ArrayRecord" in reason:
        link.set_up = f"{reason} {_ORDER}"
    elif reason.startswith(SET_UP):
        link.set_up = reason.removeprefix(SET_UP)
    if BEHIND in reason and sent.train:  # how far it says it is, is its own affair
        link.channel(sent).renumber()
    said = link.set_up or reason
    link.report.note(sent.node, sent.number, said)
    link.report.reasons[said] = link.report.reasons.get(said, 0) + 1
    link.give_up(sent)
    return Arrived(reply, sent)


def _read(link: Link, reply: Message, sent: Sent) -> Arrived:
    node, base, train = sent.node, sent.base, sent.train
    marker = reply.content.config_records.get(KEY)
    if not train and marker is not None and "version" in marker:
        _shown(link, sent)
    if marker is not None and marker.get("evaluates") is True:
        link.compressing.add((node, False))
    if not train and len(reply.content.array_records) != 1:
        return Arrived(without_marker(reply), sent)
    if train and len(reply.content.array_records) != 1:
        link.report.once("a reply without exactly one ArrayRecord cannot be compressed; it travels plain")
        _took(link, sent, sum(map(size, reply.content.array_records.values())), plain=True)
        return Arrived(reply, sent)
    record = only_arrays(reply.content)[1]
    limit = (1 << 26) + 8 * sum(len(array.data) for array in base.exact.values())
    packed = read(record, limit)
    if packed is None:
        if train:
            base.template.check(record)
            _took(link, sent, size(record), plain=True)
        return Arrived(without_marker(reply), sent)
    message, beside = packed
    answer = decode_answer(message)
    if isinstance(answer, FullWanted):
        _count(link, sent, size(record))
        if sent.base.template.digest not in link.streams:
            raise WireError("the whole model is asked for, but has been sent")
        return Arrived(reply, sent, wanted=True)
    if answer.round != sent.number:
        raise WireError(f"the answer is for round {answer.round}, not {sent.number}")
    expected = link.method.identity or Identity("")
    if answer.method_digest != expected.digest:
        raise WireError(f"the answer was made by another method, or other options, than {expected.label!r}")
    payload = decode(answer.blob, base.layout)
    check_beside(beside, base)
    sent.digest = reply_digest(message)
    _shown(link, sent)
    link.channel(sent).confirm(sent)
    _took(link, sent, size(record), plain=False)
    link.report.kept.append(payload.kept / base.layout.size)
    if beside.ties and base.template.digest in link.streams:
        link.streams[base.template.digest].ties = beside.ties
    return Arrived(without_marker(reply), sent, payload, beside)


def _shown(link: Link, sent: Sent) -> None:
    """The node has the mod, and holds what it was sent."""
    link.compressing.add((sent.node, sent.train))
    stream = link.streams.get(sent.base.template.digest)
    if stream is not None and sent.version:
        stream.holds(sent.node, sent.version)


def _took(link: Link, sent: Sent, count: int, plain: bool) -> None:
    _count(link, sent, count)
    link.report.add(replies=1, dense=int(plain))
    if plain and sent.base.template.digest in link.streams:
        link.streams[sent.base.template.digest].downlink.forget(sent.node)


def _count(link: Link, sent: Sent, count: int) -> None:
    link.report.add(up_bytes=count) if sent.train else link.report.evaluated(count)
