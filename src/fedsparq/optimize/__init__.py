"""How the server steps by the mean update: optimizers, a file each."""

from fedsparq.optimize.adam import Adam, Yogi
from fedsparq.optimize.momentum import Momentum, Step
from fedsparq.optimize.sign import Sign
from fedsparq.optimize.sparse_step import SparseStep

__all__ = ["Adam", "Momentum", "Sign", "SparseStep", "Step", "Yogi"]
