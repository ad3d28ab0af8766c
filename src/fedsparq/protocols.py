"""The five parts of a method, as protocols: compressor, feedback, client rule, aggregator, server optimizer.

Each is a pair of ``init(layout) -> state`` and one step; states are dicts of arrays that are never changed in place, so
that they can be saved, compared and restored. Any object with these methods is such a part: nothing is inherited,
except for `ClientRule`, whose hooks are optional.

What a method must know of a part is in its attribute `traits`, a dataclass of this module for each kind of part. A part
without one has the defaults.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedsparq.archive import ArchiveError, pack, unpack, write_safely
from fedsparq.errors import OptionError, RunError
from fedsparq.layout import Arrays, Buffers, Layout, Vector, part_of
from fedsparq.payload import Payload, Values
from fedsparq.payload.support import RoundPlan

Weighting = Literal["examples", "uniform"]
_PLAN = "compressor.plan"
"""How the names of a plan's arrays begin in a file."""
GradientHook = Callable[[Any, Any, Any], None]
"""Called in each training step with (gradient, weights, weights at the start), torch tensors; changes the gradient."""


@dataclass(frozen=True, kw_only=True)
class PartTraits:
    """Traits of any part. A method is refused where what one part requires is not what another one provides."""

    requires: str = ""
    """A few words. The two halves of a method that must match on client and server so cannot be exchanged alone."""
    provides: str = ""


@dataclass(frozen=True, kw_only=True)
class CompressorTraits(PartTraits):
    is_contractive: bool = True
    """Whether a payload is never farther from the update than zero is. Others cannot compress broadcasts."""
    has_common_support: bool = False
    """Whether all clients of a round send the same coordinates, as coordinate-wise aggregators require."""
    is_layerwise: bool = False
    """Whether what is sent of a layer depends on no other layer: then a model can be compressed in pieces."""
    draws_per_round: bool = False
    """Whether ``begin(state, round) -> state`` is called before each round, for what all clients draw equally."""
    uses_plan: bool = False
    """Whether it cannot compress without the aggregator's round plan."""
    copies_values: bool = False
    """Whether a payload never shares memory with the update: then it is subtracted from the update's own memory."""
    wants_context: bool = False
    """Whether ``compress`` takes a fifth argument, the `RoundContext`."""
    value_kinds: tuple[type[Values], ...] = ()
    """The kinds of values that its payloads have; empty: any. A server refuses others, however dear to decode."""


@dataclass(frozen=True, kw_only=True)
class FeedbackTraits(PartTraits):
    conserves_mass: bool = False
    """Whether nothing is discarded: update + old residual = payload + new residual."""
    needs_acks: bool = False
    """Whether every reply is acknowledged to it, even one that counted entirely: its state moves by what counted."""
    is_layerwise: bool = False


@dataclass(frozen=True, kw_only=True)
class RuleTraits(PartTraits):
    needs_model_change: bool = False
    """Whether `ClientRule.heard` is given the model's change: then clients keep the model of their last round."""
    requires_full_participation: bool = False
    """Whether it needs the change of exactly the reply's round, and the training's reach: every client is selected in
    each round, and broadcasts are not compressed."""
    task: str = ""
    """The one task that the rule is for, if it is not for all."""
    config: Mapping[str, float] = field(default_factory=dict)
    """What the config of a Flower app that trains by itself gets, such as ``{"proximal-mu": 0.01}``."""


@dataclass(frozen=True, kw_only=True)
class AggregatorTraits(PartTraits):
    weighting: Weighting | None = "uniform"
    """Whether an update weighs its number of examples, or 1; None: as with the aggregator that it replaces."""
    requires_common_support: bool = False
    """Whether it makes sense only if all clients send the same coordinates."""
    steps_without_replies: bool = False
    """Whether the server steps even if no reply counted, as for a mean with noise in it."""
    plans_rounds: bool = False
    """Whether ``plan(layout, state) -> RoundPlan`` gives what clients must know before they compress."""

    def __post_init__(self) -> None:
        if self.weighting not in (None, "examples", "uniform"):
            raise OptionError(f"weighting={self.weighting!r}: it must be 'examples', 'uniform' or None")


Traits = TypeVar("Traits", bound=PartTraits)

_FORMER: Mapping[str, tuple[str, ...]] = {
    "needs": ("requires",),
    "offers": ("provides",),
    "contractive": ("is_contractive",),
    "common_support": ("has_common_support", "requires_common_support"),
    "layerwise": ("is_layerwise",),
    "conserving": ("conserves_mass",),
    "hears": ("needs_acks",),
    "learns_change": ("needs_model_change",),
    "in_step": ("requires_full_participation",),
    "always_steps": ("steps_without_replies",),
    **{name: (name,) for name in ("task", "config", "weighting")},
}
"""Attributes of parts that were read before there were traits, and the traits that they became."""
_HOOKS = {CompressorTraits: ("begin", "draws_per_round"), AggregatorTraits: ("plan", "plans_rounds")}
"""The optional method of a kind of part, and the trait that announces it."""


