"""The five parts of a method, as protocols: compressor, feedback, client rule, aggregator, server optimizer.

Each is a pair of ``init(layout) -> state`` and one step; states are dicts of arrays that are never changed in place, so
that they can be saved, compared and gone back to. Any object with these methods is one of them: nothing is inherited,
but for `ClientRule`, whose hooks are optional.

Parts that only work together say so: a part with an attribute ``needs`` (a few words) is refused in a method none of
whose parts has these words as its ``offers``. So the two halves of a method that client and server keep in step cannot
be exchanged alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, pack, unpack, write_safely
from fedsparq.errors import RunError
from fedsparq.layout import Arrays, Buffers, Layout, Vector, part_of
from fedsparq.payload import Payload

Compressed = tuple[Payload, Arrays]
"""What a compressor gives: the payload, and its own next state."""
Weighting = Literal["examples", "uniform"]
_PLAN = "plan."
GradientHook = Callable[[Any, Any, Any], None]
"""Called in each training step with (gradient, weights, weights at the start), torch tensors; changes the gradient."""


@runtime_checkable
class Compressor(Protocol):
    """An update becomes a payload.

    An optional attribute ``contractive = False`` says that payloads are unbiased but may be farther from the update
    than zero is: such a compressor cannot compress broadcasts; ``common_support = True`` says that all clients of a
    round send the same coordinates, all of them or not: what coordinate-wise aggregators need;
    ``layerwise = True`` says that what is sent of a layer depends on no other: some layers can be compressed at a time.
    An optional method ``begin(state, round) -> state`` is called before each round, for what all clients of a round
    must draw alike.
    """

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        """The payload and the next state. The update is read-only, with the residual already added."""


@runtime_checkable
class Feedback(Protocol):
    """What is remembered of an update that was not sent.

    An optional attribute ``hears = True`` asks for every acknowledgement, also of replies that counted whole: for
    states that may move only by what the server has counted.
    """

    @property
    def conserving(self) -> bool:
        """Whether nothing is let go: update + residual before = reply + residual after."""

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round; what is owed to the server under the key ``residual``."""

    def compress(
        self, update: Vector, state: State, compressor: Compressor, rng: np.random.Generator, recycle: Vector | None
    ) -> tuple[Payload, State]:
        """The payload and the next state: its own under `feedback`, the compressor's under `compressor`.

        `recycle` is a vector that nobody needs any more, to be overwritten instead of new memory.
        """

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        """The state once the server has said which share of a reply it counted; the rest is owed again."""


@dataclass(frozen=True)
class Heard:
    """What became of a client's reply, once a later broadcast has told it."""

    payload: Payload
    """What the server decoded."""
    share: float
    """Which share of it counted, from 0 to 1."""
    change: Vector | None = None
    """By how much the model has moved since the client got the one behind the reply; None where that is not known."""
    rounds: int = 1
    """In how many rounds it did: 1 where the client was asked again in the next."""
    reach: float = 0.0
    """How far the training behind the reply would have moved a weight against a gradient of 1: lr x steps."""


