"""Rounds of GPT-2 small (124,439,808 parameters) and of a LoRA adapter of it through Flower, plain and compressed.

The example `examples/language-model` runs on a SuperLink and SuperNodes on this machine, with TLS and node keys, each
variant on a federation of its own. Reported are bytes by Flower's own counter (`network-traffic` of `flwr ls`), seconds
of each round by the clock, CPU time and the most resident memory of each kind of process (/proc, five times a second),
and how far the model is from plain Flower's. In `plain` no process imports FedSparQ. Results and models are left in
FOLDER; what is there is not run again.

    python benchmarks/language_model.py FOLDER [--lora 8] [--nodes 1] [--rounds 2] [--variants plain fedsparq]

An environment with transformers and peft is made in FOLDER/venv if it is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import venv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from process_watch import Watch
from safetensors.numpy import load_file

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from one_machine import Federation, wait

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "language-model"
SERVER = Path(__file__).with_name("language_model_app") / "measured.py"
VARIANTS = {
    "plain": ("FedAvg", "", ""),
    "fedavg": ("Compressed", "fedavg", ""),
    "fedsparq": ("Compressed", "fedsparq", ""),
    "fedsparq, both ways": ("Compressed", "fedsparq", "fedsparq"),
    "fedsparq-adaptive": ("Compressed", "fedsparq-adaptive", ""),
    "fedsparq-adaptive, both ways": ("Compressed", "fedsparq-adaptive", "fedsparq-adaptive"),
    "FedSparQ, fedavg": ("FedSparQ", "fedavg", ""),
    "FedSparQ, fedsparq-adaptive": ("FedSparQ", "fedsparq-adaptive", ""),
    "FedSparQ, fedsparq-adaptive, both ways": ("FedSparQ", "fedsparq-adaptive", "fedsparq-adaptive"),
}
"""Strategy, method, and method of the way down."""
MEMORY = ("--database", ":flwr-in-memory:")
"""Flower's default. In a file, a busy disk and messages of half a gigabyte give `database is locked`."""
ROLES = {"client": "flwr-clientapp", "server": "flwr-serverapp", "link": "flower-superlink", "node": "flower-supernode"}


def environment(folder: Path) -> Path:
    """Where the commands of an environment with all that the example needs are."""
    commands = folder / "bin"
    if not (commands / "flwr").exists():
        venv.create(folder, with_pip=True)
        extra = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["optional-dependencies"]["models"]
        needed = ["-c", str(ROOT / "constraints.txt"), "-e", f"{ROOT}[torch,flower]", *extra]
        subprocess.run([str(commands / "python"), "-m", "pip", "install", "-q", *needed], check=True)
    return commands


def measure(commands: Path, variant: str, config: str, nodes: int, rounds: int, kept: Path) -> dict[str, Any]:
    """One run of the example. Its first and last models are left in the folder `kept`."""
    strategy, method, down = VARIANTS[variant]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        app = _app(folder / "app", plain=strategy == "FedAvg")
        federation = Federation(folder, nodes, MEMORY)
        federation.environment |= {"PATH": f"{commands}:{os.environ['PATH']}", "HF_HUB_OFFLINE": "1"}
        with Watch(f"RUNTIME_PORT={federation.environment['RUNTIME_PORT']}", ROLES) as watch, federation:
            for number in range(nodes):
                federation.node(number)
            wait("the SuperNodes", lambda: federation.online() == nodes, 600, pause=3)
            words = f'strategy="{strategy}" method="{method}" downlink="{down}" nodes={nodes} rounds={rounds} {config}'
            run = federation.run(app, f'{words} out="{folder}"')
            counted = []
            for number in range(1, rounds + 1):
                wait(f"round {number} of {variant}", _done(folder / f"{number}.done", federation, run), 7200, pause=1)
                traffic = federation.status(run)["network-traffic"]
                counted.append((traffic["inbound-bytes"], traffic["outbound-bytes"]))
                (folder / f"{number}.counted").touch()
            federation.finish(run, 600)
            seen = watch.seen()
        report: dict[str, Any] = json.loads((folder / "report.json").read_text())
        if len(report["loss"]) != rounds:
            raise RuntimeError(f"{variant}: no node answered in {rounds - len(report['loss'])} of {rounds} rounds")
        # On a busy machine Flower starts a ClientApp again that was slow to begin: those that trained took more time.
        trained = sorted((each for each in seen if each.role == "client"), key=lambda each: -each.cpu)[: nodes * rounds]
        clients = sorted(trained, key=lambda each: each.begun)
        by_round = [clients[at : at + nodes] for at in range(0, len(clients), nodes)]
        for name in ("start", "model"):
            shutil.move(folder / f"{name}.safetensors", kept / f"{name}-{variant}.safetensors")
        return report | {
            "up": np.diff([0, *(up for up, _ in counted)]).tolist(),
            "down": np.diff([0, *(down for _, down in counted)]).tolist(),
            "client_rss": [max(each.rss for each in group) for group in by_round],
            "client_cpu": [sum(each.cpu for each in group) / nodes for group in by_round],
            **{f"{role}_rss": max(each.rss for each in seen if each.role == role) for role in ("link", "node")},
            **{
                f"{role}_cpu": sum(each.cpu for each in seen if each.role == role) for role in ROLES if role != "client"
            },
        }


