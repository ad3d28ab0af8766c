"""How a client trains beyond plain SGD: client rules, a file each."""

from fedsparq.rules.common_part import CommonPart
from fedsparq.rules.drift_correction import DriftCorrection
from fedsparq.rules.proximal import Proximal
from fedsparq.rules.stale_part import StalePart
from fedsparq.rules.step_ahead import StepAhead
from fedsparq.rules.threshold_penalty import ThresholdPenalty

__all__ = ["CommonPart", "DriftCorrection", "Proximal", "StalePart", "StepAhead", "ThresholdPenalty"]
