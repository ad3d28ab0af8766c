"""Run the benchmarks, print a table of each, and write benchmarks/results/<name>.json.

python benchmarks/run.py                 all of them
python benchmarks/run.py codec engine    some of them
"""

from __future__ import annotations

import importlib
import json
import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedsparq.errors import FedSparQError

NAMES = ("codec", "methods", "training_loop", "resnet_step", "engine", "many_clients", "sweep", "robust")
RESULTS = Path(__file__).parent / "results"


def main(names: list[str]) -> int:
    console = Console()
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        console.print(f"there is no benchmark {', '.join(unknown)}; there is {', '.join(NAMES)}")
        return 2
    RESULTS.mkdir(exist_ok=True)
    failed = 0
    for name in names or NAMES:
        module = importlib.import_module(name)
        try:
            cases = module.measure()
        except FedSparQError as error:
            console.print(f"{name}: {error}")
            failed = 1
            continue
        result = {"python": platform.python_version(), "machine": platform.machine(), "cases": cases}
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        console.print(table(name, (module.__doc__ or name).partition("\n")[0], cases))
    return failed


def table(name: str, about: str, cases: Mapping[str, Mapping[str, Any]]) -> Table:
    """One column a case, one row a measure."""
    shown = Table(title=f"{name}: {about}", title_justify="left")
    shown.add_column("")
    for case in cases:
        shown.add_column(case, justify="right")
    columns = [dict(flat(measures)) for measures in cases.values()]
    for key in dict.fromkeys(key for column in columns for key in column):
        shown.add_row(key, *(column.get(key, "") for column in columns))
    return shown


def flat(measures: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in measures.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}: ")
        else:
            yield prefix + key, f"{value:,.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
