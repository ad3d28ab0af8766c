"""A method: five parts, and the name under which both sides of a federation know them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import xxhash

from fedsparq.aggregate import Mean
from fedsparq.compress.feedback import FEEDBACK
from fedsparq.errors import OptionError, WireError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.optimize import Step
from fedsparq.payload import Payload, Values
from fedsparq.payload.support import RoundPlan
from fedsparq.protocols import (
    Aggregator,
    AggregatorTraits,
    AnyCompressor,
    ClientRule,
    Compressor,
    CompressorTraits,
    Feedback,
    FeedbackTraits,
    GradientHook,
    Heard,
    Optimizer,
    PartTraits,
    RuleTraits,
    State,
    hooks_of,
    traits_of,
)


@dataclass(frozen=True)
class Identity:
    """What two machines must agree on to run one algorithm: its name and version, and every option."""

    name: str
    version: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = field(default="", compare=False)
    """The name with the options that differ from the defaults: `fedsparq multiplier=2`. It is not sent."""

    def encode(self) -> bytes:
        """Return the identity as the text that is sent."""
        parts = [self.name, self.version, dict(sorted(self.options.items()))]
        return json.dumps(parts, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, text: bytes) -> Identity:
        try:
            name, version, options = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            name, version, options = None, None, None
        if not (isinstance(name, str) and isinstance(version, str) and isinstance(options, dict)):
            raise WireError("the method in a broadcast cannot be read")
        return cls(name, version, options, name)

    @cached_property
    def digest(self) -> int:
        """64 bits that tell identities apart."""
        return xxhash.xxh3_64_intdigest(self.encode())

    def difference(self, other: Identity) -> str:
        """Describe how another identity differs from this one; empty if it does not."""
        if self.name != other.name:
            return f"{other.name!r} instead of {self.name!r}"
        if self.version != other.version:
            return f"version {other.version} of {self.name!r} instead of version {self.version}"
        keys = sorted({*self.options, *other.options})
        pairs = [(key, other.options.get(key, _ABSENT), self.options.get(key, _ABSENT)) for key in keys]
        return ", ".join(f"{key}={theirs} instead of {own}" for key, theirs, own in pairs if theirs != own)


_ABSENT = "(no such option)"


@dataclass(frozen=True, kw_only=True)
class MethodTraits:
    """What clients, servers and transports must know of a method, derived from the traits of its parts."""

    is_contractive: bool
    has_common_support: bool
    is_layerwise: bool
    conserves_mass: bool
    """Whether everything that is not sent, or not counted, is sent later."""
    needs_acks: bool
    """Whether clients move states by what counted, so that every reply must be acknowledged."""
    needs_model_change: bool
    """Whether clients learn by how much the model moves."""
    requires_full_participation: bool
    """Whether clients must learn the mean update of each round, from two models in a row."""
    requires_own_server: bool
    """Whether the client's parts are of no use without the method's own server."""
    plans_rounds: bool
    draws_per_round: bool
    steps_without_replies: bool
    weighs_by_examples: bool
    rules: tuple[RuleTraits, ...]
    value_kinds: tuple[type[Values], ...]
    """The kinds of values that clients send; empty: any."""


@dataclass(frozen=True)
class Method:
    """A compressor with feedback and client rules on the client, an aggregator and an optimizer on the server.

    Each part can be replaced alone. A method holds no state: `init` makes one, `compress` takes one and gives the next.
    """

    compressor: AnyCompressor
    feedback: Feedback | str = "off"
    """How what was not sent is kept: an object, or `full`, `scaled`, `kept-only`, `deferred`, `off`."""
    rules: tuple[ClientRule, ...] = ()
    aggregator: Aggregator = field(default_factory=Mean)
    optimizer: Optimizer = field(default_factory=Step)
    identity: Identity | None = field(default=None, init=False)
    """None for a method built without a name: other processes could not build the same one."""
    traits: MethodTraits = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.feedback, str):
            if self.feedback not in FEEDBACK:
                raise OptionError(f"there is no feedback {self.feedback!r}; there is {', '.join(FEEDBACK)}")
            object.__setattr__(self, "feedback", FEEDBACK[self.feedback])
        if not isinstance(self.rules, tuple | list):
            raise OptionError(f"the rules of a method are several: rules=({type(self.rules).__name__}(...),)")
        object.__setattr__(self, "rules", tuple(self.rules))
        parts = ("compressor", Compressor), ("feedback", Feedback), ("aggregator", Aggregator), ("optimizer", Optimizer)
        for name, protocol in parts:
            _check_part(name, getattr(self, name), protocol)
        for rule in self.rules:
            _check_part("rules", rule, ClientRule)
        object.__setattr__(self, "traits", self._derived_traits())

    def _derived_traits(self) -> MethodTraits:
        """Return what the parts' traits come to; raise OptionError for parts that do not go together."""
        compressor, feedback = traits_of(self.compressor, CompressorTraits), traits_of(self.feedback, FeedbackTraits)
        rules = tuple(traits_of(rule, RuleTraits) for rule in self.rules)
        aggregator, optimizer = traits_of(self.aggregator, AggregatorTraits), traits_of(self.optimizer, PartTraits)
        if aggregator.requires_common_support and not compressor.has_common_support:
            raise OptionError(
                f"{type(self.aggregator).__name__} compares clients coordinate by coordinate, but with "
                f"{type(self.compressor).__name__} each client sends coordinates of its own: most values that it would "
                "compare are absent. Take the aggregator 'robust', or a method that sends every coordinate, such as "
                "'float16'"
            )
        if compressor.uses_plan and not aggregator.plans_rounds:
            raise OptionError(
                f"{type(self.compressor).__name__} needs an aggregator that plans each round, such as CommonMean; "
                f"{type(self.aggregator).__name__} does not"
            )
        parts = [self.compressor, self.feedback, *self.rules, self.aggregator, self.optimizer]
        traits: list[PartTraits] = [compressor, feedback, *rules, aggregator, optimizer]
        provided = {each.provides for each in traits}
        for part, each in zip(parts, traits, strict=True):
            if each.requires and each.requires not in provided:
                raise OptionError(
                    f"{type(part).__name__} needs {each.requires}, which no other part of this method is: "
                    "leave the parts of such a method as they are"
                )
        return MethodTraits(
            is_contractive=compressor.is_contractive,
            has_common_support=compressor.has_common_support,
            is_layerwise=compressor.is_layerwise and feedback.is_layerwise,
            conserves_mass=feedback.conserves_mass,
            needs_acks=feedback.needs_acks or any("heard" in hooks_of(rule) for rule in self.rules),
            needs_model_change=any(each.needs_model_change for each in rules),
            requires_full_participation=any(each.requires_full_participation for each in rules),
            requires_own_server=any(each.requires for each in (compressor, feedback, *rules)),
            plans_rounds=aggregator.plans_rounds,
            draws_per_round=compressor.draws_per_round,
            steps_without_replies=aggregator.steps_without_replies,
            weighs_by_examples=aggregator.weighting == "examples",
            rules=rules,
            value_kinds=compressor.value_kinds,
        )

    def named(self, identity: Identity | None) -> Method:
        """Return this method under the name by which others can build it."""
        made = replace(self)
        object.__setattr__(made, "identity", identity)
        return made

    def with_server(self, aggregator: Aggregator | None = None, optimizer: Optimizer | None = None) -> Method:
        """Return this method with other parts on the server. Clients need not know: its name stays.

        An aggregator whose weighting is None weighs as the one that it replaces.
        """
        aggregator, optimizer = aggregator or self.aggregator, optimizer or self.optimizer
        traits = traits_of(aggregator, AggregatorTraits)
        if self.traits.plans_rounds and not traits.plans_rounds:
            raise OptionError(f"{self.label!r} lives by its own aggregator, which plans each round: leave it in place")
        if traits.weighting is None:
            usual = "examples" if self.traits.weighs_by_examples else "uniform"
            aggregator = replace(aggregator, weighting=usual)  # type: ignore[type-var]
        return replace(self, aggregator=aggregator, optimizer=optimizer).named(self.identity)

    @property
    def label(self) -> str:
        """The name with the options that differ from the defaults: `fedsparq multiplier=2`."""
        return self.identity.label if self.identity else f"{type(self.compressor).__name__}, made by hand"

    @property
    def name(self) -> str:
        return self.identity.name if self.identity else ""

    @property
    def options(self) -> Mapping[str, Any]:
        """Every option, defaults included."""
        return self.identity.options if self.identity else {}

    @property
    def _feedback(self) -> Feedback:
        return cast(Feedback, self.feedback)

    def init(self, layout: Layout) -> State:
        """Return the state of a client before its first round."""
        rules = tuple(rule.init(layout) for rule in self.rules)
        state = State(layout, self.compressor.init(layout), self._feedback.init(layout), rules)
        return state.with_plan(self.plan(layout))

    def plan(self, layout: Layout, state: Arrays | None = None) -> RoundPlan | None:
        """Return the aggregator's plan of its next round; of the first one, without its state."""
        if not self.traits.plans_rounds:
            return None
        planner: Any = self.aggregator
        plan = planner.plan(layout, self.aggregator.init(layout) if state is None else state)
        if not isinstance(plan, RoundPlan):
            name = type(planner).__name__
            raise OptionError(f"{name}.plan must return a fedsparq.protocols.RoundPlan, got {type(plan).__name__}")
        return plan

    def begin(self, state: State, number: int) -> State:
        """Return the state at the start of a round, where the compressor draws by its number."""
        if not self.traits.draws_per_round:
            return state
        drawing: Any = self.compressor
        return replace(state, compressor=drawing.begin(state.compressor, number))

    def compress(self, update: Vector, state: State, rng: np.random.Generator) -> tuple[Payload, State]:
        """Return the payload of an update, and the next state. Neither `update` nor `state` is changed."""
        return self._feedback.compress(update, state, self.compressor, rng)

    def acknowledge(
        self,
        state: State,
        payload: Payload,
        share: float,
        change: Vector | None = None,
        rounds: int = 1,
        reach: float = 0.0,
    ) -> State:
        """Return the state after the server stated which share of the client's last reply it counted; see `Heard`."""
        heard = Heard(payload, share, change, rounds, reach)
        rules = tuple(rule.heard(heard, own) for rule, own in zip(self.rules, state.rules, strict=True))
        return replace(state, feedback=self._feedback.acknowledge(state.feedback, payload, share), rules=rules)

    def start(self, model: Vector, state: State) -> Vector:
        """Return the vector from which a client trains."""
        for rule, own in zip(self.rules, state.rules, strict=True):
            model = rule.start(model, state.residual, own)
        return model

    def gradient_hook(self, state: State) -> GradientHook | None:
        """Return what training must call in each step; None if no rule uses gradients."""
        looking = [pair for pair in zip(self.rules, state.rules, strict=True) if "gradient" in hooks_of(pair[0])]

        def hook(gradient: Any, weights: Any, start: Any) -> None:
            for rule, own in looking:
                rule.gradient(gradient, weights, start, own)

        return hook if looking else None

    def end(self, update: Vector, state: State) -> tuple[Vector, State]:
        """Return the update to compress, and the state after the client rules have seen it."""
        arrays, feedback, residual = list[Arrays](), state.feedback, state.residual
        for rule, own in zip(self.rules, state.rules, strict=True):
            update, after = rule.end(update, own)
            arrays.append(after)
            if residual is not None:
                residual = rule.owed(residual, after)
                feedback = feedback | {"residual": residual}
        return update, replace(state, feedback=feedback, rules=tuple(arrays))


def _check_part(name: str, part: object, protocol: Any) -> None:
    if isinstance(part, type) or not isinstance(part, protocol):
        what = "the class itself; make one of it" if isinstance(part, type) else type(part).__name__
        raise OptionError(f"the {name} of a method must have the methods of fedsparq.{protocol.__name__}; got {what}")
