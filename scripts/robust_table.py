"""Every run of `fedsparq compare robust` or `robust-longer` as a line of a CSV file, and the tables in docs/HOSTILE.md.

python scripts/robust_table.py runs/robust-longer --out results/robust-longer.csv

Lines of runs that are not given again stay in the file.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from fedsparq.lab.report.tables import MEAN, NO_ATTACK, SUCCESS
from fedsparq.lab.results import Results

KEY = ("method", "aggregator", "attack", "seed")
Lines = dict[tuple[str, ...], dict[str, str]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    lines = _read(options.out) | (_measured(options.runs) if options.runs else {})
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*KEY, "accuracy", "loss", SUCCESS, "upload_bytes"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines[key] for key in sorted(lines))
    for method in sorted({key[0] for key in lines}):
        _print(method, {key[1:]: float(line["accuracy"]) for key, line in lines.items() if key[0] == method})


def _read(path: Path) -> Lines:
    if not path.exists():
        return {}
    with path.open() as file:
        return {tuple(line[name] for name in KEY): line for line in csv.DictReader(file)}


def _measured(folders: list[Path]) -> Lines:
    lines = {}
    for row in Results.read(folders).frame().to_dict("records"):
        key = (row["method"], row["aggregator"] or MEAN, row["attack"] or NO_ATTACK, str(row["seed"]))
        success = row.get(f"metric.{SUCCESS}", "")
        found = {"accuracy": row["accuracy"], "loss": row["loss"], "upload_bytes": row["upload_bytes"]}
        found[SUCCESS] = "" if success != success else success
        lines[key] = dict(zip(KEY, key, strict=True)) | {name: str(value) for name, value in found.items()}
    return lines


def _print(method: str, accuracy: dict[tuple[str, ...], float]) -> None:
    """How many points each attack takes under each aggregator, from the method's own mean with nobody hostile on the
    same seed: the mean over seeds, and the worst."""
    rules = sorted({rule for rule, _, _ in accuracy}, key=lambda rule: (rule != MEAN, rule != "robust", rule))
    attacks = sorted({attack for _, attack, _ in accuracy}, key=lambda attack: (attack != NO_ATTACK, attack))
    print(f"\n| {method} | {' | '.join(rules)} |\n|{'---|' * (len(rules) + 1)}")
    for attack in attacks:
        cells = []
        for rule in rules:
            seeds = {key[2]: found for key, found in accuracy.items() if key[:2] == (rule, attack)}
            lost = [found - accuracy[MEAN, NO_ATTACK, seed] for seed, found in seeds.items()]
            worst = f" ({min(lost):+.2f})" if len(lost) > 1 else ""
            cells.append(f"{sum(lost) / len(lost):+.2f}{worst}" if lost else "–")
        print(f"| {attack} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
