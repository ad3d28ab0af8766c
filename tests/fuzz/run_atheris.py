"""Fuzz one target by coverage, for as long as you like: ``python tests/fuzz/run_atheris.py reply -max_total_time=600``.

Targets are those of targets.py. With `-` before its name, checksums are not forged. What does harm is written by
libFuzzer as ``crash-...``: put it into tests/fuzz/corpus as ``reply~what-it-was.bin``. Needs `pip install atheris`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

for folder in (Path(__file__).parent, Path(__file__).parents[1], Path(__file__).parents[1] / "flower"):
    sys.path.insert(0, str(folder))

SOURCE = Path(__file__).parents[2] / "src"
COMPILED = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts)
    for path in SOURCE.rglob("*.py")
    if "compiled import" in path.read_text()
]
"""Numba cannot compile what atheris has instrumented."""

with atheris.instrument_imports(include=["fedsparq"], exclude=COMPILED):
    from targets import TARGETS


def main() -> None:
    name = sys.argv.pop(1)
    target = TARGETS[name.lstrip("-")]
    folder = Path(f"fuzz-{name.lstrip('-')}")
    folder.mkdir(exist_ok=True)
    for number, seed in enumerate(target.seeds()):
        (folder / f"seed-{number}").write_bytes(seed)

    def one(data: bytes) -> None:
        if len(data) >= 24 and not name.startswith("-"):
            data = target.forge(data)
        target.check(data)

    atheris.Setup([*sys.argv, str(folder)], one)
    atheris.Fuzz()


main()
