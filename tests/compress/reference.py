"""FedSparQ as SPEC.md says it, in straight numpy. Shares no code with the package."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Reference:
    """One client. `step` runs a round and leaves what it did in `kept`, `sent`, `thresholds` and `residual`."""

    sizes: list[int]
    beta: float = 0.9
    multiplier: float = 1.0
    scope: str = "layer"
    start: str = "debiased"
    rule: str = "full"

    t: int = 0
    residual: np.ndarray = field(init=False)
    tau: list[float] = field(init=False)
    kept: np.ndarray = field(init=False)
    sent: np.ndarray = field(init=False)
    compensated: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.residual = np.zeros(sum(self.sizes), np.float32)
        self.tau = [0.0] * (1 if self.scope == "global" else len(self.sizes))

    def step(self, delta: np.ndarray) -> None:
        self.t += 1
        c = delta if self.rule == "off" else delta + self.residual
        limits = np.zeros(c.size, np.float32)
        groups = [sum(self.sizes)] if self.scope == "global" else self.sizes
        begin = 0
        for g, size in enumerate(groups):
            part = slice(begin, begin + size)
            mean = float(np.abs(c[part].astype(np.float64)).mean()) if size else 0.0
            self.tau[g] = self.beta * self.tau[g] + (1 - self.beta) * mean
            hat = self.tau[g] / (1 - self.beta**self.t) if self.start == "debiased" else self.tau[g]
            limits[part] = np.float32(self.multiplier * hat)
            begin += size
        self.kept = np.flatnonzero(np.abs(c) >= limits)
        self.compensated = c
        self.send(np.clip(c[self.kept], -65504, 65504).astype(np.float16))

    def send(self, values: np.ndarray) -> None:
        """Take these float16 as what was sent; `step` sends the nearest ones."""
        c = self.compensated
        self.sent = values
        u = np.zeros_like(c)
        u[self.kept] = values.astype(np.float32)
        residual = c - u
        if self.rule == "kept-only":
            everywhere = residual
            residual = np.zeros_like(c)
            residual[self.kept] = everywhere[self.kept]
        self.residual = residual
