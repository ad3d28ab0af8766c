"""A public model that follows a server's own, whatever aggregates there: its versions, and what each client is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedsparq.errors import WireError
from fedsparq.federate.downlink import HISTORY, Downlink, Lattice
from fedsparq.federate.exact import ArraySpec, Beside, NamedModel, Ties, model_digest, span_of
from fedsparq.federate.model import Model
from fedsparq.federate.serialized import Serialized, array_digest
from fedsparq.federate.state import model_of
from fedsparq.layout import Arrays

_SHORT = 1.2
"""Bytes per parameter of a full model that is sent without asking: 30 % of float32."""


@dataclass
class PublicModel:
    """The public model of one array spec. A version is made when the server's arrays differ from those of the last."""

    spec: ArraySpec
    lattice: Lattice
    version: int = 0
    downlink: Downlink = field(init=False)
    digests: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each of the last versions, the digests of the exact arrays."""
    source: int = 0
    """The digest of the server's arrays that the newest version was made from."""
    reported: Ties = ()
    """The ties that a client reported last."""
    ties: Ties = ()
    """Those of the newest version. A client's word does not suffice: in the server's model they are equal too."""
    current: NamedModel | None = None

    def __post_init__(self) -> None:
        self.downlink = Downlink(self.spec.layout, self.lattice)

    def publish(self, model: NamedModel) -> None:
        """Make the public model follow; nothing changes where it is there already."""
        self.current = model
        if self.version and model.digest == self.source:
            return
        self.version, self.source = self.version + 1, model.digest
        self.digests[self.version] = {name: array_digest(array) for name, array in model.exact.items()}
        while len(self.digests) > HISTORY:
            del self.digests[min(self.digests)]
        vector, public = model.vector, self.downlink.public
        spans = [(vector[self._span(name)], vector[self._span(other)]) for name, other in self.reported]
        self.ties = tuple(tie for tie, pair in zip(self.reported, spans, strict=True) if np.array_equal(*pair))
        if public is not None and self.ties:
            vector = vector.copy()
            for name, _ in self.ties:
                vector[self._span(name)] = public.vector[self._span(name)]
        self.downlink.prepare(self.version, Model(vector))
        after = self.downlink.public
        if public is not None and after is not None and self.ties:
            for name, other in self.ties:
                after.vector[self._span(name)] = after.vector[self._span(other)]
            self.downlink.refresh()

    @property
    def is_short(self) -> bool:
        """Whether the full model takes so few bytes that it is sent to clients that may be unable to read it."""
        return self.downlink.full_bytes < _SHORT * self.spec.layout.size

    @property
    def digest(self) -> int:
        """Of the newest version."""
        return model_digest(self.downlink.digest, self.digests[self.version])

    def parts(self, client: int) -> tuple[int, tuple[bytes, ...], Beside]:
        """For a client: the version that it holds, or 0; the changes since, or the whole model; and exact arrays."""
        base, blobs = self.downlink.parts(client)
        known = self.digests.get(base) if base else {}
        if known is None:
            self.downlink.forget(client)
            base, blobs, known = *self.downlink.parts(client), {}
        beside = Beside(self._changed(known), self.ties) if base else Beside(self._changed(known), (), self.spec)
        return base, blobs, beside

    def _changed(self, known: dict[str, int]) -> dict[str, Serialized]:
        digests, exact = self.digests[self.version], {} if self.current is None else self.current.exact
        return {name: array for name, array in exact.items() if known.get(name) != digests[name]}

    def _span(self, name: str) -> slice:
        return span_of(self.spec.layout, name)

    def save(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything that a new server process needs, as facts for JSON and arrays."""
        down, arrays = self.downlink.save()
        facts = {
            "spec": self.spec.to_json(),
            "version": self.version,
            "source": self.source,
            "ties": [self.reported, self.ties],
            "digests": list(self.digests.items()),
            "downlink": down,
        }
        return facts, arrays if self.downlink.public is None else arrays | {"public": self.downlink.public.vector}

    @classmethod
    def load(cls, lattice: Lattice, facts: dict[str, Any], arrays: Arrays) -> PublicModel:
        """Undo `save`."""
        made = cls(ArraySpec.from_json(facts["spec"]), lattice)
        made.version, made.source = facts["version"], facts["source"]
        made.reported, made.ties = (tuple((str(one), str(other)) for one, other in ties) for ties in facts["ties"])
        made.digests = dict(facts["digests"])
        if "public" not in arrays:
            raise WireError("a checkpoint without its public model")
        public = model_of("public", arrays, made.spec.layout)
        made.downlink = made.downlink.restored(public, facts["downlink"], arrays)
        return made
