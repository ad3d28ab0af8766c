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
from fedsparq.payload import Payload
from fedsparq.protocols import Aggregator, ClientRule, Compressor, Feedback, GradientHook, Heard, Optimizer, State
from fedsparq.threads import count_of, grant


@dataclass(frozen=True)
class Identity:
    """What two machines must agree on to run one algorithm: its name and version, and every option."""

    name: str
    version: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    label: str = field(default="", compare=False)
    """The name with the options that differ from the defaults: `fedsparq multiplier=2`. It does not travel."""

    def encode(self) -> bytes:
        """The text that travels."""
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
        """How another identity differs from this one, in words; empty if it does not."""
        if self.name != other.name:
            return f"{other.name!r} instead of {self.name!r}"
        if self.version != other.version:
            return f"version {other.version} of {self.name!r} instead of version {self.version}"
        keys = sorted({*self.options, *other.options})
        pairs = [(key, other.options.get(key, _ABSENT), self.options.get(key, _ABSENT)) for key in keys]
        return ", ".join(f"{key}={theirs} instead of {own}" for key, theirs, own in pairs if theirs != own)


_ABSENT = "(no such option)"


@dataclass(frozen=True)
class Method:
    """A compressor with feedback and client rules on the client, an aggregator and an optimizer on the server.

    Each part can be replaced alone. A method holds no state: `init` makes one, `compress` takes one and gives the next.

    >>> from fedsparq import Layout, Method, method
    >>> from fedsparq.optimize import Adam
    >>> method("fedsparq", multiplier=2).label
    'fedsparq multiplier=2.0'
    >>> method("fedsparq").with_server(optimizer=Adam()).optimizer
    Adam(lr=0.1, beta_1=0.9, beta_2=0.99, tau=0.001)
    """

    compressor: Compressor
    feedback: Feedback | str = "off"
    """What is remembered of what was not sent: an object, or `full`, `scaled`, `kept-only`, `deferred`, `off`."""
    rules: tuple[ClientRule, ...] = ()
    aggregator: Aggregator = field(default_factory=Mean)
    optimizer: Optimizer = field(default_factory=Step)
    identity: Identity | None = field(default=None, init=False)
    """None for a method made by hand: other processes could not make the same one."""

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
        if getattr(self.aggregator, "common_support", False) and not getattr(self.compressor, "common_support", False):
            raise OptionError(
                f"{type(self.aggregator).__name__} compares clients coordinate by coordinate, but with "
                f"{type(self.compressor).__name__} each client sends coordinates of its own: most values that it would "
                "compare are absent. Take the aggregator 'robust', or a method that sends every coordinate, such as "
                "'float16'"
            )
        offered = {getattr(part, "offers", "") for part in (*self._client_parts, self.aggregator, self.optimizer)}
        for part in (*self._client_parts, self.aggregator, self.optimizer):
            needed = getattr(part, "needs", "")
            if needed and needed not in offered:
                raise OptionError(
                    f"{type(part).__name__} needs {needed}, which no other part of this method is: "
                    "leave the parts of such a method as they are"
                )

    def named(self, identity: Identity | None) -> Method:
        """This method under the name by which others can make it again."""
        made = replace(self)
        object.__setattr__(made, "identity", identity)
        return made

    def with_server(self, aggregator: Aggregator | None = None, optimizer: Optimizer | None = None) -> Method:
        """This method with other parts on the server. Clients need not know: its name stays.

        An aggregator whose `weighting` is None weighs as the one that it replaces.
        """
        if aggregator and hasattr(self.aggregator, "plan") and not hasattr(aggregator, "plan"):
            raise OptionError(f"{self.label!r} lives by its own aggregator, which plans each round: leave it in place")
        aggregator, optimizer = aggregator or self.aggregator, optimizer or self.optimizer
        if getattr(aggregator, "weighting", "") is None:
            usual = getattr(self.aggregator, "weighting", None) or "uniform"
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
    def contractive(self) -> bool:
        """Whether a payload is never farther from the update than zero is."""
        return bool(getattr(self.compressor, "contractive", True))

    @property
    def conserving(self) -> bool:
        """Whether what is not sent, or not counted, is all sent later."""
        return self._feedback.conserving

    @property
    def hears(self) -> bool:
        """Whether clients move states by what counted, and so must be told of every reply."""
        return bool(getattr(self.feedback, "hears", False)) or any(rule.hears for rule in self.rules)

    @property
    def learns_change(self) -> bool:
        """Whether clients learn by how much the model moves."""
        return any(rule.learns_change for rule in self.rules)

    @property
    def in_step(self) -> bool:
        """Whether clients must learn the mean update of each round, from two models in a row."""
        return any(rule.in_step for rule in self.rules)

    @property
    def whole_only(self) -> bool:
        """Whether the client's parts are of no use without the method's own server."""
        return any(getattr(part, "needs", "") for part in self._client_parts)

    @property
    def _client_parts(self) -> tuple[object, ...]:
        return self.compressor, self.feedback, *self.rules

    @property
    def _feedback(self) -> Feedback:
        return cast(Feedback, self.feedback)

    def init(self, layout: Layout) -> State:
        """The state of a client before its first round."""
        rules = tuple(rule.init(layout) for rule in self.rules)
        state = State(layout, self.compressor.init(layout), self._feedback.init(layout), rules)
        return state.with_plan(self.plan(layout))

    def plan(self, layout: Layout, state: Arrays | None = None) -> Arrays:
        """What the aggregator tells the clients of its next round; of the first one, without its state."""
        make = getattr(self.aggregator, "plan", None)
        return make(layout, self.aggregator.init(layout) if state is None else state) if make else {}

    def begin(self, state: State, number: int) -> State:
        """The state at the start of a round, where the compressor wants to know its number."""
        begin = getattr(self.compressor, "begin", None)
        return state if begin is None else replace(state, compressor=begin(state.compressor, number))

    def compress(
        self,
        update: Vector,
        state: State,
        rng: np.random.Generator,
        *,
        recycle: State | None = None,
        threads: int | None = None,
    ) -> tuple[Payload, State]:
        """Make an update small. Neither `update` nor `state` is changed.

        `recycle` is an older state that nobody needs any more: its memory is overwritten instead of new memory taken.
        The payload is the same with any number of threads, by default what the process may use.
        """
        spare = recycle.residual if recycle is not None else None
        with grant(count_of(threads, state.layout.size)):
            return self._feedback.compress(update, state, self.compressor, rng, spare)

    def acknowledge(
        self,
        state: State,
        payload: Payload,
        share: float,
        change: Vector | None = None,
        rounds: int = 1,
        reach: float = 0.0,
    ) -> State:
        """The state once the server has said which share of the client's last reply counted; see `Heard`."""
        heard = Heard(payload, share, change, rounds, reach)
        rules = tuple(rule.heard(heard, own) for rule, own in zip(self.rules, state.rules, strict=True))
        return replace(state, feedback=self._feedback.acknowledge(state.feedback, payload, share), rules=rules)

    def start(self, model: Vector, state: State) -> Vector:
        """Where a client starts to train."""
        for rule, own in zip(self.rules, state.rules, strict=True):
            model = rule.start(model, state.residual, own)
        return model

    def gradient_hook(self, state: State) -> GradientHook | None:
        """What training must call in each step; None if no rule looks at gradients."""
        looking = [pair for pair in zip(self.rules, state.rules, strict=True) if pair[0].looks_at_gradients]

        def hook(gradient: Any, weights: Any, start: Any) -> None:
            for rule, own in looking:
                rule.gradient(gradient, weights, start, own)

        return hook if looking else None

    def end(self, update: Vector, state: State) -> tuple[Vector, State]:
        """The update to compress, and the state after the client rules have seen it."""
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
