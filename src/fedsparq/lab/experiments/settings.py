"""Settings as people give them, by one name each, on the command line or to `fedsparq.run`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedsparq.lab.tasks import Training

TRAINING = tuple(field.name for field in fields(Training))
"""Settings that a spec has in its table `training`."""

PRIVACY = ("epsilon", "delta", "clip", "sampling", "example_clip", "secure_sums")
"""Settings that a spec has in its table `privacy`."""


def as_table(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by name as the table of a spec: ``lr`` belongs to ``training``."""
    table = {key: value for key, value in settings.items() if key not in (*TRAINING, *PRIVACY)}
    for name, keys in (("training", TRAINING), ("privacy", PRIVACY)):
        inner = {key: settings[key] for key in keys if key in settings}
        table |= {name: {**table.get(name, {}), **inner}} if inner else {}
    return table
