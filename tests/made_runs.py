"""Run folders as `experiments/run.py` writes them, with made-up but plausible numbers: food for the report's tests."""

import json
import math
from pathlib import Path

import numpy as np

MODELS = {
    "mnist": ("mlp", {"fc1.weight": 100352, "fc1.bias": 128, "fc2.weight": 1280, "fc2.bias": 10}, 60000),
    "fmnist": (
        "lenet5",
        {"conv1.weight": 150, "conv2.weight": 2400, "fc1.weight": 48000, "fc2.weight": 10080, "fc3.weight": 840},
        60000,
    ),
    "cifar10": ("resnet18", {f"layer{i // 4}.{i % 4}.weight": 9408 * (1 + i) for i in range(20)}, 50000),
}
CEILING = {"mnist": 97.6, "fmnist": 90.4, "cifar10": 62.0}
#        method: (share of the ceiling reached, kept, bytes a kept coordinate as sent, and in the paper's accounting)
METHODS = {
    "fedavg": (1.0, 1.0, 4.0, 4.0),
    "fedpaq": (0.995, 1.0, 0.62, 1.0),
    "fedsparq": (0.998, 0.24, 1.9, 6.0),
    "float16": (1.0, 1.0, 1.72, 2.0),
    "random-10": (0.93, 0.1, 4.0, 8.0),
    "top-10": (0.985, 0.1, 4.9, 8.0),
}
SPARSE = {"fedsparq", "random-10", "top-10", "stc"}


def make_run(
    root: Path,
    method: str = "fedsparq",
    dataset: str = "mnist",
    partition: str = "iid",
    seed: int = 0,
    rounds: int = 25,
    options: dict[str, object] | None = None,
    note: str = "",
    reach: float | None = None,
    kept: float | None = None,
    clients: int = 3,
    model: str = "",
) -> Path:
    """Write one run folder and return it."""
    options = options or {}
    label = " ".join([method, *(f"{name}={value}" for name, value in options.items())])
    folder = root / f"{dataset}-{partition}-{label.replace(' ', '-').replace('=', '-')}-seed{seed}"
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, *label.encode(), *dataset.encode(), *partition.encode()])
    usual_model, layers, examples = MODELS.get(dataset, MODELS["mnist"])
    share, usual, sent, counted = METHODS.get(method, (0.97, 0.05, 1.0, 6.0))
    share, usual = reach or share, kept or usual
    size = sum(layers.values())
    ceiling = CEILING.get(dataset, 80.0) * (1.0 if partition == "iid" else 0.955)
    lines = []
    for t in range(1, rounds + 1):
        grown = share * ceiling * (1 - 0.35 * math.exp(-0.45 * t)) + float(rng.normal(0, 0.15))
        fraction = usual * (1 + 0.2 * math.exp(-t / 4)) if method == "fedsparq" else usual
        line = {
            "round": t,
            "accuracy": grown,
            "loss": 0.06 + 2.2 * (1 - grown / 100) + float(rng.normal(0, 0.004)),
            "upload_bytes": fraction * size * sent * float(rng.uniform(0.98, 1.02)),
            "download_bytes": 4.0 * size,
            "upload_bytes_paper": fraction * size * counted,
            "kept": fraction,
            "clients": clients,
            "seconds": {"train": 1.2, "compress": 0.01, "aggregate": 0.01, "evaluate": 0.2},
        }
        if method in SPARSE:
            wobble = rng.uniform(0.85, 1.15, len(layers)) if method == "fedsparq" else np.ones(len(layers))
            line["kept_layers"] = {
                name: min(1.0, fraction * float(w) * (1 + 0.1 * i * (method == "fedsparq") % 2))
                for i, (name, w) in enumerate(zip(layers, wobble, strict=True))
            }
        lines.append(line)
    folder.joinpath("rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    last = lines[-1]
    summary = {
        "method": method, "label": label, "options": options, "dataset": dataset, "model": model or usual_model,
        "partition": partition, "seed": seed, "rounds": rounds, "clients": clients, "accuracy": last["accuracy"],
        "loss": last["loss"], "robust1": last["accuracy"] - last["loss"],
        "robust2": last["accuracy"] / (last["loss"] + 1e-8), "kept": sum(x["kept"] for x in lines) / rounds,
        "parameters": size, "train_examples": examples, "note": note, "seconds": {"train": 1.2 * rounds},
    }  # fmt: skip
    for name in ("upload_bytes", "download_bytes", "upload_bytes_paper"):
        summary[name] = sum(x[name] for x in lines)
    folder.joinpath("summary.json").write_text(json.dumps(summary))
    weights = np.full((10, clients), 1 / clients) if partition == "iid" else rng.dirichlet([0.5] * clients, 10)
    counts = (weights.T * examples / 10).astype(int).tolist()
    folder.joinpath("partition.json").write_text(json.dumps({"classes": list("0123456789"), "counts": counts}))
    folder.joinpath("spec.toml").write_text(
        f'[run]\nmethod = "{method}"\ndataset = "{dataset}"\npartition = "{partition}"\nseed = {seed}\n'
        f"rounds = {rounds}\nclients = {clients}\n[training]\nlearning_rate = 0.05\nbatch_size = 32\nlocal_epochs = 1\n"
    )
    return folder


def make_paper(root: Path, seeds: int = 3) -> Path:
    """The paper's whole grid in small: three data sets, two partitions, six methods, and FedSparQ's variants."""
    for dataset in ("mnist", "fmnist", "cifar10"):
        short = {"rounds": 10, "note": "12,000 of 50,000 images, 10 rounds"} if dataset == "cifar10" else {}
        for partition in ("iid", "dirichlet(0.5)"):
            for method in METHODS:
                for seed in range(1 if dataset == "cifar10" else seeds):
                    make_run(root, method, dataset, partition, seed, **short)
    for options, reach, kept in (
        ({"residual": "kept-only"}, 0.97, 0.24),
        ({"residual": "off"}, 0.965, 0.25),
        ({"scope": "global"}, 0.996, 0.22),
        ({"start": "zero"}, 0.999, 0.43),
        ({"beta": 0.5}, 0.997, 0.25),
        ({"multiplier": 2}, 0.994, 0.09),
        ({"rounding": "stochastic"}, 0.998, 0.24),
    ):
        for seed in range(2):
            make_run(root, "fedsparq", "mnist", "iid", seed, options=options, reach=reach, kept=kept)
    return root
