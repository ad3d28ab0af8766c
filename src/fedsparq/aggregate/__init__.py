"""How the updates of a round become one: aggregators, a file each."""

from fedsparq.aggregate.centered_clipping import CenteredClipping, clipped_mean
from fedsparq.aggregate.coordinates import CoordinateMedian, TrimmedMean
from fedsparq.aggregate.fltrust import FLTrust
from fedsparq.aggregate.geometric_median import GeometricMedian
from fedsparq.aggregate.mean import Mean
from fedsparq.aggregate.multi_krum import MultiKrum
from fedsparq.aggregate.private import PrivateMean
from fedsparq.aggregate.robust import Robust
from fedsparq.aggregate.rounds import whole_round
from fedsparq.aggregate.shifted import ShiftedMean
from fedsparq.aggregate.support import CommonMean, Support

__all__ = [
    "CenteredClipping",
    "CommonMean",
    "CoordinateMedian",
    "FLTrust",
    "GeometricMedian",
    "Mean",
    "MultiKrum",
    "PrivateMean",
    "Robust",
    "ShiftedMean",
    "Support",
    "TrimmedMean",
    "clipped_mean",
    "whole_round",
]