def traits_of(part: object, kind: type[Traits]) -> Traits:
    """Return a part's traits. Attributes from before there were traits are still read, with a DeprecationWarning."""
    name, traits, (hook, trait) = type(part).__name__, getattr(part, "traits", None), _HOOKS.get(kind, ("", ""))
    has_hook = bool(hook) and callable(getattr(part, hook, None))
    if traits is None:
        known = {each.name for each in fields(kind)}
        pairs = [(new, old) for old, news in _FORMER.items() for new in news if new in known and hasattr(part, old)]
        given: dict[str, Any] = {new: getattr(part, old) for new, old in pairs}
        if given:
            warnings.warn(
                f"{name} states {', '.join(old for _, old in pairs)} as attributes, which "
                f"the next version does not read: give it traits = {kind.__name__}({', '.join(given)})",
                DeprecationWarning,
                stacklevel=2,
            )
        traits = kind(**given | ({trait: True} if has_hook else {}))
    if not isinstance(traits, kind):
        raise OptionError(f"{name}.traits must be of {kind.__name__}, got {type(traits).__name__}")
    if hook and has_hook != getattr(traits, trait):
        raise OptionError(f"{name}: the trait {trait} and the method {hook} must be there together")
    return traits


class Stateless:
    """A part that remembers nothing from round to round."""

    def init(self, layout: Layout) -> Arrays:
        """Return the empty state."""
        return {}


@dataclass(frozen=True, eq=False)
class RoundContext:
    """What else a compressor may need, if its traits say so."""

    update: Vector
    """The update alone, without the residual."""
    layer_sums: NDArray[np.float64]
    """For each layer the sum of the magnitudes that are to be compressed."""
    plan: RoundPlan | None = None


class Compressed(NamedTuple):
    """What a compressor returns. Of a user's compressor a plain pair of payload and state is taken as well."""

    payload: Payload
    state: Arrays
    """The compressor's own next state."""
    residual: Vector | None = None
    """What is left for later rounds, only where it is not the update minus the payload."""


@runtime_checkable
class Compressor(Protocol):
    """Compresses an update into a payload. Its traits are `CompressorTraits`."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""

    def compress(
        self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator
    ) -> Compressed | tuple[Payload, Arrays]:
        """Return the payload and the next state. The update is read-only, with the residual already added."""


class ContextCompressor(Protocol):
    """A compressor whose traits say that it wants the context."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""

    def compress(
        self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator, context: RoundContext
    ) -> Compressed:
        """Return the payload and the next state, as `Compressor.compress`."""


AnyCompressor = Compressor | ContextCompressor


@runtime_checkable
class Feedback(Protocol):
    """Remembers what was not sent of an update. Its traits are `FeedbackTraits`."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round; the residual is stored under ``residual``."""

    def compress(
        self, update: Vector, state: State, compressor: AnyCompressor, rng: np.random.Generator
    ) -> tuple[Payload, State]:
        """Return the payload and the next state: its own under `feedback`, the compressor's under `compressor`."""

    def acknowledge(self, state: Arrays, payload: Payload, share: float) -> Arrays:
        """Return the state after the server stated which share of a reply it counted; the rest joins the residual."""


@dataclass(frozen=True)
class Heard:
    """The server's acknowledgement of a client's reply, as a later broadcast states it."""

    payload: Payload
    """What the server decoded."""
    share: float
    """The share of it that counted, from 0 to 1."""
    change: Vector | None = None
    """The model's change since the model from which the reply was trained; None if it is not known."""
    rounds: int = 1
    """The number of rounds of that change: 1 if the client was selected again in the next."""
    reach: float = 0.0
    """How far the reply's training would have moved a weight against a gradient of 1: lr x steps for plain SGD."""


