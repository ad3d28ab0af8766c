"""Which folder a run goes into when nobody says, and in what two runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedsparq.errors import FedSparQError
from fedsparq.lab.specs import RunSpec, read_spec
from fedsparq.lab.tasks.tables import slug

_IN_FOLDER_NAME = (
    *("method", "options", "aggregator", "aggregator_options", "optimizer", "optimizer_options", "task"),
    *("task_options", "seed", "downlink", "downlink_options", "acknowledge", "variant"),
)
"""What `RunSpec.folder_name` tells of every run."""
_ORDER = (
    *("dataset_options", "label_column", "client_column", "window", "augment", "dataset", "model", "model_options"),
    *("partition", "alpha", "shards_per_client", "clients", "fraction", "rounds", "train_limit", "test_limit"),
    *("budget", "client_budgets", "engine", "device", "note", "training", "server", "faults", "privacy"),
)
"""The order of the other settings in a folder's name: a run is found again only by the same name."""
_OF_OUR_TASK = {"dataset", "model", "partition"}
_OF_PARTITIONS = {"dirichlet": "alpha", "shards": "shards_per_client"}
_LONGEST = 150


def run_name(spec: RunSpec) -> str:
    """A folder's name: `RunSpec.folder_name`, and every other setting that is not as usual.

    A name that would be too long ends in a digest instead.
    """
    told = {*_IN_FOLDER_NAME}
    if spec.task == RunSpec.model_fields["task"].default:
        told |= {*_OF_OUR_TASK, _OF_PARTITIONS.get(spec.partition, "partition")}
    table = spec.model_dump(mode="json", exclude_defaults=True, exclude=told)
    other = flat({key: table[key] for key in sorted(table, key=_ORDER.index)})
    name = slug("-".join([spec.folder_name, *(f"{key.rpartition('.')[2]}={value}" for key, value in other)]))
    if len(name) > _LONGEST:
        digest = blake2b(spec.model_dump_json().encode(), digest_size=4).hexdigest()
        name = f"{name[: _LONGEST - 9]}-{digest}"
    return name.lstrip(".-")


def run_folder(out: Path, spec: RunSpec) -> Path:
    """The folder of a run under `out`.

    Where the same run is in a folder by its `RunSpec.folder_name` alone, as runs were once named, it is that one.
    """
    former = out / spec.folder_name
    begun = begun_spec(former)
    return former if begun is not None and not differences(begun, spec) else out / run_name(spec)


def begun_spec(folder: Path) -> RunSpec | None:
    """What a folder says it holds; None where it says nothing that can be read."""
    path = folder / "spec.toml"
    try:
        return read_spec(path) if path.is_file() else None
    except (FedSparQError, OSError):
        return None


def differences(old: RunSpec, new: RunSpec) -> dict[str, tuple[Any, Any]]:
    """The settings in which two runs differ, by their keys: `training.lr`."""
    before, now = dict(flat(old.model_dump(mode="json"))), dict(flat(new.model_dump(mode="json")))
    keys = dict.fromkeys([*now, *before])
    return {key: (before.get(key), now.get(key)) for key in keys if before.get(key) != now.get(key)}


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables, each by its keys joined with dots."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{name}.")
        else:
            yield name, value
