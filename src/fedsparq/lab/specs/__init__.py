"""What a run or a comparison is, read from TOML and the command line. Everything is checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from fedsparq.errors import OptionError, did_you_mean
from fedsparq.lab.settings import check, merge, no_such_key, read_toml
from fedsparq.lab.specs.parts import FaultSpec
from fedsparq.lab.specs.run import AS_TEXT, CompareSpec, RunSpec, to_spec_table
from fedsparq.lab.tasks.load import find
from fedsparq.lab.tasks.models import MODELS

__all__ = [
    "FaultSpec",
    "RunSpec",
    "check",
    "check_names_early",
    "compare_of",
    "load_bundled",
    "load_compare",
    "load_run",
    "locate",
    "read_spec",
    "read_toml",
]

_BUNDLED = files("fedsparq.lab.specs") / "bundled"


def load_run(path: Path | None, overrides: Mapping[str, Any]) -> RunSpec:
    """Return the spec of a single run from a TOML file, if given, and the command line."""
    if path is not None and not path.is_file() and _bundled(path.name) is not None:
        raise OptionError(f"{path} is a comparison; run it with: fedsparq compare {path}")
    table = read_toml(path) if path else {}
    if "methods" in table:
        raise OptionError(f"{path} lists methods, so it is a comparison; run it with: fedsparq compare {path}")
    return check(RunSpec, merge(to_spec_table(table), to_spec_table(overrides)), str(path or ""))


def read_spec(path: Path) -> RunSpec:
    """Read what a run folder says of its run. Nothing that it names is imported or made: others may have written it."""
    return check(RunSpec, read_toml(path), str(path), AS_TEXT)


def load_compare(path: Path, overrides: Mapping[str, Any]) -> CompareSpec:
    """A comparison from its TOML file; `overrides` from the command line win."""
    return compare_of(read_toml(path), overrides, str(path))


def compare_of(table: Mapping[str, Any], overrides: Mapping[str, Any], where: str = "") -> CompareSpec:
    """A comparison from the table of a spec; `overrides` win."""
    given, run = to_spec_table(overrides), to_spec_table(table)
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
    """Return the path of a spec, given by its path or, where it comes with the package, by its name."""
    path = Path(name) if Path(name).is_file() else _bundled(name)
    if path is None:
        known = sorted(Path(file.name).stem for file in _BUNDLED.iterdir())
        meant = did_you_mean(name, known)
        raise OptionError(
            f"there is no spec {name!r}; {meant}give the path of a TOML file, or one of {', '.join(known)}"
        )
    return path


def _bundled(name: str) -> Path | None:
    with as_file(_BUNDLED / f"{Path(name).stem}.toml") as path:
        return path if path.is_file() else None


def check_names_early(spec: RunSpec) -> None:
    """Refuse an unknown data set or model before anything slow is imported or read."""
    if spec.task != RunSpec.model_fields["task"].default:
        return
    if spec.model not in MODELS and ":" not in spec.model:
        raise OptionError(
            f"unknown model {spec.model!r}; {did_you_mean(spec.model, MODELS)}"
            f"choose from {', '.join(MODELS)}, or give package.module:function"
        )
    if spec.dataset != "mnist-mini" and ":" not in spec.dataset:
        find(spec.dataset)
