"""Methods by name: each is select x quantize x feedback, and beside it how clients train and the server averages.

A recipe's arguments are the method's options; their annotations say what is allowed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, get_args, get_type_hints

from fedsparq.compress.adaptive import EqualSlope
from fedsparq.compress.budget import Room, parse_bytes
from fedsparq.compress.dithered import Dithered
from fedsparq.compress.momentum import MomentumCorrection, WarmingUp
from fedsparq.compress.pipeline import Method, SelectAndQuantize
from fedsparq.compress.quantize import QSGD, Float16, Float32
from fedsparq.compress.select import All, Largest, Random, Scope, SmoothedMean
from fedsparq.compress.ternary import AdaComp, SparseTernary
from fedsparq.compress.unbiased import BucketedQSGD, Norm, OneBitRotated
from fedsparq.compress.uniform import DeadZone
from fedsparq.errors import OptionError

Rounding = Literal["nearest", "stochastic"]
Start = Literal["debiased", "zero"]
Residual = Literal["full", "kept-only", "off"]


def fedavg(server_momentum: float = 0.0) -> Method:
    """Everything, as float32, weighted by examples: the reference (McMahan 2017)."""
    return Method(SelectAndQuantize(All(), Float32()), weighting="examples", server_momentum=server_momentum)


def float16(rounding: Rounding = "nearest") -> Method:
    """Everything, as float16 (the paper's "Quantization")."""
    return Method(SelectAndQuantize(All(), Float16(rounding)))


def fedpaq(levels: int = 64) -> Method:
    """Everything, as QSGD's unbiased levels of each layer's norm (Reisizadeh 2020)."""
    return Method(SelectAndQuantize(All(), QSGD(levels)), weighting="examples", noisy=True)


def random_10(fraction: float = 0.1) -> Method:
    """A random tenth, as float32; both sides draw the mask from one seed."""
    return Method(SelectAndQuantize(Random(fraction), Float32()))


def top_10(fraction: float = 0.1) -> Method:
    """The largest tenth, as float32."""
    return Method(SelectAndQuantize(Largest(fraction), Float32()))


def fedsparq(
    beta: float = 0.9,
    multiplier: float = 1.0,
    scope: Scope = "layer",
    start: Start = "debiased",
    residual: Residual = "full",
    rounding: Rounding = "nearest",
    proximal_mu: float = 0.01,
    server_momentum: float = 0.01,
) -> Method:
    """What reaches the smoothed mean magnitude of its layer, as float16, with error feedback: the paper's method."""
    return Method(
        SelectAndQuantize(SmoothedMean(beta, multiplier, scope, start), Float16(rounding)),
        feedback=residual,
        proximal_mu=proximal_mu,
        server_momentum=server_momentum,
    )


def fedsparq_adaptive(
    bits: float = 0.3,
    budget: str = "",
    rounding: Rounding = "stochastic",
    deferred: float = 0.3,
    beta: float = 0.5,
    proximal_mu: float = 0.0,
    server_momentum: float = 0.3,
) -> Method:
    """What gains most for its bytes: right on average, or with full error feedback (rounding="nearest")."""
    room = Room(bits, parse_bytes(budget) if budget else 0, beta)
    return Method(
        Dithered(room, deferred) if rounding == "stochastic" else EqualSlope(room),
        feedback="deferred" if rounding == "stochastic" else "full",
        weighting="examples",
        proximal_mu=proximal_mu,
        server_momentum=server_momentum,
        momentum_restart=True,
        noisy=rounding == "stochastic",
    )


def mean_threshold(multiplier: float = 1.0) -> Method:
    """What reaches the mean magnitude of its layer in this round, as float16, with error feedback (Zhang 2022)."""
    return Method(SelectAndQuantize(SmoothedMean(0.0, multiplier), Float16()), feedback="full")


def percentile(percentile: float = 90.0) -> Method:
    """What lies above this percentile of its layer's magnitudes, as float16, with error feedback (Kumar 2023)."""
    return Method(SelectAndQuantize(Largest(1 - percentile / 100, "layer"), Float16()), feedback="full")


def stc(fraction: float = 0.01, scope: Scope = "global") -> Method:
    """The largest by magnitude, as their signs and one mean magnitude, with error feedback (Sattler 2019)."""
    return Method(SparseTernary(fraction, scope), feedback="full")


def dgc(
    fraction: float = 0.01, momentum: float = 0.5, clip_norm: float = 0.0, warmup: int = 4, start: float = 0.25
) -> Method:
    """The largest of each layer's accumulated velocity, as float32, fewer by the round at first (Lin 2018).

    The paper sends single gradients, with momentum 0.9 and a fraction of 0.001. Momentum makes steps 1 / (1 - momentum)
    times as long; with updates of a whole local epoch, 0.9 is too much.
    """
    return Method(
        SelectAndQuantize(WarmingUp(fraction, start, warmup), Float32()),
        feedback="full",
        correction=MomentumCorrection(momentum, clip_norm),
    )


def adacomp(conv_bin: int = 50, bin: int = 500) -> Method:
    """What could lead its bin if the update counted twice, as signs and one magnitude a layer (Chen 2018)."""
    return Method(AdaComp(conv_bin, bin), feedback="full")


def uniform(step: float = 2.0, dead_zone: float = 0.6, scope: Scope = "global") -> Method:
    """Equal steps of so many root mean squares behind a dead zone, with error feedback."""
    return Method(DeadZone(step, dead_zone, scope), feedback="full")


def qsgd(levels: int = 16, bucket: int = 512, norm: Norm = "l2") -> Method:
    """Everything, as unbiased levels of the norm of each bucket (Alistarh 2017)."""
    return Method(BucketedQSGD(levels, bucket, norm), weighting="examples", noisy=True)


def eden() -> Method:
    """One bit a coordinate: the signs of the randomly rotated update with an unbiased scale (Vargaftik 2022)."""
    return Method(OneBitRotated(), weighting="examples")


METHODS: dict[str, Callable[..., Method]] = {
    "fedavg": fedavg,
    "float16": float16,
    "fedpaq": fedpaq,
    "random-10": random_10,
    "top-10": top_10,
    "fedsparq": fedsparq,
    "fedsparq-adaptive": fedsparq_adaptive,
    "mean-threshold": mean_threshold,
    "percentile": percentile,
    "stc": stc,
    "dgc": dgc,
    "adacomp": adacomp,
    "uniform": uniform,
    "qsgd": qsgd,
    "eden": eden,
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


_FOR_BROADCASTS: dict[str, dict[str, Any]] = {"fedsparq-adaptive": {"rounding": "nearest", "bits": 0.7}}
"""Options that suit the server better than a method's defaults."""


def broadcast_method(name: str, **options: Any) -> Method:
    """A method by its name, for changes to a model that clients hold."""
    usual = _FOR_BROADCASTS.get(name, {})
    chosen = method(name, **usual | options)
    check_broadcast(chosen)
    unusual = {key: value for key, value in chosen.options.items() if value != usual.get(key)}
    return replace(chosen, options=unusual)


def check_broadcast(chosen: Method) -> None:
    """An error for a method that would let the clients' model wander off."""
    if chosen.noisy:
        raise OptionError(
            f"{chosen.label!r} cannot compress a broadcast: its messages are right only on average, and each change "
            "starts from the last; take one with small errors, such as 'fedsparq-adaptive' with rounding=nearest"
        )


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
