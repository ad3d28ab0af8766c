"""SA-PEF (arXiv 2601.20738): training starts where the model would be if the server had what this client owes it."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from fedsparq.layout import Arrays, Vector
from fedsparq.options import component
from fedsparq.protocols import ClientRule


@component
class StepAhead(ClientRule):
    """Starts from model + alpha residual; the update is the change from there. Read from the paper's abstract."""

    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5

    def start(self, model: Vector, residual: Vector | None, state: Arrays) -> Vector:
        return model if residual is None or not self.alpha else model + np.float32(self.alpha) * residual
