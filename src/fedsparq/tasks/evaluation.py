"""How good a model is: metrics by name, over the whole test split."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedsparq.errors import DataError
from fedsparq.tasks.batches import batches
from fedsparq.tasks.dataset import IGNORED, Dataset
from fedsparq.tasks.devices import lowered
from fedsparq.tasks.flat_model import FlatModel
from fedsparq.tasks.training import objective

_CHUNK = 250
"""Examples per forward pass: fixed, because sums of another shape round differently."""


def evaluate(model: FlatModel, data: Dataset, *, precision: str = "float32") -> dict[str, float]:
    """Classes: accuracy in percent and mean cross-entropy, of a text also as bits per character. Numbers: the mean
    squared error in their own units, and r2, the share of their variance that is explained."""
    if not len(data.test[0]):
        raise DataError("cannot evaluate on an empty split")
    return _classes(model, data, precision) if data.classification else _numbers(model, data, precision)


def _classes(model: FlatModel, data: Dataset, precision: str) -> dict[str, float]:
    correct, count, loss = 0, 0, 0.0
    for outputs, targets in _predictions(model, data, precision):
        loss += objective(outputs, targets, "sum").item()
        correct += int((outputs.argmax(-1) == targets).sum())
        count += int((targets != IGNORED).sum())
    metrics = {"accuracy": 100.0 * correct / count, "loss": loss / count}
    return metrics | ({"bits_per_character": loss / count / math.log(2)} if data.text else {})


def _numbers(model: FlatModel, data: Dataset, precision: str) -> dict[str, float]:
    targets = data.test[1].astype(np.float64)
    predicted = torch.cat([outputs.float().cpu() for outputs, _ in _predictions(model, data, precision)])
    error = np.square(predicted.double().numpy() - targets).mean(0)
    spread = targets.var(0).sum()
    units = np.array(data.target_std or 1.0) ** 2
    return {"loss": float((error * units).mean()), "r2": float(1 - error.sum() / spread) if spread else math.nan}


def _predictions(model: FlatModel, data: Dataset, precision: str) -> Iterator[tuple[Tensor, Tensor]]:
    model.module.eval()
    everything = np.arange(len(data.test[0]))
    with torch.no_grad():
        for inputs, targets in batches(data, data.test, everything, _CHUNK, device=model.device):
            with lowered(model.device, precision):
                outputs = model.module(inputs)
            yield outputs, targets
