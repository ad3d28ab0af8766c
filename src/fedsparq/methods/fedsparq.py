"""The paper's method, the adaptive one that goes past it, and the private one whose replies can be summed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from fedsparq.aggregate import CommonMean, Mean, Support
from fedsparq.compress.adaptive import EqualSlope, StochasticLevels
from fedsparq.compress.budget import Bits, ByteBudget
from fedsparq.compress.sparsify import Float16, Rounding, Scope, SelectAndQuantize, SmoothedMean, Start
from fedsparq.errors import OptionError, WireError
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Momentum, Step
from fedsparq.options import Decay, Fraction, NonNegative, component, parse_bytes
from fedsparq.payload import Payload, Sparse, UniformLevels
from fedsparq.payload.levels import MAX_LEVEL
from fedsparq.protocols import Compressed, CompressorTraits, RoundContext, Stateless
from fedsparq.rules import CommonPart, Proximal, StalePart
from fedsparq.wire import CONTEXT_LIMIT, encode

Residual = Literal["full", "scaled", "kept-only", "off"]
Drift = Literal["sent", "left-out"]
Stale = Literal["sent", "let-go"]

_FEW_BITS = 0.15
"""With fewer than this, most of an update waits, and what is found again by itself weighs."""
_SAFE = 1 - 1e-6
"""What is clipped stays this far below its bound, so that no rounding of float32 lifts it above."""


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
    """
    return Method(
        SelectAndQuantize(SmoothedMean(beta, multiplier, scope, start), Float16(rounding)),
        feedback=residual,
        rules=(Proximal(proximal_mu),) if proximal_mu else (),
        optimizer=Momentum(server_momentum) if server_momentum else Step(),
    )


@register("mean-threshold", version=1)
def mean_threshold(multiplier: NonNegative = 1.0) -> Method:
    """What reaches the mean magnitude of its layer in this round, as float16, with error feedback (Zhang 2022).

    Args:
        multiplier: of the mean, for the threshold.
    """
    return fedsparq(beta=0.0, multiplier=multiplier, proximal_mu=0.0, server_momentum=0.0)


def _adaptive_in_federations(options: Mapping[str, Any], fraction: float) -> Mapping[str, Any]:
    """Return the defaults for unbiased messages; with full error feedback all of an update is sent eventually."""
    unbiased, few_bits = options["rounding"] == "stochastic", options["bits"] < _FEW_BITS and not options["budget"]
    return {
        "drift": "left-out" if unbiased and fraction < 1 else "sent",
        "stale": "let-go" if unbiased and few_bits else "sent",
    }


@register(
    "fedsparq-adaptive",
    version=1,
    in_federations=_adaptive_in_federations,
    compresses_downlink=True,
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
    """
    byte_budget = ByteBudget(bits, parse_bytes(budget) if budget else 0, beta, encode, CONTEXT_LIMIT)
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


@component
class CommonLattice(Stateless):
    """Levels -top to top, a step apart, of just the coordinates that the server named for this round.

    The round plan has support, step and, in a private run, clip and another `top`. Without a clip levels are the
    nearest. With one, what is on the support is first scaled down to the clip's norm, and levels are rounded towards
    zero: step times the norm of the levels is never above the clip. What is not sent waits in the residual.
    """

    top: Annotated[int, Field(ge=1, le=MAX_LEVEL)] = 2
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        has_common_support=True,
        uses_plan=True,
        copies_values=True,
        wants_context=True,
        value_kinds=(UniformLevels,),
    )

    def compress(
        self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator, context: RoundContext
    ) -> Compressed:
        plan = context.plan
        if plan is None or plan.support is None:
            raise WireError("the server's broadcast has no support for this round, which this method needs")
        indices, step = plan.support.indices(layout.size), np.float32(plan.step)
        levels = lattice_levels(update[indices], step, plan.top or self.top, plan.clip)
        sent = np.flatnonzero(levels)
        cuts = np.searchsorted(indices[sent], layout.bounds.astype(np.uint32))
        values = tuple(UniformLevels(step, levels[sent[a:b]]) for a, b in pairwise(cuts))
        return Compressed(Payload(layout, Sparse(indices[sent]), values), state)


def lattice_levels(
    values: Vector, step: np.float32, top: int, clip: float = math.inf
) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Return the levels of some values, clipped in norm."""
    scaled, clipped = values.astype(np.float64), clip < math.inf
    if clipped:
        norm = float(np.linalg.norm(scaled))
        scaled *= min(1.0, _SAFE * clip / norm) if norm else 1.0
    levels = scaled / float(step)
    levels = np.trunc(levels) if clipped else np.rint(levels)
    return np.clip(levels, -top, top).astype(np.int16)


@register("fedsparq-private", version=1)
def fedsparq_private(
    fraction: Fraction = 0.1,
    top: Annotated[int, Field(ge=1, le=32767)] = 2,
    known: Decay = 0.5,
    small: Decay = 0.0,
    server_momentum: Decay = 0.0,
) -> Method:
    """Whole-number levels on coordinates that the server names for all clients of a round, with error feedback.

    Nobody's own choice of coordinates is to be seen, and sums of levels can be made under masks: with `--epsilon` and
    `--secure-sums` it is private, without it is a method like the others.

    Args:
        fraction: of the coordinates that a round is about.
        top: the largest level; what is above waits for the next round.
        known: the share of them that the server takes from where past rounds moved most; the rest is random.
        small: up to this share of them is whole layers, the smallest first; `known` is a share of the rest.
        server_momentum: the server's.
    """
    aggregator = CommonMean(Support(fraction=fraction, known=known, small=small))
    return Method(CommonLattice(top), "full", aggregator=aggregator, optimizer=Momentum(server_momentum))
