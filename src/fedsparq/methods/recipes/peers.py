"""Methods with ways of their own to make an update small: bits, factors, rotations, sketches, cosines, the air."""

from __future__ import annotations

from typing import Literal

from fedsparq.aggregate import Mean, OverTheAir, SketchedMean
from fedsparq.compress.demo import DecoupledMomentum, LargestCosines
from fedsparq.compress.drive import Drive, Scale
from fedsparq.compress.fedfq import FineGrained, Solver
from fedsparq.compress.fetchsgd import Rows, Seed, Sketched
from fedsparq.compress.jointsq import JointSQ
from fedsparq.compress.one_bit import CommonSigns
from fedsparq.compress.powersgd import PowerIteration
from fedsparq.compress.quantize import Float32, SelectAndQuantize
from fedsparq.compress.select import All
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Sign
from fedsparq.options import Count, Decay, Fraction, NonNegative, Positive
from fedsparq.rules import ThresholdPenalty


@register("jointsq", version=1)
def jointsq(ratio: Fraction = 0.032) -> Method:
    """0, 2, 4 or 8 bits a coordinate, where they gain most, with error feedback (Xie 2024).

    Args:
        ratio: of 32 bits a coordinate, for the levels; which coordinate has how many comes on top.

    >>> from fedsparq import method
    >>> method("jointsq").compressor
    JointSQ(ratio=0.032)
    """
    return Method(JointSQ(ratio), feedback="full")


@register("fedfq", version=1)
def fedfq(ratio: Fraction = 0.032, solver: Solver = "greedy") -> Method:
    """0, 2, 4, 6 or 8 bits a coordinate, for the least error, weighted by examples (FedFQ).

    Args:
        ratio: of 32 bits a coordinate, for the levels; which coordinate has how many comes on top.
        solver: `greedy`, which is exact, or `anneal`, as its authors do.

    >>> from fedsparq import method
    >>> method("fedfq", solver="anneal").compressor
    FineGrained(ratio=0.032, solver='anneal')
    """
    return Method(FineGrained(ratio, solver), aggregator=Mean("examples"))


@register("powersgd", version=1)
def powersgd(rank: Count = 4) -> Method:
    """Each matrix as the product of two thin ones, as float32, with error feedback (Vogels 2019).

    Args:
        rank: of the product: how many columns the thin matrices have.

    >>> from fedsparq import method
    >>> method("powersgd", rank=2).compressor
    PowerIteration(rank=2)
    """
    return Method(PowerIteration(rank), feedback="full")


@register("drive", version=1)
def drive(scale: Scale = "unbiased") -> Method:
    """One bit a coordinate: the signs of the randomly rotated update, with one scale a block (Vargaftik 2021).

    Args:
        scale: `unbiased`, which is `eden` at one bit, or `least-error`, with error feedback.

    >>> from fedsparq import method
    >>> method("drive").compressor
    Drive(scale='unbiased')
    """
    feedback = "off" if scale == "unbiased" else "full"
    return Method(Drive(scale), feedback=feedback, aggregator=Mean("examples"))


@register("fetchsgd", version=1)
def fetchsgd(
    size: Fraction = 0.1, rows: Rows = 5, fraction: Fraction = 0.01, momentum: Decay = 0.0, seed: Seed = 0
) -> Method:
    """Count sketches, by whose sum the server finds the largest of what it owes the model (Rothchild 2020).

    Args:
        size: of a layer's sketch, in numbers for each coordinate.
        rows: of the sketch, an odd number.
        fraction: of the coordinates that a round changes.
        momentum: the server's, inside the sketch.
        seed: of the hash functions, the same everywhere.

    >>> from fedsparq import method
    >>> method("fetchsgd").compressor
    Sketched(size=0.1, rows=5, seed=0)
    """
    return Method(Sketched(size, rows, seed), aggregator=SketchedMean(size, rows, seed, fraction, momentum))


@register("demo", version=1)
def demo(kept: Count = 32, momentum: Decay = 0.999, lr: Positive = 0.003) -> Method:
    """The largest cosine components of a momentum that stays on the client; the server steps by signs (Peng 2024).

    Args:
        kept: coefficients of each block of at most 64 x 64, as float32.
        momentum: how much of the momentum is left after a round.
        lr: how far the server moves every coordinate.

    >>> from fedsparq import method
    >>> method("demo").optimizer
    Sign(lr=0.003)
    """
    return Method(LargestCosines(kept), DecoupledMomentum(momentum), optimizer=Sign(lr))


@register("sobaa", version=1)
def sobaa(
    fraction: Fraction = 0.2,
    power: Positive = 1.0,
    noise: NonNegative = 0.1,
    silent: NonNegative = 0.1,
    estimate: Literal["mean", "majority"] = "mean",
) -> Method:
    """Signs on a common support that add up over the air, with error feedback: a simulation, its unit is channel uses.

    Args:
        fraction: of the coordinates whose signs are sent.
        power: of a client's signal.
        noise: power of the receiver's.
        silent: a client whose channel's gain is below this is not heard in a round.
        estimate: of the signs, their `mean` or the sign of their sum (`majority`).

    >>> from fedsparq import method
    >>> method("sobaa").aggregator
    OverTheAir(power=1.0, noise=0.1, silent=0.1, estimate='mean', seed=0)
    """
    return Method(CommonSigns(fraction), feedback="full", aggregator=OverTheAir(power, noise, silent, estimate))


@register("spafl", version=1)
def spafl(penalty: NonNegative = 0.002) -> Method:
    """Thresholds of personal, pruned models, and nothing else of them: trains the task `spafl` (Kim 2024).

    Args:
        penalty: of low thresholds, times the sum of exp(-threshold) in the loss.

    >>> from fedsparq import method
    >>> method("spafl").rules
    (ThresholdPenalty(penalty=0.002),)
    """
    return Method(SelectAndQuantize(All(), Float32()), rules=(ThresholdPenalty(penalty),))
