"""Methods whose mean over their own randomness is the update: bucketed QSGD, and one bit after a random rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedsparq.compress import field_kernels
from fedsparq.compress.field_values import Buckets, Rotated, rotation_chunks
from fedsparq.compress.payload import Everything, Listed, Values
from fedsparq.compress.pipeline import Coded
from fedsparq.compress.quantize import MAX_LEVELS, round_up
from fedsparq.compress.select import Forgetful, Memory
from fedsparq.compress.state import Compensated
from fedsparq.errors import OptionError

Norm = Literal["l2", "max"]


@dataclass(frozen=True)
class BucketedQSGD(Forgetful):
    """Stochastic levels of the norm of each bucket: of `bucket` coordinates in a row of one layer."""

    levels: int
    bucket: int
    norm: Norm

    def __post_init__(self) -> None:
        if not 1 <= self.levels <= MAX_LEVELS:
            raise OptionError(f"levels={self.levels} is out of range; it must be from 1 to {MAX_LEVELS}")
        if self.bucket < 1:
            raise OptionError(f"bucket={self.bucket} is out of range; a bucket has at least one coordinate")

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        seed = np.uint64(rng.integers(2**63))
        kept, values = [np.empty(0, np.uint32)], list[Values]()
        for index, tensor in enumerate(c.layout.parameters):
            c.load(index)
            norms = np.empty(-(-tensor.size // self.bucket))
            field_kernels.bucket_norms(c.layer(index), self.bucket, self.norm == "max", norms)
            steps = np.array([round_up(norm / self.levels) for norm in norms], np.float32)
            levels = np.empty(tensor.size, np.int16)
            field_kernels.bucket_levels(c.layer(index), self.bucket, steps, self.levels, tensor.offset, seed, levels)
            places = np.flatnonzero(levels).astype(np.uint32)
            values.append(Buckets(self.bucket, steps, places // np.uint32(self.bucket), levels[places]))
            c.layer(index)[places] -= values[-1].decoded()
            kept.append(places + np.uint32(tensor.offset))
        sent = np.concatenate(kept)
        return Coded(Listed(sent), sent, tuple(values))


@dataclass(frozen=True)
class OneBitRotated(Forgetful):
    """The signs of the randomly rotated layer, and per chunk the scale that makes what is decoded unbiased."""

    def code(self, c: Compensated, rounds: int, memory: Memory, rng: np.random.Generator) -> Coded:
        values = list[Values]()
        for index, tensor in enumerate(c.layout.parameters):
            c.load(index)
            seed = int(rng.integers(2**63))
            scales, signs = [], []
            for number, (start, size, padded) in enumerate(rotation_chunks(tensor.size)):
                x = np.zeros(padded, np.float32)
                x[:size] = c.layer(index)[start : start + size]
                energy = float(np.dot(x, x))
                field_kernels.rotate(x, np.uint64(seed), number)
                total = float(np.abs(x).sum(dtype=np.float64))
                scales.append(energy / total if total > 0 else 0.0)
                signs.append(np.signbit(x))
            negative = np.concatenate(signs) if signs else np.empty(0, np.bool_)
            rotated = Rotated(tensor.size, seed, np.array(scales, np.float32), np.packbits(negative, bitorder="little"))
            values.append(rotated)
            c.layer(index)[:] -= rotated.decoded()
        return Coded(Everything(c.layout.size), np.arange(c.layout.size, dtype=np.uint32), tuple(values))
