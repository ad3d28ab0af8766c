"""Specs from TOML files: a user's, or one of those in `bundled/`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedsparq.errors import OptionError
from fedsparq.lab.specs.run import AS_TEXT, CompareSpec, RunSpec
from fedsparq.lab.tasks.tables import check, merge, no_such_key, read_toml

_BUNDLED = files("fedsparq.lab.specs") / "bundled"


def load_run(path: Path | None, overrides: Mapping[str, Any]) -> RunSpec:
    """A single run from a TOML file, if given, and the command line."""
    return check(RunSpec, merge(read_toml(path) if path else {}, dict(overrides)), str(path or ""))


def read_spec(path: Path) -> RunSpec:
    """Read what a run folder says of its run. Nothing that it names is imported or made: others may have written it."""
    return check(RunSpec, read_toml(path), str(path), AS_TEXT)


def load_compare(path: Path, overrides: Mapping[str, Any]) -> CompareSpec:
    """A comparison from its TOML file; `overrides` from the command line win."""
    return compare_of(read_toml(path), overrides, str(path))


def compare_of(table: Mapping[str, Any], overrides: Mapping[str, Any], where: str = "") -> CompareSpec:
    """A comparison from the table of a spec; `overrides` win."""
    given, run = dict(overrides), dict(table)
    own = [key for key in CompareSpec.model_fields if key != "run"]
    keys = [*own, *(key for key in RunSpec.model_fields if key != "method")]
    for key in (*run, *given):
        if key not in keys and not (key == "method" and key in given):
            raise OptionError(": ".join(filter(None, [where, key, no_such_key(key, keys)])))
    known: dict[str, Any] = {key: run.pop(key) for key in own if key in run}
    known |= {key: given.pop(key) for key in own if key in given}
    if "method" in given:
        known["methods"] = [{"name": given.pop("method"), "options": given.pop("options", {})}]
    for one, many in (("partition", "partitions"), ("seed", "seeds")):
        if one in given:
            known[many] = [given.pop(one)]
        if one in run:
            known.setdefault(many, [run.pop(one)])
    spec = check(CompareSpec, known | {"run": merge(run, given)}, where)
    try:
        spec.runs()
    except OptionError as error:
        raise OptionError(": ".join(filter(None, [where, str(error)]))) from None
    return spec


def load_bundled(name: str) -> list[RunSpec]:
    """The runs of a spec that comes with the package."""
    with as_file(_BUNDLED / f"{name}.toml") as path:
        return load_compare(path, {}).runs()


def locate(name: str) -> Path:
    """A spec by its path, or one of the package's by its name."""
    if Path(name).is_file():
        return Path(name)
    with as_file(_BUNDLED) as folder:
        path = folder / f"{Path(name).stem}.toml"
        if path.exists():
            return path
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
    raise OptionError(f"there is no spec {name!r}: give the path of a TOML file, or one of {known}")
