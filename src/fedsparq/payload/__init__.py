"""The content of a message: the coordinates that are sent, and the values of each layer."""

from fedsparq.payload.cosine_blocks import CosineBlocks
from fedsparq.payload.floats import Float16Values, Float32Values
from fedsparq.payload.levels import BucketLevels, ClassLevels, Codebook, UniformLevels
from fedsparq.payload.low_rank import LowRank
from fedsparq.payload.payload import Layer, Payload
from fedsparq.payload.rotated_signs import RotatedSigns
from fedsparq.payload.selection import Dense, Indices, Seeded, Selection, Sparse
from fedsparq.payload.sketch import Sketch
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.values import Values, check_complete, register_values

__all__ = [
    "BucketLevels",
    "ClassLevels",
    "Codebook",
    "CosineBlocks",
    "Dense",
    "Float16Values",
    "Float32Values",
    "Indices",
    "Layer",
    "LowRank",
    "Payload",
    "Reader",
    "RotatedSigns",
    "Seeded",
    "Selection",
    "Sketch",
    "Sparse",
    "UniformLevels",
    "Values",
    "Writer",
    "register_values",
]

check_complete()
