"""Codecs that a user would pick instead, each in an environment of its own, on the same vector.

The vector is an update of a matrix of 1,024 x 1,024: Laplace, each row with a scale of its own from 1e-4 to 1e-2.
Reported are bytes a parameter, encode and decode as multiples of copying the vector (CPU time, one thread), the
relative error, and what
becomes of NaN and of damaged bytes. Beside each stands what FedSparQ takes: the fewest bytes at no more error, and the
shortest time at no more of both, of the settings in peer_codecs.py.

    python benchmarks/peers.py ENVIRONMENTS            a folder; environments that are missing are made there
    python benchmarks/peers.py ENVIRONMENTS --draw     the table and the figure of docs/PEERS.md, from the last results
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "peers.json"
CODECS = Path(__file__).parent / "peer_codecs.py"
SIDE = 1024
_PATIENCE = 3600
"""Seconds for pip: nncodec is built from its source."""
PEERS: dict[str, list[str]] = {
    "flwr": [],
    "torch": [],
    "openfl": ["openfl", "numpy==2.0.2"],
    "nvflare": ["nvflare"],
    "fedlab": ["fedlab"],
    "appfl": ["pysz"],
    "hivemind": ["hivemind", "numpy==2.0.2"],
    "nncodec": ["nncodec", "h5py"],
}
"""What is installed for each from the package index, without what it asks for beside: numpy and torch, all that these
codecs need, are those of this project's environment, where Flower is as well. Of APPFL, whose compressor is SZ3, SZ3
itself."""


def main(folder: Path, draw: bool) -> None:
    if not draw:
        measure(folder)
    rows = json.loads(RESULTS.read_text())
    print(table(rows))
    figure(rows, ROOT / "docs" / "figures" / "peers.svg")


def measure(folder: Path) -> None:
    rng = np.random.default_rng(0)
    vector = (rng.laplace(size=(SIDE, SIDE)) * 10 ** rng.uniform(-4, -2, (SIDE, 1))).astype(np.float32)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        np.save(Path(scratch) / "vector.npy", vector)
        for peer in ("fedsparq", *PEERS):
            python, problem = (sys.executable, "") if peer == "fedsparq" else environment(folder / peer, PEERS[peer])
            words = [python, str(CODECS), peer, str(Path(scratch) / "vector.npy")]
            alone = os.environ | {"OMP_NUM_THREADS": "1"}
            done = subprocess.run(words, capture_output=True, text=True, cwd=scratch, env=alone)
            rows += [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if done.returncode:
                last = (problem or done.stderr).strip().splitlines()[-1:]
                rows.append({"package": peer, "version": "", "codec": "", "failed": last[0] if last else "unknown"})
            print(peer, "failed" if done.returncode else "done", file=sys.stderr)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def environment(folder: Path, packages: list[str]) -> tuple[str, str]:
    """The Python of an environment with these packages, and what pip said where it failed."""
    if not packages:
        return sys.executable, ""
    python = str(folder / "bin" / "python")
    if Path(python).exists():
        return python, ""
    venv.create(folder, with_pip=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "shared.pth").write_text(f"{np.__path__[0]}/..\n")
    pip = [python, "-m", "pip", "install", "-q", "--no-compile", "--no-deps", *packages]
    try:
        done = subprocess.run(pip, capture_output=True, text=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        return python, f"pip install {' '.join(packages)} did not end within {_PATIENCE // 60} minutes"
    return python, done.stderr if done.returncode else ""


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: the peers, and FedSparQ beside each."""
    ours = [row for row in rows if row["package"] == "fedsparq" and "failed" not in row]
    titles = ["package", "codec", "bytes a parameter", "relative error", "encode", "decode", "NaN", "damaged bytes"]
    titles += ["ours at no more error: bytes", "ours at no more of both: encode, decode"]
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        if row["package"] == "fedsparq":
            continue
        name = f"{row['package']} {row['version']}".strip()
        if "failed" in row:
            lines.append([name, row["codec"] or "all", row["failed"][:90], *[""] * 7])
            continue
        size, error = row["bytes a parameter"], row["relative error"]
        exact = [own for own in ours if own["relative error"] <= error]
        small = [own for own in exact if own["bytes a parameter"] <= 1.001 * size]
        least = min(exact, key=lambda own: own["bytes a parameter"], default=None)
        quick = min(small, key=lambda own: own["encode, copies"] + own["decode, copies"], default=None)
        lines.append(
            [
                *(name, row["codec"], f"{size:.3f}", f"{error:.3g}", f"{row['encode, copies']:.1f}"),
                *(f"{row['decode, copies']:.1f}", row["NaN"], row["damage"]),
                f"{least['bytes a parameter']:.3f} ({least['codec']})" if least else "none",
                _times(quick) if quick else "none",
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _times(own: dict[str, Any]) -> str:
    return f"{own['encode, copies']:.1f}, {own['decode, copies']:.1f} ({own['codec']})"


def figure(rows: list[dict[str, Any]], path: Path) -> None:
    """Bytes against error: FedSparQ's line, and every peer."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "peers"
    import matplotlib.pyplot as plt

    good = [row for row in rows if "failed" not in row and row["relative error"] > 0]
    ours = [row for row in good if row["package"] == "fedsparq" and "adaptive" in row["codec"]]
    ours.sort(key=lambda row: row["bytes a parameter"])
    shown, axes = plt.subplots(figsize=(7.2, 4.4))
    axes.plot(
        *zip(*((row["bytes a parameter"], row["relative error"]) for row in ours), strict=True),
        color="#00897b",
        marker=".",
        label="fedsparq-adaptive",
    )
    for package in PEERS:
        own = [row for row in good if row["package"] == package]
        if own:
            sizes, errors = [row["bytes a parameter"] for row in own], [row["relative error"] for row in own]
            axes.scatter(sizes, errors, label=package, s=26, zorder=3)
    axes.set(xscale="log", yscale="log", xlabel="bytes a parameter", ylabel="relative error")
    axes.legend(fontsize=8, frameon=False)
    axes.grid(alpha=0.25)
    shown.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    shown.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--draw" in sys.argv)