def _app(folder: Path, plain: bool) -> Path:
    """The example with the server that measures; where it is plain, without FedSparQ."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SERVER, folder)
    _replace(folder / "pyproject.toml", "app:server", "measured:server")
    if plain:
        _replace(folder / "app.py", "mods=[compress()]", "")
        _replace(folder / "app.py", "from fedsparq.flower import Compressed, FedSparQ, compress\n", "")
    return folder


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise RuntimeError(f"{path.name} has no {old!r}")
    path.write_text(text.replace(old, new))


def _done(said: Path, federation: Federation, run: str) -> Callable[[], bool]:
    """Whether a round is over; looks seldom whether the run is, as that takes a second of CPU time."""
    looked = time.monotonic()

    def done() -> bool:
        nonlocal looked
        if not said.exists() and time.monotonic() - looked > 300:
            looked = time.monotonic()
            if str(federation.status(run)["status"]).startswith("finished"):
                nodes = "".join(federation.log(name)[-3000:] for name in federation.processes)
                raise RuntimeError(f"the run ended before {said.stem}:\n{federation.run_log(run)[-3000:]}\n{nodes}")
        return said.exists()

    return done


def distance(kept: Path, variant: str) -> float:
    """How far a variant's model is from plain Flower's, as a share of how far that one moved; NaN if it did not run."""
    if not (kept / "model-plain.safetensors").exists():
        return float("nan")
    start, plain = load_file(kept / "start-plain.safetensors"), load_file(kept / "model-plain.safetensors")
    other = load_file(kept / f"model-{variant}.safetensors")
    if {name: array.shape for name, array in other.items()} != {name: array.shape for name, array in start.items()}:
        raise RuntimeError("the models have different arrays")
    apart, moved = (
        sum(float(((a[name] - b[name]).astype(np.float64) ** 2).sum()) for name in start)
        for a, b in ((other, plain), (plain, start))
    )
    return float((apart / moved) ** 0.5)


def table(found: dict[str, Any]) -> str:
    """The measurement as Markdown: of each pair, the first and the last round."""
    titles: tuple[str, ...] = (
        "",
        "MB up",
        "MB down",
        "s a round",
        "client: MB",
        "CPU s",
        "of it training",
        "ServerApp: MB",
        "CPU s",
    )
    titles += ("SuperLink: MB", "CPU s", "SuperNode: MB", "CPU s", "loss", "from plain")
    lines = [titles, ("---",) * len(titles)]
    for name, row in found.items():
        cells = [name, *(_ends(row[key], 1e6, 2) for key in ("up", "down")), _ends(row["seconds"], 1, 1)]
        cells += [_ends(row["client_rss"], 1e6, 0), _ends(row["client_cpu"], 1, 1), _ends(row["train_cpu"], 1, 1)]
        for role in ("server", "link", "node"):
            cells += [f"{row[f'{role}_rss'] / 1e6:,.0f}", f"{row[f'{role}_cpu']:.1f}"]
        lines.append((*cells, _ends(row["loss"], 1, 3), f"{row['from_plain']:.2g}"))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ends(values: Sequence[float], unit: float, digits: int) -> str:
    return ", ".join(f"{values[at] / unit:,.{digits}f}" for at in sorted({0, len(values) - 1}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lora", type=int, default=0, help="the rank of an adapter; 0: the whole model")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--config", default="", help="more of the example's options: 'text=\"shakespeare\"'")
    options = parser.parse_args()
    commands = environment(options.folder.resolve() / "venv")
    kept = options.folder / (f"adapter of rank {options.lora}" if options.lora else "whole model")
    kept.mkdir(exist_ok=True)
    config, rows = f"lora={options.lora} {options.config}", {}
    for variant in options.variants:
        said = kept / f"{variant}.json"
        if not said.exists():
            said.write_text(json.dumps(measure(commands, variant, config, options.nodes, options.rounds, kept)))
        rows[variant] = json.loads(said.read_text()) | {"from_plain": distance(kept, variant)}
        print(variant, json.dumps(rows[variant]), flush=True)
    print(table(rows))


if __name__ == "__main__":
    main()