class ClientRule:
    """A rule of local training. All hooks do nothing unless they are overridden."""

    learns_change: ClassVar[bool] = False
    """Whether `heard` is to be given the model's change: then clients keep the model of their last round."""
    in_step: ClassVar[bool] = False
    """Whether it needs the change of just the reply's round, as it is, and the training's reach: every client is asked
    in each round, with the broadcast as it is."""
    task: ClassVar[str] = ""
    """The one task that the rule is for, if it is not for all."""

    @property
    def config(self) -> Mapping[str, float]:
        """What a Flower app that trains by itself is told of the rule, such as ``{"proximal-mu": 0.01}``."""
        return {}

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""
        return {}

    def start(self, model: Vector, residual: Vector | None, state: Arrays) -> Vector:
        """Where training starts, given the global model and what this client still owes the server."""
        return model

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        """Change the gradient of a step in place; all three are torch tensors."""

    def end(self, update: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        """The update to compress in the place of the one that training gave, and the next state."""
        return update, state

    def owed(self, residual: Vector, state: Arrays) -> Vector:
        """What the client still owes of its residual, called after `end`; the rest is let go on purpose."""
        return residual

    def heard(self, heard: Heard, state: Arrays) -> Arrays:
        """The next state, once the client knows what became of its reply. Nothing may move by what did not count."""
        return state

    @property
    def looks_at_gradients(self) -> bool:
        return type(self).gradient is not ClientRule.gradient

    @property
    def hears(self) -> bool:
        return type(self).heard is not ClientRule.heard


@dataclass(frozen=True)
class Update:
    """A reply that passed validation, as aggregators see it."""

    client: int
    payload: Payload
    examples: int
    weight: float = 1.0
    """The number of examples if the aggregator weighs by them, else 1."""
    reread: Callable[[], Payload] | None = field(default=None, repr=False, compare=False)
    """Makes the payload again from its bytes, where these are at hand: a round takes less memory as bytes."""


@dataclass(frozen=True)
class Aggregate:
    """What a round's updates come to."""

    mean: Vector | None
    """None: the model is stepped elsewhere."""
    shares: Mapping[int, float]
    """Which share of each client's reply counted, from 0 to 1. The rest goes back to the client's residual."""
    buffers: Buffers | None = None
    state: Arrays = field(default_factory=dict)
    """The aggregator's next state."""
    let_go: Mapping[int, float] = field(default_factory=dict)
    """Which share neither counted nor goes back: a rule that often counts less than clients send must bound what they
    owe."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What there is to record of the round beside its bytes."""


class Accumulator(Protocol):
    """A round under way in an aggregator."""

    def add(self, update: Update) -> None:
        """Take an update in, as it comes."""

    def close(self) -> Aggregate:
        """The round is over; at least one update was added, unless the aggregator always steps."""


@runtime_checkable
class SumAccumulator(Protocol):
    """An accumulator that can also take the sum of several clients' updates, where no single one is known."""

    def add_sum(self, levels: NDArray[np.int64], clients: Sequence[int]) -> None:
        """The sum of these clients' levels, on the support of the round's plan."""


@runtime_checkable
class Aggregator(Protocol):
    """The updates of a round become their mean, and the share of each that counted.

    An optional attribute ``weighting = "examples"`` makes the weight of an update its number of examples;
    ``common_support = True`` says that it makes sense only where all clients send the same coordinates. An optional
    method ``plan(layout, state) -> Arrays`` gives what the clients of the next round must know before they compress,
    such as a common support: it travels with the broadcast, and the compressor finds it in its state as ``plan.NAME``.
    ``always_steps = True`` makes the server step also where nobody's reply counted, such as a mean with noise in it.
    An accumulator with a method ``begin(vector, buffers, round)`` is told the model from which clients train.
    """

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""

    def open(self, layout: Layout, state: Arrays) -> Accumulator:
        """Begin a round."""


@runtime_checkable
class Optimizer(Protocol):
    """The server's step."""

    def init(self, layout: Layout) -> Arrays:
        """The state before the first round."""

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        """The next model and the next state, given the mean update."""


@dataclass(frozen=True)
class State:
    """What a method remembers on one client: arrays that can be saved and compared. Never changed in place."""

    layout: Layout
    compressor: Arrays = field(default_factory=dict)
    feedback: Arrays = field(default_factory=dict)
    rules: tuple[Arrays, ...] = ()

    VERSION: ClassVar[int] = 1

    @property
    def residual(self) -> Vector | None:
        """What was not sent yet, for methods with error feedback."""
        return self.feedback.get("residual")

    def arrays(self) -> Arrays:
        """All arrays under flat names, for a file."""
        parts = {"compressor": self.compressor, "feedback": self.feedback}
        parts |= {f"rule{number}": arrays for number, arrays in enumerate(self.rules)}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    @classmethod
    def of_arrays(cls, layout: Layout, arrays: Mapping[str, Any], rules: int) -> State:
        """Undo `arrays`; `rules` is how many client rules the method has."""
        own = tuple(part_of(f"rule{number}", arrays) for number in range(rules))
        return cls(layout, part_of("compressor", arrays), part_of("feedback", arrays), own)

    def with_plan(self, plan: Mapping[str, Any]) -> State:
        """This state with what the server says of the round, for the compressor."""
        return replace(self, compressor=self.compressor | {f"{_PLAN}{name}": array for name, array in plan.items()})

    def save(self, path: Path | str) -> None:
        """Write the state as one safetensors file, readable by its owner only; when this returns, it is safe."""
        about = {"version": self.VERSION, "layout": f"{self.layout.digest:016x}", "rules": len(self.rules)}
        write_safely(Path(path), pack(about, self.arrays()), private=True)

    @classmethod
    def load(cls, path: Path | str, layout: Layout) -> State:
        """Read what `save` wrote."""
        try:
            about, arrays = unpack(Path(path).read_bytes())
        except (OSError, ArchiveError) as error:
            raise RunError(f"the state {path} cannot be read: {error}") from error
        if (about.get("version"), about.get("layout")) != (cls.VERSION, f"{layout.digest:016x}"):
            raise RunError(f"the state {path} is of another version or for another model")
        return cls.of_arrays(layout, arrays, about["rules"])
