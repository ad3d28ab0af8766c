"""Methods of selection and quantization alone, and FedAvg with other servers."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from fedsparq.aggregate import Mean
from fedsparq.compress.feedback import MomentumCorrected
from fedsparq.compress.levels import QSGD, BucketedQSGD, DeadZone, LevelCount, Norm, Zone
from fedsparq.compress.sparsify import (
    All,
    Float16,
    Float32,
    Largest,
    Random,
    Rounding,
    Rounds,
    Scope,
    SelectAndQuantize,
    WarmUp,
)
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Adam, Momentum, Step, Yogi
from fedsparq.options import Count, Decay, Fraction, NonNegative, Positive
from fedsparq.rules import ThresholdPenalty


@register("fedavg", version=1)
def fedavg(server_momentum: Decay = 0.0) -> Method:
    """Everything, as float32, weighted by examples: the reference (McMahan 2017).

    Args:
        server_momentum: the server's, as in FedAvgM (Hsu 2019).
    """
    optimizer = Momentum(server_momentum) if server_momentum else Step()
    return Method(SelectAndQuantize(All(), Float32()), aggregator=Mean("examples"), optimizer=optimizer)


@register("float16", version=1)
def float16(rounding: Rounding = "nearest") -> Method:
    """Everything, as float16: the paper's "Quantization".

    Args:
        rounding: `nearest`, or `stochastic`, which is unbiased.
    """
    return Method(SelectAndQuantize(All(), Float16(rounding)))


@register("fedpaq", version=1)
def fedpaq(levels: LevelCount = 64) -> Method:
    """Everything, as QSGD's unbiased levels of each layer's norm, weighted by examples (Reisizadeh 2020).

    Args:
        levels: of a magnitude, from 0 to the norm of its layer.
    """
    return Method(SelectAndQuantize(All(), QSGD(levels)), aggregator=Mean("examples"))


@register("random-10", version=1)
def random_10(fraction: Fraction = 0.1) -> Method:
    """A random tenth, as float32; both sides draw the mask from one seed.

    Args:
        fraction: of the coordinates that is sent.
    """
    return Method(SelectAndQuantize(Random(fraction), Float32()))


@register("top-10", version=1)
def top_10(fraction: Fraction = 0.1) -> Method:
    """The largest tenth, as float32.

    Args:
        fraction: of the coordinates that is sent.
    """
    return Method(SelectAndQuantize(Largest(fraction), Float32()))


@register("percentile", version=1)
def percentile(percentile: Annotated[float, Field(ge=0, lt=100)] = 90.0) -> Method:
    """What lies above this percentile of its layer's magnitudes, as float16, with error feedback (Kumar 2023).

    Args:
        percentile: the share that is not sent, in percent.
    """
    return Method(SelectAndQuantize(Largest(1 - percentile / 100, "layer"), Float16()), feedback="full")


@register("dgc", version=1)
def dgc(
    fraction: Fraction = 0.01,
    momentum: Decay = 0.5,
    clip_norm: NonNegative = 0.0,
    warmup: Rounds = 4,
    start: Fraction = 0.25,
) -> Method:
    """The largest of each layer's accumulated velocity, as float32, fewer by the round at first (Lin 2018).

    The paper sends single gradients, with momentum 0.9 and a fraction of 0.001. Momentum makes steps 1 / (1 - momentum)
    times as long; with updates of a whole local epoch, 0.9 is too much.

    Args:
        fraction: of the coordinates of a layer that is sent in the end.
        momentum: of the velocity, which stands in the update's place.
        clip_norm: updates longer than this are scaled down to it; 0 clips nothing.
        warmup: in how many rounds the fraction falls to its end.
        start: the fraction of the first round.
    """
    compressor = SelectAndQuantize(WarmUp(fraction, start, warmup), Float32())
    return Method(compressor, feedback=MomentumCorrected(momentum, clip_norm))


@register("uniform", version=1)
def uniform(step: Positive = 2.0, dead_zone: Zone = 0.6, scope: Scope = "global") -> Method:
    """Equal steps of so many root mean squares behind a dead zone, with error feedback.

    Args:
        step: in root mean squares.
        dead_zone: what is below this many steps is not sent: from 0.5 (plain rounding) to 1 (towards zero).
        scope: the root mean square of the whole model (`global`), or of each `layer`.
    """
    return Method(DeadZone(step, dead_zone, scope), feedback="full")


@register("qsgd", version=1)
def qsgd(levels: LevelCount = 16, bucket: Count = 512, norm: Norm = "l2") -> Method:
    """Everything, as unbiased levels of the norm of each bucket, weighted by examples (Alistarh 2017).

    Args:
        levels: of a magnitude, from 0 to the norm of its bucket.
        bucket: so many coordinates of a layer in a row.
        norm: Euclidean (`l2`), or the largest magnitude (`max`).
    """
    return Method(BucketedQSGD(levels, bucket, norm), aggregator=Mean("examples"))


@register("fedcom", version=1)
def fedcom(levels: LevelCount = 64, gamma: Positive = 1.0) -> Method:
    """FedPAQ with a step of the server's own, `gamma` (Haddadpour 2021).

    Args:
        levels: of a magnitude, from 0 to the norm of its layer.
        gamma: the server's step along the mean update.
    """
    return replace(fedpaq(levels), optimizer=Step(gamma))


@register("fedadam", version=1)
def fedadam(lr: Positive = 0.1, beta_1: Decay = 0.9, beta_2: Decay = 0.99, tau: Positive = 1e-3) -> Method:
    """FedAvg's updates, by which the server steps as Adam does (Reddi 2021).

    Args:
        lr: the server's learning rate.
        beta_1: decay of the mean of updates.
        beta_2: decay of the mean of their squares.
        tau: the larger, the less the step adapts.
    """
    return replace(fedavg(), optimizer=Adam(lr, beta_1, beta_2, tau))


@register("fedyogi", version=1)
def fedyogi(lr: Positive = 0.01, beta_1: Decay = 0.9, beta_2: Decay = 0.99, tau: Positive = 1e-3) -> Method:
    """FedAvg's updates, by which the server steps as Yogi does (Reddi 2021).

    Args:
        lr: the server's learning rate.
        beta_1: decay of the mean of updates.
        beta_2: by which share of a square the mean of squares moves.
        tau: the larger, the less the step adapts.
    """
    return replace(fedavg(), optimizer=Yogi(lr, beta_1, beta_2, tau))


@register("spafl", version=1)
def spafl(penalty: NonNegative = 0.002) -> Method:
    """Thresholds of personal, pruned models, and nothing else of them: trains the task `spafl` (Kim 2024).

    Args:
        penalty: of low thresholds, times the sum of exp(-threshold) in the loss.
    """
    return Method(SelectAndQuantize(All(), Float32()), rules=(ThresholdPenalty(penalty),))
