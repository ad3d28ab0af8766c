"""The model of a message, as a node has it: all in the message, or made from what the node holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from fedsparq.errors import WireError
from fedsparq.federate.model import Model
from fedsparq.flower.blobs import Ties, read, unpack
from fedsparq.flower.header import Header
from fedsparq.flower.records import NUMPY, Template, exact_of, to_record, to_vector, view
from fedsparq.flower.stores import NodeStore
from fedsparq.layout import Layout, Vector
from fedsparq.wire import decode


@dataclass(frozen=True)
class Given:
    """The model of a message, as the node has it now."""

    template: Template
    exact: dict[str, Array]
    record: ArrayRecord | None = None
    """As it came, where it came whole."""
    built: Vector | None = None
    """As it was made, where it did not."""

    @cached_property
    def vector(self) -> Vector:
        if self.built is not None:
            return self.built
        return to_vector(self.record or {}, self.template.layout)

    def once(self) -> Given:
        """The same without the vector, where a record can say all of it: a large model is then held only once."""
        if self.record is None and any(tensor.dtype != "float32" for tensor in self.template.layout.tensors):
            return self
        return Given(self.template, self.exact, self.record or to_record(self.template, self.vector, self.exact))

    def parts(self) -> Iterator[NDArray[Any]]:
        """The compressed arrays one after another, flat; those that came whole are not copied."""
        for tensor in self.template.layout.tensors:
            yield view(self.record[tensor.name]).reshape(-1) if self.record is not None else self.vector[tensor.span]


def given_by(record: ArrayRecord, header: Header, store: NodeStore) -> Given | None:
    """The message's model: all in it, or made from what is held; None if that cannot be."""
    held = None
    if header.base:
        held = store.load_held()
        if held is None or not header.base <= held.version <= header.version:
            return None
    packed = read(record, 1 << 40)
    if packed is None:
        for array in record.values():
            if array.stype == NUMPY:
                view(array)
        template, exact = template_of(record, header), {}
        for _, (name, _, _) in header.omitted:
            if held is None or name not in held.exact:
                return None
            exact[name] = held.exact[name]
        arrays = {name: record[name] if name in record else exact[name] for name, _, _ in template.entries}
        whole = ArrayRecord(arrays) if header.omitted else record
        return Given(template, exact_of(whole, template.exact), whole)
    message, beside = packed
    template, parts = unpack(message)
    if held is None:
        if not parts:
            raise WireError("a message with the whole model holds none")
        return Given(template, dict(beside.arrays), built=Model.decode(parts[0], template.layout).vector)
    if held.template != template:
        return None
    vector = held.vector
    for blob in parts[held.version - header.base :]:
        vector = Model(vector).plus(decode(blob, template.layout)).vector
    for name, other in beside.ties:
        vector[span_of(template.layout, name)] = vector[span_of(template.layout, other)]
    if xxhash.xxh3_64_intdigest(vector.data) != header.digest:
        return None
    return Given(template, {**held.exact, **beside.arrays}, built=vector)


def template_of(record: ArrayRecord, header: Header) -> Template:
    packed = read(record, 1 << 40)
    if packed is not None:
        return unpack(packed[0])[0]
    entries = list(Template.of(record).entries)
    for index, entry in header.omitted:
        entries.insert(index, entry)
    return Template(tuple(entries))


def difference(layout: Layout, before: list[NDArray[Any]], record: ArrayRecord) -> tuple[Vector, Ties]:
    """What training changed; and which arrays are one tensor under two names: alike before and after, bit for bit."""
    update, ties, seen = np.empty(layout.size, np.float32), [], dict[Any, int]()
    after = [view(record[tensor.name]).reshape(-1) for tensor in layout.tensors]
    for number, tensor in enumerate(layout.tensors):
        moved = update[tensor.span]
        np.subtract(after[number], before[number], out=moved, casting="same_kind", dtype=np.float32)
        if not tensor.size:
            continue
        key = tensor.shape, tensor.dtype, before[number][0].tobytes(), after[number][0].tobytes()
        other = seen.setdefault(key, number)
        if other != number and moved.any() and all((each[number] == each[other]).all() for each in (before, after)):
            ties.append((tensor.name, layout.tensors[other].name))
    return update, tuple(ties)


def span_of(layout: Layout, name: str) -> slice:
    for tensor in layout.tensors:
        if tensor.name == name:
            return tensor.span
    raise WireError(f"there is no array {name!r} in the model")
