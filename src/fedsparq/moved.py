"""Old names of modules, importable for one minor version with a warning. The table is all that there is to edit."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "fedsparq.engines": "fedsparq.lab.engines",
    "fedsparq.experiments": "fedsparq.lab.experiments",
    "fedsparq.paper": "fedsparq.lab.paper",
    "fedsparq.report": "fedsparq.lab.report",
    "fedsparq.results": "fedsparq.lab.results",
    "fedsparq.specs": "fedsparq.lab.specs",
    "fedsparq.tasks": "fedsparq.lab.tasks",
    "fedsparq.tasks.data": "fedsparq.lab.tasks.load",
}


class _Moved:
    """Find the modules of the table, and those inside of its packages, by their old names.

    It is a finder and a loader by its methods: to import `importlib.abc` takes longer than to import this package.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if new_name(name) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python."""

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        new = new_name(name)
        warnings.warn(f"{name} is now {new}; the old name will go", DeprecationWarning, stacklevel=2)
        sys.modules[name] = import_module(new)


def new_name(name: str) -> str:
    """Return today's name of a module; empty if it has not moved."""
    if name in MOVED:
        return MOVED[name]
    package, _, module = name.rpartition(".")
    return f"{MOVED[package]}.{module}" if package in MOVED else ""


sys.meta_path.insert(0, _Moved())
