"""Methods by name. Each is select x quantize x feedback, and how clients train and the server averages beside it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

import numpy as np

from fedsparq.compress.payload import Listed, Payload, Positions
from fedsparq.compress.quantize import QSGD, Float16, Float32, Quantizer
from fedsparq.compress.select import All, Largest, Random, Scope, Selector, SmoothedMean
from fedsparq.compress.state import Compensated, State, Vector, check_update
from fedsparq.errors import OptionError
from fedsparq.layout import Layout

Rounding = Literal["nearest", "stochastic"]
Start = Literal["debiased", "zero"]
Feedback = Literal["full", "kept-only", "off"]
"""What is remembered of what was not sent: all of it, only the rounding error of what was sent, or nothing."""


@dataclass(frozen=True)
class Method:
    """A way to make updates small. It holds no state: `init` makes one, `compress` takes one and returns the next."""

    select: Selector
    quantize: Quantizer
    feedback: Feedback = "off"
    weighting: Literal["examples", "uniform"] = "uniform"
    """How the server weighs clients: by their number of examples, or all alike."""
    proximal_mu: float = 0.0
    """FedProx's pull towards the global model while training."""
    server_momentum: float = 0.0
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that differ from the defaults."""

    def __post_init__(self) -> None:
        if not self.proximal_mu >= 0:
            raise OptionError(f"proximal_mu={self.proximal_mu} is out of range; it must be at least 0")
        if not 0 <= self.server_momentum < 1:
            raise OptionError(f"server_momentum={self.server_momentum} is out of range; it must be in [0, 1)")

    @property
    def label(self) -> str:
        """The name with the options that differ from the defaults: `fedsparq multiplier=2`."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    def init(self, layout: Layout) -> State:
        """The state before the first round."""
        residual = None if self.feedback == "off" else np.zeros(layout.size, np.float32)
        return State(layout, residual=residual, memory=self.select.init(layout))

    def compress(
        self, update: Vector, state: State, rng: np.random.Generator, *, recycle: State | None = None
    ) -> tuple[Payload, State]:
        """Make an update small. Neither `update` nor `state` is changed.

        `recycle` is an older state that nobody needs any more: its memory is overwritten instead of new memory taken.
        """
        layout = state.layout
        c = Compensated(layout, check_update(update, layout), state.residual, _room(layout, state, recycle))
        memory = {key: array.copy() for key, array in state.memory.items()}
        choice = self.select.select(c, state.rounds, memory, rng)
        seed = int(rng.integers(2**63))
        chosen, kept, values = 0, [], []
        for index, (tensor, marks) in enumerate(zip(layout.parameters, choice.layers, strict=True)):
            sent, layer_values = self.quantize.quantize(c.layer(index), tensor.offset, marks, seed)
            chosen += marks.count
            kept.append(sent)
            values.append(layer_values)
        listed = Listed(np.concatenate([np.empty(0, np.uint32), *kept]))
        whole = listed.places.size == chosen
        payload = Payload(layout, choice.shortcut if choice.shortcut and whole else listed, tuple(values))
        return payload, State(layout, state.rounds + 1, self._residual(c.vector, listed.places), memory)

    def _residual(self, c: Vector, places: Positions) -> Vector | None:
        match self.feedback:
            case "full":
                return c
            case "kept-only":
                residual = np.zeros_like(c)
                residual[places] = c[places]
                return residual
            case "off":
                return None


def _room(layout: Layout, state: State, recycle: State | None) -> Vector:
    """Memory for the compensated update."""
    room = recycle.residual if recycle else None
    if room is None or room.shape != (layout.size,) or room is state.residual:
        return np.empty(layout.size, np.float32)
    return room


# The registry. A recipe's arguments are the method's options; their annotations say what is allowed.


def fedavg() -> Method:
    """Everything, as float32, weighted by examples: the reference (McMahan 2017)."""
    return Method(All(), Float32(), weighting="examples")


def float16(rounding: Rounding = "nearest") -> Method:
    """Everything, as float16 (the paper's "Quantization")."""
    return Method(All(), Float16(rounding))


def fedpaq(levels: int = 64) -> Method:
    """Everything, as QSGD's unbiased levels of each layer's norm (Reisizadeh 2020)."""
    return Method(All(), QSGD(levels), weighting="examples")


def random_10(fraction: float = 0.1) -> Method:
    """A random tenth, as float32; both sides draw the mask from one seed."""
    return Method(Random(fraction), Float32())


def top_10(fraction: float = 0.1) -> Method:
    """The largest tenth, as float32."""
    return Method(Largest(fraction), Float32())


def fedsparq(
    beta: float = 0.9,
    multiplier: float = 1.0,
    scope: Scope = "layer",
    start: Start = "debiased",
    residual: Feedback = "full",
    rounding: Rounding = "nearest",
    proximal_mu: float = 0.01,
    server_momentum: float = 0.01,
) -> Method:
    """What reaches the smoothed mean magnitude of its layer, as float16, with error feedback: the paper's method."""
    return Method(
        SmoothedMean(beta, multiplier, scope, start),
        Float16(rounding),
        feedback=residual,
        proximal_mu=proximal_mu,
        server_momentum=server_momentum,
    )


METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "float16": float16,
    "fedpaq": fedpaq,
    "random-10": random_10,
    "top-10": top_10,
    "fedsparq": fedsparq,
}


def method(name: str, **options: Any) -> Method:
    """A method by its name, options by keyword.

    >>> method("fedsparq", multiplier=2).label
    'fedsparq multiplier=2.0'
    """
    recipe = METHODS.get(name)
    if recipe is None:
        raise OptionError(f"there is no method {name!r}; there is {', '.join(METHODS)}")
    defaults = {key: parameter.default for key, parameter in inspect.signature(recipe).parameters.items()}
    hints = get_type_hints(recipe)
    checked = {key: _check_option(name, key, value, hints, defaults) for key, value in options.items()}
    unusual = {key: value for key, value in checked.items() if value != defaults[key]}
    return replace(recipe(**checked), name=name, options=unusual)


def _check_option(name: str, key: str, value: Any, hints: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    if key not in defaults:
        known = ", ".join(f"{k}={v}" for k, v in defaults.items()) or "none"
        raise OptionError(f"method {name!r} has no option {key!r}; its options are: {known}")
    choices = get_args(hints[key])
    if choices:
        if value not in choices:
            raise OptionError(f"{key}={value!r} is not possible for {name!r}; choose one of {', '.join(choices)}")
        return value
    kind = hints[key]
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        raise OptionError(
            f"{key}={value!r} is not possible for {name!r}; it takes {_KINDS[kind]} such as {defaults[key]}"
        )
    return kind(value)


_KINDS = {float: "a number", int: "a whole number", str: "a word"}
