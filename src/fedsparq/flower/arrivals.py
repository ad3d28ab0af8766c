"""A reply, and what is in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedsparq.errors import UpdateError, WireError
from fedsparq.flower.blobs import Beside
from fedsparq.flower.channel import Sent
from fedsparq.flower.header import KEY
from fedsparq.flower.records import only_arrays, to_array, view
from fedsparq.flower.stream import Base
from fedsparq.payload import Payload


@dataclass(frozen=True)
class Arrived:
    """A reply and what is in it: an update, plain arrays, or neither where it is an error or was refused."""

    reply: Message
    sent: Sent | None = None
    payload: Payload | None = None
    beside: Beside | None = None
    wanted: bool = False
    """Whether the node asks for the whole model."""

    @property
    def plain(self) -> bool:
        return self.payload is None and not self.wanted and not self.reply.has_error()


def arrays_of(arrived: Arrived) -> ArrayRecord:
    """The arrays of a node after its update, as the strategy would have got them without compression."""
    if arrived.payload is None or arrived.sent is None or arrived.beside is None:
        return only_arrays(arrived.reply.content)[1]
    base, update = arrived.sent.base, arrived.payload.dense()
    spans = {tensor.name: tensor for tensor in base.layout.tensors}
    tied = dict(arrived.beside.ties)
    arrays = {}
    for name, array in base.record.items():
        tensor = spans.get(tied.get(name, name))
        if tensor is None:
            arrays[name] = arrived.beside.arrays.get(name, array)
            continue
        after = view(array) + update[tensor.span].reshape(tensor.shape)
        arrays[name] = to_array(np.asarray(after.astype(array.dtype, copy=False)))
    return ArrayRecord(arrays)


def check_beside(beside: Beside, base: Base) -> None:
    for name, array in beside.arrays.items():
        own = base.exact.get(name)
        if own is None:
            raise WireError(f"the array {name!r} beside the update is not one of the model's that travel exactly")
        if (array.stype, array.dtype) != (own.stype, own.dtype):
            raise WireError(f"the array {name!r} is of the type {array.dtype}, the model's is {own.dtype}")
        try:
            view(array)
        except UpdateError as error:
            raise WireError(f"the array {name!r} beside the update cannot be read: {error}") from None
    shapes = {tensor.name: (tensor.shape, tensor.dtype) for tensor in base.layout.tensors}
    for one, other in beside.ties:
        if one not in shapes or shapes[one] != shapes.get(other):
            raise WireError(f"the arrays {one!r} and {other!r} cannot be tied")


def remarks_of(content: RecordDict) -> tuple[str, ...]:
    """What the mod has to say beside its reply."""
    record = content.config_records.get(KEY)
    remarks = record.get("remarks") if record is not None else None
    return tuple(str(remark)[:500] for remark in remarks) if isinstance(remarks, list) else ()


def without_marker(reply: Message) -> Message:
    if KEY in reply.content and isinstance(reply.content[KEY], ConfigRecord):
        reply.content = RecordDict({name: record for name, record in reply.content.items() if name != KEY})
    return reply