class ClientRule:
    """A rule of local training. All hooks do nothing unless they are overridden. Its traits are `RuleTraits`."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""
        return {}

    def start(self, model: Vector, residual: Vector | None, state: Arrays) -> Vector:
        """Return the vector from which training starts, given the global model and this client's residual."""
        return model

    def gradient(self, gradient: Any, weights: Any, start: Any, state: Arrays) -> None:
        """Change the gradient of a step in place; all three are torch tensors."""

    def end(self, update: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        """Return the update to compress instead of the trained one, and the next state."""
        return update, state

    def owed(self, residual: Vector, state: Arrays) -> Vector:
        """Return the residual to keep, called after `end`; the rest is discarded on purpose."""
        return residual

    def heard(self, heard: Heard, state: Arrays) -> Arrays:
        """Return the next state, given what became of the client's reply. Nothing may move by what did not count."""
        return state


def hooks_of(rule: ClientRule) -> frozenset[str]:
    """Return the names of the hooks that a rule overrides."""
    names = ("start", "gradient", "end", "owed", "heard")
    return frozenset(name for name in names if getattr(type(rule), name) is not getattr(ClientRule, name))


@dataclass(frozen=True)
class Update:
    """A reply that passed validation, as aggregators see it."""

    client: int
    payload: Payload
    examples: int
    weight: float = 1.0
    """The number of examples if the aggregator weighs by them, else 1."""
    reread: Callable[[], Payload] | None = field(default=None, repr=False, compare=False)
    """Decodes the payload again, if its bytes are available: a round takes less memory as bytes."""


@dataclass(frozen=True)
class Aggregate:
    """The result of a round's updates."""

    mean: Vector | None
    """None: the model is stepped elsewhere."""
    shares: Mapping[int, float]
    """The share of each client's reply that counted, from 0 to 1. The rest returns to the client's residual."""
    buffers: Buffers | None = None
    state: Arrays = field(default_factory=dict)
    """The aggregator's next state."""
    let_go: Mapping[int, float] = field(default_factory=dict)
    """The share that is discarded: it neither counted nor returns to the residual, so that residuals stay bounded."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """Metrics to record of the round, besides its bytes."""


class Accumulator(Protocol):
    """A round under way in an aggregator."""

    def add(self, update: Update) -> None:
        """Take an update in, as it comes."""

    def close(self) -> Aggregate:
        """End the round; at least one update was added, unless the aggregator always steps."""


@runtime_checkable
class SumAccumulator(Protocol):
    """An accumulator that can also take the sum of several clients' updates, where no single one is known."""

    def add_sum(self, levels: NDArray[np.int64], clients: Sequence[int]) -> None:
        """Add the sum of these clients' levels, on the support of the round's plan."""


@runtime_checkable
class ModelAccumulator(Protocol):
    """An accumulator that is given the model from which clients train."""

    def begin(self, vector: Vector, buffers: Buffers | None, round: int) -> None:
        """Take the round's model, before any update."""


@runtime_checkable
class Aggregator(Protocol):
    """Aggregates the updates of a round into their mean, and the share of each that counted.

    Its traits are `AggregatorTraits`.
    """

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""

    def open(self, layout: Layout, state: Arrays) -> Accumulator:
        """Begin a round."""


@runtime_checkable
class Optimizer(Protocol):
    """The server's step."""

    def init(self, layout: Layout) -> Arrays:
        """Return the state before the first round."""

    def step(self, model: Vector, mean: Vector, state: Arrays) -> tuple[Vector, Arrays]:
        """Return the next model and the next state, given the mean update."""


@dataclass(frozen=True)
class State:
    """The state of a method on one client: arrays that can be saved and compared. Never changed in place."""

    layout: Layout
    compressor: Arrays = field(default_factory=dict)
    feedback: Arrays = field(default_factory=dict)
    rules: tuple[Arrays, ...] = ()
    plan: RoundPlan | None = None
    """The plan of the round, for the compressor, where the aggregator makes one."""

    VERSION: ClassVar[int] = 1

    @property
    def residual(self) -> Vector | None:
        """What was not sent yet, for methods with error feedback."""
        return self.feedback.get("residual")

    def arrays(self) -> Arrays:
        """Return all arrays under flat names, for a file."""
        parts = {"compressor": self.compressor, "feedback": self.feedback}
        parts |= {_PLAN: self.plan.arrays()} if self.plan is not None else {}
        parts |= {f"rule{number}": arrays for number, arrays in enumerate(self.rules)}
        return {f"{part}.{name}": array for part, arrays in parts.items() for name, array in arrays.items()}

    @classmethod
    def of_arrays(cls, layout: Layout, arrays: Mapping[str, Any], rules: int) -> State:
        """Undo `arrays`; `rules` is how many client rules the method has."""
        own = tuple(part_of(f"rule{number}", arrays) for number in range(rules))
        plan = part_of(_PLAN, arrays)
        others = {name: array for name, array in arrays.items() if not name.startswith(f"{_PLAN}.")}
        compressor, feedback = part_of("compressor", others), part_of("feedback", others)
        return cls(layout, compressor, feedback, own, RoundPlan.of_arrays(plan) if plan else None)

    def with_plan(self, plan: RoundPlan | None) -> State:
        """Return this state with the plan of another round."""
        return replace(self, plan=plan)

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
