"""What a message holds: which coordinates, and their values, of one kind a layer."""

from fedsparq.payload.bucket_levels import BucketLevels
from fedsparq.payload.class_levels import ClassLevels
from fedsparq.payload.codebook import Codebook
from fedsparq.payload.cosine_blocks import CosineBlocks
from fedsparq.payload.float16 import Float16Values
from fedsparq.payload.float32 import Float32Values
from fedsparq.payload.low_rank import LowRank
from fedsparq.payload.payload import Layer, Payload
from fedsparq.payload.rotated_signs import RotatedSigns
from fedsparq.payload.selection import Dense, Indices, Seeded, Selection, Sparse
from fedsparq.payload.sketch import Sketch
from fedsparq.payload.streams import Reader, Writer
from fedsparq.payload.uniform_levels import UniformLevels
from fedsparq.payload.values import Values, register_values

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
