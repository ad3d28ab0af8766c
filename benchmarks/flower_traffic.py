"""What a Flower app that trains and evaluates on its nodes sends and receives, by Flower's own counter.

An MLP (101,770 parameters) on the small MNIST, SuperNodes with TLS and node keys, fifteen rounds: plain Flower, and
both strategies with `fedsparq-adaptive` as it is, both directions compressed; `one-bit` with a first model of one bit
per weight. The counter is the SuperLink's for each run
(`network-traffic` of `flwr ls --format json`: the protobuf messages and objects that nodes pushed and pulled). It is
read after the first round, whose model travels whole, and at the end. A run that failed, or in which a node missed a
round, as on a machine with too much other work, is done again. Results are added to the file `--out`; what it has is
not run again.

    python benchmarks/flower_traffic.py [--rounds 15] [--nodes 1] [--variants plain FedSparQ] [--out traffic.json]
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from one_machine import Federation, RunFailedError, wait

APP = Path(__file__).with_name("flower_mnist_app")
VARIANTS = ("plain", "Compressed", "FedSparQ", "one-bit")
ATTEMPTS = 5


def measure(
    rounds: int = 15, nodes: int = 1, variants: Sequence[str] = VARIANTS, out: Path | None = None
) -> dict[str, Any]:
    """For each variant: bytes up and down after the first round and after all, and the accuracy after each."""
    measured: dict[str, Any] = json.loads(out.read_text()) if out is not None and out.exists() else {}
    for variant in variants:
        if variant not in measured:
            measured[variant] = _clean_run(variant, rounds, nodes)
            if out is not None:
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps(measured, indent=1) + "\n")
    return measured


def _clean_run(variant: str, rounds: int, nodes: int) -> dict[str, Any]:
    for _ in range(ATTEMPTS):
        try:
            with tempfile.TemporaryDirectory() as folder, Federation(Path(folder), nodes) as federation:
                counted, missed = _run(federation, variant, rounds)
        except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
            print(f"{variant}: {error}\nonce more", file=sys.stderr)
            continue
        if not missed:
            return counted
        print(f"{variant}: nodes missed {missed} messages of {rounds} rounds; once more", file=sys.stderr)
    raise RuntimeError(f"none of {ATTEMPTS} runs of {variant} went through")


def _run(federation: Federation, variant: str, rounds: int) -> tuple[dict[str, Any], int]:
    """What was counted, and how many answers did not come."""
    folder = federation.folder
    for number in range(federation.nodes):
        federation.node(number)
    wait("the SuperNodes", lambda: federation.online() == federation.nodes, 600, pause=3)
    config = f'folder="{folder}" variant="{variant}" rounds={rounds} nodes={federation.nodes}'
    run = federation.run(APP, config)
    counted: dict[str, Any] = {}
    for name, number in (("first", 1), ("all", rounds)):
        said = folder / f"{number}.json"
        wait(f"round {number} of {variant}", _exists_or_ended(said, federation, run), 3600, pause=3)
        if not said.exists():
            raise RunFailedError(f"it ended before round {number}:\n{federation.run_log(run)[-2000:]}")
        counted[name] = federation.status(run)["network-traffic"]
        counted["accuracy"] = json.loads(said.read_text())
        (folder / f"{number}.counted").touch()
    federation.finish(run, 600)
    log = federation.run_log(run)
    trained, ours, evaluated = (
        sum(map(int, re.findall(words, log)))
        for words in (
            r"aggregate_train: Received (\d+) results",
            r"fedsparq: (\d+) replies;",
            r"aggregate_evaluate: Received (\d+) results",
        )
    )
    return counted, 2 * rounds * federation.nodes - (trained or ours) - evaluated


def _exists_or_ended(said: Path, federation: Federation, run: str) -> Callable[[], bool]:
    return lambda: said.exists() or str(federation.status(run)["status"]).startswith("finished")


def table(measured: dict[str, Any]) -> str:
    """The measurement as Markdown."""
    rounds = len(measured["plain"]["accuracy"]) - 1
    lines = [
        f"| | MB up | MB down | all {rounds} rounds | rounds 2 to {rounds} | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    whole, later = (_total(measured["plain"]), _total(measured["plain"], later=True))
    for variant, row in measured.items():
        up, down = (row["all"][way] / 1e6 for way in ("inbound-bytes", "outbound-bytes"))
        less = [f"{whole / _total(row):.1f}x fewer", f"{later / _total(row, later=True):.1f}x fewer"]
        shown = " | ".join(["1", "1"] if variant == "plain" else less)
        lines.append(f"| {variant} | {up:.3f} | {down:.3f} | {shown} | {row['accuracy'][-1]:.2f} % |")
    return "\n".join(lines)


def _total(row: dict[str, Any], later: bool = False) -> int:
    """Bytes in both directions."""
    both = {name: row[name]["inbound-bytes"] + row[name]["outbound-bytes"] for name in ("first", "all")}
    return int(both["all"] - (both["first"] if later else 0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--nodes", type=int, default=1, help="all send and receive as much")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found = measure(options.rounds, options.nodes, options.variants, options.out)
    print(json.dumps(found))
    print(table(found))
