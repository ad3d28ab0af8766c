"""What can be said to be wrong with a run before anything slow is imported or read."""

from __future__ import annotations

from fedsparq.errors import OptionError
from fedsparq.lab.specs import RunSpec
from fedsparq.lab.tasks.load import find
from fedsparq.lab.tasks.models import MODELS


def look_ahead(spec: RunSpec) -> None:
    """An error for a data set or a model that there is not."""
    if spec.task != RunSpec.model_fields["task"].default:
        return
    if spec.model not in MODELS and ":" not in spec.model:
        known = ", ".join(MODELS)
        raise OptionError(f"unknown model {spec.model!r}: choose from {known}, or give package.module:function")
    if spec.dataset != "mnist-mini" and ":" not in spec.dataset:
        find(spec.dataset)
