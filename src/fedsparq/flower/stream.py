"""The way down for one kind of model: what each node is known to hold of it, and what it must be sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import xxhash
from flwr.app import Array, ArrayRecord

from fedsparq.federate.downlink import HISTORY, Downlink
from fedsparq.federate.model import Model
from fedsparq.flower.blobs import Beside, Ties
from fedsparq.flower.records import Template, array_digest, exact_of, to_vector
from fedsparq.layout import Layout, Vector
from fedsparq.method import Method

WORTH = 4096
"""So many bytes of arrays that may stay the same make it worth that nodes keep them."""


@dataclass(frozen=True, eq=False)
class Base:
    """The arrays of a message, as the strategy made it. What came back is read against them."""

    record: ArrayRecord

    @cached_property
    def template(self) -> Template:
        return Template.of(self.record)

    @property
    def layout(self) -> Layout:
        return self.template.layout

    @cached_property
    def vector(self) -> Vector:
        return to_vector(self.record, self.layout)

    @cached_property
    def exact(self) -> dict[str, Array]:
        return exact_of(self.record, self.template.exact)

    @cached_property
    def digest(self) -> int:
        each = (f"{name}{array_digest(array)}" for name, array in self.record.items())
        return xxhash.xxh3_64_intdigest("".join(each).encode())


@dataclass(frozen=True)
class Parts:
    """What one node is sent: changes since the version that it holds, or all."""

    base: int
    blobs: tuple[bytes, ...]
    beside: Beside


@dataclass
class Stream:
    """A public model that follows the strategy's. Without a method nodes keep only arrays that are not compressed."""

    template: Template
    method: Method | None
    version: int = 0
    downlink: Downlink = field(init=False)
    exact: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each of the last versions, the digests of the arrays that travel exactly."""
    last: int = 0
    """The digest of the arrays that the newest version was made from."""
    ties: Ties = ()
    current: Base | None = None

    def __post_init__(self) -> None:
        self.downlink = Downlink(self.template.layout, self.method)

    def prepare(self, base: Base) -> None:
        """Make the public model follow; nothing is done where it is there already."""
        self.current = base
        if self.version and base.digest == self.last:
            return
        self.version, self.last = self.version + 1, base.digest
        self.exact[self.version] = {name: array_digest(array) for name, array in base.exact.items()}
        while len(self.exact) > HISTORY:
            del self.exact[min(self.exact)]
        if self.method is not None:
            vector, public = base.vector, self.downlink.public
            if public is not None and self.ties:
                vector = vector.copy()
                for name, _ in self.ties:
                    vector[self._span(name)] = public.vector[self._span(name)]
            self.downlink.prepare(self.version, Model(vector))
            for name, other in self.ties:
                model = self.downlink.public
                if model is not None and public is not None:
                    model.vector[self._span(name)] = model.vector[self._span(other)]
        else:
            self.downlink.round = self.version

    def parts(self, node: int) -> Parts:
        """For a node that compresses."""
        base, blobs = self.downlink.parts(node)
        known = self.exact.get(base) if base else {}
        if known is None:
            self.downlink.forget(node)
            base, blobs, known = *self.downlink.parts(node), {}
        return Parts(base, blobs, Beside(self.changed(known), self.ties if base else ()))

    def changed(self, known: Mapping[str, int]) -> dict[str, Array]:
        """The exact arrays of the newest version that differ from known ones."""
        if self.current is None:
            return {}
        digests = self.exact[self.version]
        return {name: array for name, array in self.current.exact.items() if known.get(name) != digests[name]}

    def held(self, node: int) -> int:
        """The version that a node holds, if it is one whose arrays are still known here; else 0."""
        version = self.downlink.held.get(node, 0)
        return version if version in self.exact else 0

    def holds(self, node: int, version: int) -> None:
        if version:
            self.downlink.held[node] = version

    @property
    def is_exact(self) -> bool:
        """Whether the public model is the strategy's own, bit for bit: a node that is sent that one may hold it."""
        public = self.downlink.public
        return public is None or (self.current is not None and np.array_equal(public.vector, self.current.vector))

    def digest(self) -> int:
        public = self.downlink.public
        return xxhash.xxh3_64_intdigest(public.vector.data) if public is not None else 0

    def _span(self, name: str) -> slice:
        return next(tensor.span for tensor in self.template.layout.tensors if tensor.name == name)
