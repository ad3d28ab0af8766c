"""Every run of `fedsparq compare robust` and `robust-longer` as a line of a CSV file, and the table in docs/HOSTILE.md.

python scripts/robust_table.py runs/robust runs/robust-longer --out results/robust.csv
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from fedsparq.report.attacks import MEAN, NOBODY, SUCCESS, attack_of, row_of
from fedsparq.results.reading import load_runs
from fedsparq.results.records import Run

Key = tuple[str, str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results/robust.csv"))
    options = parser.parse_args()
    runs = load_runs(options.runs).runs
    found: dict[Key, dict[int, Run]] = {}
    for run in runs:
        found.setdefault((*row_of(run), attack_of(run)), {})[run.seed] = run
    with options.out.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["method", "aggregator", "attack", "seed", "accuracy", "loss", SUCCESS, "upload_bytes"])
        for (method, rule, attack), seeds in sorted(found.items()):
            for seed, run in sorted(seeds.items()):
                success = run.rounds[-1].metrics.get(SUCCESS, "")
                writer.writerow([method, rule, attack, seed, run.accuracy, run.loss, success, run.upload_bytes])
    for method in ("fedsparq", "fedsparq-adaptive"):
        print(f"\n| {method} | mean, seed 0 | robust, seeds 0, 1, 2 | least against the mean, nobody hostile |")
        print("|---|---|---|---|")
        honest = found[method, MEAN, NOBODY]
        attacks = sorted({key[2] for key in found if key[0] == method}, key=lambda attack: (attack != NOBODY, attack))
        for attack in attacks:
            mean, robust = (found.get((method, rule, attack), {}) for rule in (MEAN, "robust"))
            each = ", ".join(f"{robust[seed].accuracy:.2f}" if seed in robust else "–" for seed in (0, 1, 2))
            least = [run.accuracy - honest[seed].accuracy for seed, run in robust.items() if seed in honest]
            said = f"{mean[0].accuracy:.2f}" if 0 in mean else "–", each, f"{min(least):+.2f}" if least else "–"
            print(f"| {attack} | {' | '.join(said)} |")


if __name__ == "__main__":
    main()
