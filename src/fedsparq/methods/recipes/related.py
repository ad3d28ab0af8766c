"""Other methods, each as its paper tells it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedsparq.aggregate import Mean
from fedsparq.compress.feedback import MomentumCorrected
from fedsparq.compress.levels import BucketedQSGD, DeadZone, LevelCount, Norm, Zone
from fedsparq.compress.quantize import Float16, Float32, SelectAndQuantize
from fedsparq.compress.select import All, Largest, Rounds, Scope, SmoothedMean, WarmUp
from fedsparq.compress.signs import AdaComp, OneBitRotated, SparseTernary
from fedsparq.method import Method
from fedsparq.methods.registry import register
from fedsparq.optimize import Adam, Yogi
from fedsparq.options import Count, Decay, Fraction, NonNegative, Positive


@register("mean-threshold", version=1)
def mean_threshold(multiplier: NonNegative = 1.0) -> Method:
    """What reaches the mean magnitude of its layer in this round, as float16, with error feedback (Zhang 2022).

    Args:
        multiplier: of the mean, for the threshold.

    >>> from fedsparq import method
    >>> method("mean-threshold").compressor.select
    SmoothedMean(beta=0.0, multiplier=1.0, scope='layer', start='debiased')
    """
    return Method(SelectAndQuantize(SmoothedMean(0.0, multiplier), Float16()), feedback="full")


@register("percentile", version=1)
def percentile(percentile: Annotated[float, Field(ge=0, lt=100)] = 90.0) -> Method:
    """What lies above this percentile of its layer's magnitudes, as float16, with error feedback (Kumar 2023).

    Args:
        percentile: the share that is not sent, in percent.

    >>> from fedsparq import method
    >>> method("percentile", percentile=75).compressor.select
    Largest(fraction=0.25, scope='layer')
    """
    return Method(SelectAndQuantize(Largest(1 - percentile / 100, "layer"), Float16()), feedback="full")


@register("stc", version=1)
def stc(fraction: Fraction = 0.01, scope: Scope = "global") -> Method:
    """The largest by magnitude, as their signs and one mean magnitude, with error feedback (Sattler 2019).

    Args:
        fraction: of the coordinates that is sent.
        scope: of the whole model (`global`), or of each `layer`, which then has a magnitude of its own.

    >>> from fedsparq import method
    >>> method("stc").compressor
    SparseTernary(fraction=0.01, scope='global')
    """
    return Method(SparseTernary(fraction, scope), feedback="full")


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

    >>> from fedsparq import method
    >>> method("dgc", momentum=0.9).feedback
    MomentumCorrected(momentum=0.9, clip_norm=0.0)
    """
    compressor = SelectAndQuantize(WarmUp(fraction, start, warmup), Float32())
    return Method(compressor, feedback=MomentumCorrected(momentum, clip_norm))


@register("adacomp", version=1)
def adacomp(conv_bin: Count = 50, bin: Count = 500) -> Method:
    """What could lead its bin if the update counted twice, as signs and one magnitude a layer (Chen 2018).

    Args:
        conv_bin: coordinates in a bin of a convolution.
        bin: coordinates in a bin of any other layer.

    >>> from fedsparq import method
    >>> method("adacomp", bin=100).compressor
    AdaComp(conv_bin=50, bin=100)
    """
    return Method(AdaComp(conv_bin, bin), feedback="full")


@register("uniform", version=1)
def uniform(step: Positive = 2.0, dead_zone: Zone = 0.6, scope: Scope = "global") -> Method:
    """Equal steps of so many root mean squares behind a dead zone, with error feedback.

    Args:
        step: in root mean squares.
        dead_zone: what is below this many steps is not sent: from 0.5 (plain rounding) to 1 (towards zero).
        scope: the root mean square of the whole model (`global`), or of each `layer`.

    >>> from fedsparq import method
    >>> method("uniform", step=3).compressor
    DeadZone(step=3.0, dead_zone=0.6, scope='global')
    """
    return Method(DeadZone(step, dead_zone, scope), feedback="full")


@register("qsgd", version=1)
def qsgd(levels: LevelCount = 16, bucket: Count = 512, norm: Norm = "l2") -> Method:
    """Everything, as unbiased levels of the norm of each bucket, weighted by examples (Alistarh 2017).

    Args:
        levels: of a magnitude, from 0 to the norm of its bucket.
        bucket: so many coordinates of a layer in a row.
        norm: Euclidean (`l2`), or the largest magnitude (`max`).

    >>> from fedsparq import method
    >>> method("qsgd", norm="max").compressor
    BucketedQSGD(levels=16, bucket=512, norm='max')
    """
    return Method(BucketedQSGD(levels, bucket, norm), aggregator=Mean("examples"))


@register("eden", version=1)
def eden() -> Method:
    """One bit a coordinate: the signs of the randomly rotated update with an unbiased scale (Vargaftik 2022).

    >>> from fedsparq import method
    >>> method("eden").compressor
    OneBitRotated()
    """
    return Method(OneBitRotated(), aggregator=Mean("examples"))


@register("fedadam", version=1)
def fedadam(lr: Positive = 0.1, beta_1: Decay = 0.9, beta_2: Decay = 0.99, tau: Positive = 1e-3) -> Method:
    """FedAvg's updates, by which the server steps as Adam does (Reddi 2021).

    Args:
        lr: the server's learning rate.
        beta_1: decay of the mean of updates.
        beta_2: decay of the mean of their squares.
        tau: the larger, the less the step adapts.

    >>> from fedsparq import method
    >>> method("fedadam", lr=0.01).optimizer
    Adam(lr=0.01, beta_1=0.9, beta_2=0.99, tau=0.001)
    """
    compressor = SelectAndQuantize(All(), Float32())
    return Method(compressor, aggregator=Mean("examples"), optimizer=Adam(lr, beta_1, beta_2, tau))


@register("fedyogi", version=1)
def fedyogi(lr: Positive = 0.01, beta_1: Decay = 0.9, beta_2: Decay = 0.99, tau: Positive = 1e-3) -> Method:
    """FedAvg's updates, by which the server steps as Yogi does (Reddi 2021).

    Args:
        lr: the server's learning rate.
        beta_1: decay of the mean of updates.
        beta_2: by which share of a square the mean of squares moves.
        tau: the larger, the less the step adapts.

    >>> from fedsparq import method
    >>> method("fedyogi").optimizer
    Yogi(lr=0.01, beta_1=0.9, beta_2=0.99, tau=0.001)
    """
    compressor = SelectAndQuantize(All(), Float32())
    return Method(compressor, aggregator=Mean("examples"), optimizer=Yogi(lr, beta_1, beta_2, tau))
