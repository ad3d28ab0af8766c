"""How the model reaches the clients: as it is each time, or as changes on a lattice to the model that a client holds.

With a lattice, all clients train on one public model that follows the server's own. What a change leaves out is in the
next difference between the two: the server's error feedback. A client that missed rounds is sent their sum, made once
for all clients that hold the same version.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from fedsparq.federate.lattice import (
    FirstModel,
    change_payload,
    first_payload,
    grid_of,
    layer_squares,
    on_grid,
    steps_of,
    sum_payload,
)
from fedsparq.federate.model import Model
from fedsparq.layout import Arrays, Layout, Vector, part_of
from fedsparq.payload import Payload
from fedsparq.wire import decode, encode

HISTORY = 64
"""The changes of this many versions are kept at most, for clients that missed some; fewer if the model is shorter."""
_NOISE, _MAX_NOISE, _UNKNOWN_NOISE, _POWER = 0.3, 24.0, 3.0, 1.9
"""Variance of the dead zone, in variances of the replies' mean: where every client takes part in each round; at most;
before it is known who takes part; and the power of the participation that it falls with."""
_MAX_REPLIES = 10_000
"""Replies to one public model that set the next step; a server may stay at one model for long."""
_LAYERS = ("grid", "variance", "steps")


def _none() -> NDArray[np.float64]:
    return np.empty(0)


@dataclass(frozen=True)
class Lattice:
    """Settings of a compressed downlink.

    Args:
        first_model: `8-bit`, after which the difference to the server's model follows; or `one-bit`, for freshly
            initialized weights: the server, too, starts from their signs.
    """

    first_model: FirstModel = "8-bit"

    def start(self, layout: Layout, model: Model) -> Model:
        """Return the model that the server starts from."""
        if self.first_model == "8-bit":
            return model
        payload = first_payload(layout, model.vector, grid_of(layout, model.vector), "one-bit")
        return replace(model, vector=payload.dense())


@dataclass
class Downlink:
    """The sending side of the broadcast."""

    layout: Layout
    lattice: Lattice | None = None
    public: Model | None = None
    round: int = 0
    """The version of the public model."""
    digest: int = 0
    """Of the public model's parameters, where clients hold it: one that built another asks for the full model."""
    first: bytes = b""
    """The first public model, encoded."""
    grid: NDArray[np.float64] = field(default_factory=_none)
    """The grid of each layer: every step is a multiple of it."""
    variance: NDArray[np.float64] = field(default_factory=_none)
    """Variance per coordinate of the replies' mean, for each layer, smoothed over rounds."""
    steps: NDArray[np.float64] = field(default_factory=_none)
    """The last step of each layer."""
    squares: list[NDArray[np.float64]] = field(default_factory=list)
    """For each reply since the last change, the sum of squares of each layer."""
    changes: dict[int, bytes] = field(default_factory=dict)
    """The change that led to each of the last public models."""
    held: dict[int, int] = field(default_factory=dict)
    """For each client, the version that it is known to hold."""
    answers: int = 0
    """Answers to versions after the first, of clients that hold any."""
    current: int = 0
    """How many of these came from a client that had held the version before."""
    _made: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    """What is sent to clients that hold each version; 0: none."""

    @property
    def compressed(self) -> bool:
        return self.lattice is not None

    def prepare(self, number: int, model: Model) -> None:
        """Make the public model of a round; once, however often the round is opened."""
        if number == self.round and self.public is not None:
            return
        if self.lattice is None:
            self.public = model
        elif self.public is None:
            self._begin(self.lattice.first_model, model)
        elif not on_grid(self.layout, self.public.vector, self.grid):
            self._begin("8-bit", model)
        else:
            self._change(self.public, number, model)
        self.round = number
        self.refresh()

    def refresh(self) -> None:
        """Discard what was made from another public model."""
        self._made.clear()
        if self.compressed and self.public is not None:
            self.digest = xxhash.xxh3_64_intdigest(self.public.vector.data)

    def parts(self, client: int) -> tuple[int, tuple[bytes, ...]]:
        """Return the version that a client holds and the change since; or 0 and the full model, if that is shorter."""
        if self.public is None:
            raise ValueError("prepare comes before parts")
        base = self.held.get(client, 0)
        if not all(number in self.changes for number in range(base + 1, self.round + 1)):
            base = 0
        change = self._since(base)
        if base and self.first and _length(change) > len(self.first) and _length(change) > _length(self._since(0)):
            base, change = 0, self._since(0)
        return base, change

    @property
    def full_bytes(self) -> int:
        """How many bytes the full model takes."""
        return _length(self._since(0))

    def replied(self, payload: Payload) -> None:
        """Take note of a reply that was received: the rounding error of its values sets the next step."""
        if self.compressed and len(self.squares) < _MAX_REPLIES:
            self.squares.append(layer_squares(payload))

    def holds(self, client: int, number: int) -> None:
        """Take note that a client holds a version, which its answer has shown."""
        if self.compressed:
            if number > 1:
                self.answers += 1
                self.current += self.held.get(client, 0) >= number - 1
            self.held[client] = number

    def forget(self, client: int) -> bool:
        """Take note that a client has lost its model; return whether it was thought to hold one."""
        return self.held.pop(client, None) is not None

    def save(self) -> tuple[dict[str, Any], Arrays]:
        """Return everything that a new server process needs, as facts for JSON and arrays."""
        facts = {"round": self.round, "held": list(self.held.items()), "answers": [self.answers, self.current]}
        if not self.compressed or self.public is None:
            return facts, {}
        arrays: Arrays = {"first": np.frombuffer(self.first, np.uint8), "squares": np.array(self.squares)}
        arrays |= {name: getattr(self, name) for name in _LAYERS}
        return facts, arrays | {f"change.{number}": np.frombuffer(x, np.uint8) for number, x in self.changes.items()}

    def restored(self, public: Model | None, facts: dict[str, Any], arrays: Arrays) -> Downlink:
        """Return a downlink with these settings and what `save` gave; ValueError for what it never gives."""
        if not self.compressed or public is None:
            return Downlink(self.layout, self.lattice)
        (answers, current), count = facts["answers"], len(self.layout.parameters)
        squares = arrays["squares"]
        grid, *others = (arrays[name].shape for name in _LAYERS)
        numbers = (facts["round"], answers, current, *(number for pair in facts["held"] for number in pair))
        sound = grid == (count,) and {*others} <= {(0,), (count,)} and all(isinstance(n, int) for n in numbers)
        if not sound or (squares.size and squares.shape[1:] != (count,)):
            raise ValueError("the downlink's state is not what a server writes")
        if any(array.dtype != np.float64 or not np.isfinite(array).all() for array in _floats(arrays)):
            raise ValueError("the downlink's state has other numbers than a server writes")
        made = Downlink(self.layout, self.lattice, public, facts["round"], first=arrays["first"].tobytes())
        made.grid, made.variance, made.steps = (arrays[name] for name in _LAYERS)
        made.squares, made.answers, made.current = list(squares), answers, current
        made.changes = {int(number): blob.tobytes() for number, blob in part_of("change", arrays).items()}
        made.held = dict(facts["held"])
        made.refresh()
        return made

    def _since(self, base: int) -> tuple[bytes, ...]:
        if base not in self._made:
            self._made[base] = self._make(base)
        return self._made[base]

    def _make(self, base: int) -> tuple[bytes, ...]:
        assert self.public is not None
        numbers = range(base + 1, self.round + 1)
        if base and len(numbers) <= 1:
            return tuple(self.changes[number] for number in numbers)
        if base:
            change = np.zeros(self.layout.size, np.float32)
            for number in numbers:
                decode(self.changes[number], self.layout).add_to(change)
        elif self.first:
            change = self.public.vector - decode(self.first, self.layout).dense()
            if self.public.buffers is None and not change.any():
                return (self.first,)
        else:
            return (self.public.encode(self.layout),)
        total = sum_payload(self.layout, change, self.grid)
        if total is not None:
            blob = encode(replace(total, buffers=self.public.buffers))
            return (blob,) if base else (self.first, blob)
        return tuple(self.changes[number] for number in numbers) if base else (self.public.encode(self.layout),)

    def _begin(self, kind: FirstModel, model: Model) -> None:
        """Start from a coarse version of this model; what clients hold is of no use any more."""
        self.grid = grid_of(self.layout, model.vector)
        payload = first_payload(self.layout, model.vector, self.grid, kind)
        self.first = encode(payload)
        self.public = replace(model, vector=payload.dense())
        self.changes, self.held = {}, {}

    def _change(self, public: Model, number: int, model: Model) -> None:
        difference = model.vector - public.vector
        payload = change_payload(self.layout, difference, self._next_steps(difference))
        payload = replace(payload, buffers=model.buffers)
        self.public = public.plus(payload)
        self.changes[number] = encode(payload)
        while len(self.changes) > HISTORY or sum(map(len, self.changes.values())) > 4 * self.layout.size:
            del self.changes[min(self.changes)]

    def _next_steps(self, difference: Vector) -> NDArray[np.float64]:
        """Return the step of each layer: the dead zone may add some of the variance that the replies' mean has."""
        if self.squares:
            now = _mean_squares(np.array(self.squares)) / len(self.squares) / np.maximum(np.diff(self.layout.bounds), 1)
            self.variance = (self.variance + now) / 2 if self.variance.size else now
            self.squares = []
        if not self.variance.size:
            squares = [np.square(difference[tensor.span], dtype=np.float64).sum() for tensor in self.layout.parameters]
            self.variance = np.array(squares) / np.maximum(np.diff(self.layout.bounds), 1)
        participation = self.current / self.answers if self.answers else 0.0
        noise = _UNKNOWN_NOISE if not self.answers else _MAX_NOISE
        if participation:
            noise = min(_NOISE * participation**-_POWER, _MAX_NOISE)
        self.steps = steps_of(self.layout, noise * self.variance, self.steps, difference, self.grid)
        return self.steps


def _mean_squares(squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over replies, in which none weighs more than the one with the median norm."""
    totals = squares.sum(axis=1)
    median = max(float(np.median(totals)), np.finfo(np.float64).tiny)
    scale = median / np.maximum(totals, median)
    mean: NDArray[np.float64] = (squares * scale[:, None]).mean(axis=0)
    return mean


def _length(parts: tuple[bytes, ...]) -> int:
    return sum(map(len, parts))


def _floats(arrays: Arrays) -> list[NDArray[Any]]:
    return [arrays[name] for name in (*_LAYERS, "squares")]
