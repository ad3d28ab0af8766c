"""What the paper compares with, its own method, and the one that goes past it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedsparq.aggregate import Mean
from fedsparq.compress.adaptive import EqualSlope
from fedsparq.compress.budget import Bits, ByteBudget
from fedsparq.compress.levels import QSGD, LevelCount
from fedsparq.compress.quantize import Float16, Float32, Rounding, SelectAndQuantize
from fedsparq.compress.select import All, Largest, Random, Scope, SmoothedMean, Start
from fedsparq.compress.stochastic import StochasticLevels
from fedsparq.errors import OptionError
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Momentum, Step
from fedsparq.options import Decay, Fraction, NonNegative, parse_bytes
from fedsparq.rules import CommonPart, Proximal, StalePart
from fedsparq.wire import CONTEXT_LIMIT, encoded_size

Residual = Literal["full", "scaled", "kept-only", "off"]
Drift = Literal["sent", "left-out"]
Stale = Literal["sent", "let-go"]

_FEW_BITS = 0.15
"""With fewer than this, most of an update waits, and what is found again by itself weighs."""


@register("fedavg", version=1)
def fedavg(server_momentum: Decay = 0.0) -> Method:
    """Everything, as float32, weighted by examples: the reference (McMahan 2017).

    Args:
        server_momentum: the server's, as in FedAvgM (Hsu 2019).

    >>> from fedsparq import method
    >>> method("fedavg", server_momentum=0.9).optimizer
    Momentum(momentum=0.9, restart=False)
    """
    optimizer = Momentum(server_momentum) if server_momentum else Step()
    return Method(SelectAndQuantize(All(), Float32()), aggregator=Mean("examples"), optimizer=optimizer)


@register("float16", version=1)
def float16(rounding: Rounding = "nearest") -> Method:
    """Everything, as float16: the paper's "Quantization".

    Args:
        rounding: `nearest`, or `stochastic`, which is unbiased.

    >>> from fedsparq import method
    >>> method("float16").compressor
    SelectAndQuantize(select=All(), quantize=Float16(rounding='nearest'))
    """
    return Method(SelectAndQuantize(All(), Float16(rounding)))


@register("fedpaq", version=1)
def fedpaq(levels: LevelCount = 64) -> Method:
    """Everything, as QSGD's unbiased levels of each layer's norm, weighted by examples (Reisizadeh 2020).

    Args:
        levels: of a magnitude, from 0 to the norm of its layer.

    >>> from fedsparq import method
    >>> method("fedpaq", levels=8).traits.is_contractive
    False
    """
    return Method(SelectAndQuantize(All(), QSGD(levels)), aggregator=Mean("examples"))


@register("random-10", version=1)
def random_10(fraction: Fraction = 0.1) -> Method:
    """A random tenth, as float32; both sides draw the mask from one seed.

    Args:
        fraction: of the coordinates that is sent.

    >>> from fedsparq import method
    >>> method("random-10", fraction=0.01).compressor.select
    Random(fraction=0.01)
    """
    return Method(SelectAndQuantize(Random(fraction), Float32()))


@register("top-10", version=1)
def top_10(fraction: Fraction = 0.1) -> Method:
    """The largest tenth, as float32.

    Args:
        fraction: of the coordinates that is sent.

    >>> from fedsparq import method
    >>> method("top-10").compressor.select
    Largest(fraction=0.1, scope='global')
    """
    return Method(SelectAndQuantize(Largest(fraction), Float32()))


@register("fedsparq", version=1)
def fedsparq(
    beta: Decay = 0.9,
    multiplier: NonNegative = 1.0,
    scope: Scope = "layer",
    start: Start = "debiased",
    residual: Residual = "full",
    rounding: Rounding = "nearest",
    proximal_mu: NonNegative = 0.01,
    server_momentum: Decay = 0.01,
) -> Method:
    """What reaches the smoothed mean magnitude of its layer, as float16, with error feedback: the paper's method.

    Args:
        beta: how much of the average over past rounds is kept.
        multiplier: of the average, for the threshold.
        scope: one threshold for each layer, or one for the model (`global`).
        start: `debiased` divides the average by 1 - beta^t; `zero` does not.
        residual: all that was not sent (`full`), of that what does not outweigh the update (`scaled`), only the
            rounding errors of what was sent (`kept-only`), or nothing (`off`).
        rounding: to float16, `nearest` or `stochastic`.
        proximal_mu: FedProx's pull towards the global model while clients train.
        server_momentum: the server's.

    >>> from fedsparq import method
    >>> method("fedsparq", multiplier=2).compressor.select
    SmoothedMean(beta=0.9, multiplier=2.0, scope='layer', start='debiased')
    """
    return Method(
        SelectAndQuantize(SmoothedMean(beta, multiplier, scope, start), Float16(rounding)),
        feedback=residual,
        rules=(Proximal(proximal_mu),) if proximal_mu else (),
        optimizer=Momentum(server_momentum) if server_momentum else Step(),
    )


def _adaptive_in_federations(options: Mapping[str, Any], fraction: float) -> Mapping[str, Any]:
    """Where messages are unbiased; with full error feedback all of an update is sent sooner or later."""
    unbiased, few_bits = options["rounding"] == "stochastic", options["bits"] < _FEW_BITS and not options["budget"]
    return {
        "drift": "left-out" if unbiased and fraction < 1 else "sent",
        "stale": "let-go" if unbiased and few_bits else "sent",
    }


@register(
    "fedsparq-adaptive",
    version=1,
    in_broadcasts={"rounding": "nearest", "bits": 0.7},
    in_federations=_adaptive_in_federations,
)
def fedsparq_adaptive(
    bits: Bits = 0.2,
    budget: str = "",
    rounding: Rounding = "stochastic",
    deferred: Decay = 0.3,
    beta: Decay = 0.5,
    proximal_mu: NonNegative = 0.0,
    server_momentum: Decay = 0.3,
    drift: Drift = "sent",
    stale: Stale = "sent",
) -> Method:
    """What gains most for its bytes: unbiased, or with full error feedback (rounding="nearest"). See docs/ADAPTIVE.md.

    Args:
        bits: a parameter, to be spent on a message.
        budget: the most bytes that a message may take instead, such as "20 kB".
        rounding: `stochastic`, which is unbiased, or `nearest` with full error feedback.
        deferred: what is below this share of a step waits for later rounds (`stochastic` only).
        beta: how much is kept of what is known of the wire's efficiency.
        proximal_mu: FedProx's pull towards the global model while clients train.
        server_momentum: the server's, which drops it in a round whose mean points against it.
        drift: how a client's updates differ from the model's changes in every round, `sent` with the rest or
            `left-out`; a federation in which not all clients take part in each round leaves it out by default.
        stale: what a client has meanwhile found again by itself of what waits, `sent` with the rest or `let-go`
            (`stochastic` only); a federation lets it go by default where there are fewer than 0.15 bits.

    >>> from fedsparq import method
    >>> chosen = method("fedsparq-adaptive", budget="20 kB")
    >>> chosen.compressor.budget.budget, chosen.optimizer
    (20000, Momentum(momentum=0.3, restart=True))
    """
    byte_budget = ByteBudget(bits, parse_bytes(budget) if budget else 0, beta, encoded_size, CONTEXT_LIMIT)
    stochastic = rounding == "stochastic"
    if stale == "let-go" and not stochastic:
        raise OptionError("stale='let-go' is for rounding='stochastic'; with 'nearest' nothing is let go")
    rules = (
        Proximal(proximal_mu) if proximal_mu else None,
        StalePart() if stale == "let-go" else None,
        CommonPart() if drift == "left-out" else None,
    )
    return Method(
        StochasticLevels(byte_budget, deferred) if stochastic else EqualSlope(byte_budget),
        feedback="deferred" if stochastic else "full",
        rules=tuple(rule for rule in rules if rule),
        aggregator=Mean("examples"),
        optimizer=Momentum(server_momentum, restart=True) if server_momentum else Step(),
    )
