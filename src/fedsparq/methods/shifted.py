"""Methods whose clients remember more than what they did not send: shifts, drifts, scaled residuals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedsparq.aggregate import ShiftedMean
from fedsparq.compress.feedback import ErrorControlled, ScaledErrorFeedback, Shifted
from fedsparq.compress.levels import LevelCount
from fedsparq.compress.sparsify import Float16, Largest, SelectAndQuantize, kept_count
from fedsparq.layout import Arrays, Layout, Vector
from fedsparq.method import Method
from fedsparq.methods.basic import fedcom
from fedsparq.methods.registry import register
from fedsparq.optimize import Step
from fedsparq.options import Fraction, NonNegative, Positive, component
from fedsparq.payload import Float32Values, Payload, Seeded
from fedsparq.payload.values import LARGEST_FLOAT32
from fedsparq.protocols import Compressed, CompressorTraits, Stateless
from fedsparq.rules import DriftCorrection, StepAhead

Share = Annotated[float, Field(ge=0, le=1)]


@register("fedcomgate", version=1)
def fedcomgate(levels: LevelCount = 512, gamma: Positive = 1.0) -> Method:
    """FedCOM whose clients correct their gradients by how far their updates were from the mean (Haddadpour 2021).

    For runs in which every client is asked in each round, with the broadcast as it is.

    Args:
        levels: of a magnitude, from 0 to the norm of its layer.
        gamma: the server's step along the mean update.
    """
    return replace(fedcom(levels, gamma), rules=(DriftCorrection(gamma),))


@register("scaled-feedback", version=1)
def scaled_feedback(fraction: Fraction = 0.01, kappa: Positive = 1.0) -> Method:
    """The largest, as float16, with a residual that never outweighs the update (our reading of Chen).

    Args:
        fraction: of the coordinates that is sent.
        kappa: of the update's norm, which the residual that is added may have.
    """
    return Method(_largest(fraction), feedback=ScaledErrorFeedback(kappa))


@register("sa-pef", version=1)
def sa_pef(fraction: Fraction = 0.01, alpha: Share = 0.5) -> Method:
    """The largest, as float16, with error feedback; clients start to train a part of it ahead (arXiv 2601.20738).

    Args:
        fraction: of the coordinates that is sent.
        alpha: of the residual, by which training starts ahead; 0 is plain error feedback.
    """
    return Method(_largest(fraction), feedback="full", rules=(StepAhead(alpha),))


@register("econtrol", version=1)
def econtrol(fraction: Fraction = 0.1, eta: NonNegative = 0.1, lr: Positive = 1.0) -> Method:
    """How updates differ from a shift, the largest as float16, with as much of past errors as `eta` says (Gao 2024).

    Args:
        fraction: of the coordinates that is sent.
        eta: of the errors so far, which is added to what is sent.
        lr: the server's step along the mean of the shifts.
    """
    return Method(_largest(fraction), ErrorControlled(eta), aggregator=ShiftedMean(), optimizer=Step(lr))


@register("ef21", version=1)
def ef21(fraction: Fraction = 0.1, new: Fraction = 0.5, lr: Positive = 1.0) -> Method:
    """How the mean of past updates differs from a shift, the largest as float16: EF21-SGDM (Fatkhullin 2023).

    Args:
        fraction: of the coordinates that is sent.
        new: how much a new update weighs in the mean of all; 1 is EF21 without momentum.
        lr: the server's step along the mean of the shifts.
    """
    return Method(_largest(fraction), Shifted(1.0, new), aggregator=ShiftedMean(), optimizer=Step(lr))


@component
class UnbiasedRandom(Stateless):
    """k of d coordinates times d / k, as float32; both sides draw them from one seed."""

    fraction: Fraction
    traits: ClassVar[CompressorTraits] = CompressorTraits(
        is_contractive=False, copies_values=True, value_kinds=(Float32Values,)
    )

    def compress(self, update: Vector, layout: Layout, state: Arrays, rng: np.random.Generator) -> Compressed:
        drawn = Seeded(layout.size, kept_count(self.fraction, layout.size), int(rng.integers(2**63)))
        indices = drawn.indices
        scale = layout.size / max(drawn.count, 1)
        values = np.clip(scale * update[indices].astype(np.float64), -LARGEST_FLOAT32, LARGEST_FLOAT32)
        cuts = np.searchsorted(indices, layout.bounds[1:-1].astype(np.uint32))
        parts = np.split(values.astype(np.float32), cuts)[: len(layout.parameters)]
        return Compressed(Payload(layout, drawn, tuple(map(Float32Values, parts))), state)


@register("soteriafl", version=1)
def soteriafl(fraction: Fraction = 0.05, gamma: Share | None = None, lr: Positive = 1.0) -> Method:
    """A random part of how updates differ from a shift, unbiased: SoteriaFL's shifted compression (Li 2022).

    The method alone promises nothing. With `--epsilon` and `--example-clip` each client's gradient is made private
    before it comes here: of each record, against the server too.

    Args:
        fraction: of the coordinates that is sent, k / d.
        gamma: how far shifts move; by default the paper's sqrt((1 + 2 w) / (2 (1 + w)^3)) with w = d / k - 1.
        lr: the server's step.
    """
    omega = 1 / fraction - 1
    gain = math.sqrt((1 + 2 * omega) / (2 * (1 + omega) ** 3)) if gamma is None else gamma
    shifts = ShiftedMean(gain, "round")
    return Method(UnbiasedRandom(fraction), Shifted(gain), aggregator=shifts, optimizer=Step(lr))


def _largest(fraction: float) -> SelectAndQuantize:
    return SelectAndQuantize(Largest(fraction), Float16())
