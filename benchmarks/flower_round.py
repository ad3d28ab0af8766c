"""A round of Flower's with a model of ResNet-18's size, before and after compression, on real processes with TLS.

Bytes are counted three times, over all rounds: by us, by Flower's SuperLink for each run, and by a proxy in front of it
(TLS and all). Each node has a link of its own: first without a limit, for what compression costs beside what Flower
itself costs; then of 20 Mbit/s each way. Seconds leave out the first round, whose downlink is dense.

    python benchmarks/flower_round.py [--rounds 4] [--nodes 2] [--links unlimited ...] [--variants plain up both]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from link import Link

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
from one_machine import Federation

APP = Path(__file__).with_name("flower_app")
VARIANTS = ("plain", "up", "both")
LINKS = {"unlimited": None, "20 Mbit/s": 20e6 / 8}
"""Bytes a second, each way."""


def measure(
    rounds: int = 4, nodes: int = 2, names: Sequence[str] = tuple(LINKS), variants: Sequence[str] = VARIANTS
) -> dict[str, Any]:
    """For each link and variant: seconds a round, a node's seconds in the mod, and bytes by all three counts."""
    measured: dict[str, Any] = {}
    for name in names:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            federation = stack.enter_context(Federation(Path(folder), nodes))
            links = [stack.enter_context(Link(federation.port, LINKS[name])) for _ in range(nodes)]
            for number, link in enumerate(links):
                federation.node(number, SUPERLINK=f"127.0.0.1:{link.port}")
            measured[name] = {variant: _run(federation, links, variant, rounds, nodes) for variant in variants}
    return measured


def _run(federation: Federation, links: list[Link], variant: str, rounds: int, nodes: int) -> dict[str, Any]:
    before = [(link.up, link.down) for link in links]
    config = f'folder="{federation.folder}" variant="{variant}" rounds={rounds} nodes={nodes}'
    status = federation.finish(federation.run(APP, config), 1800)
    report = json.loads((federation.folder / f"{variant}.json").read_text())
    later = [report["node"][str(number)] for number in range(2, rounds + 1)]
    return {
        "round_seconds": median(report["round_seconds"][1:]),
        "mod_seconds": median(node["whole-seconds"] - node["train-seconds"] for node in later),
        "train_seconds": median(node["train-seconds"] for node in later),
        "dense_bytes": report["dense_bytes"],
        "up": {
            "ours": sum(report["up"]),
            "flower": status["network-traffic"]["inbound-bytes"],
            "proxy": sum(link.up - up for link, (up, _) in zip(links, before, strict=True)),
        },
        "down": {
            "ours": sum(report["down"]),
            "flower": status["network-traffic"]["outbound-bytes"],
            "proxy": sum(link.down - down for link, (_, down) in zip(links, before, strict=True)),
        },
    }


def table(measured: dict[str, Any]) -> str:
    """The measurement as Markdown: bytes of the whole run, seconds of a round."""
    lines = [
        "| link | compression | s a round | s in the mod | MB up: ours / Flower / proxy | MB down: same |",
        "|---|---|---|---|---|---|",
    ]
    for link, variants in measured.items():
        for variant, row in variants.items():
            up, down = (
                " / ".join(f"{row[way][who] / 1e6:.2f}" for who in ("ours", "flower", "proxy")) for way in _WAYS
            )
            lines.append(
                f"| {link} | {variant} | {row['round_seconds']:.1f} | {row['mod_seconds']:.2f} | {up} | {down} |"
            )
    return "\n".join(lines)


_WAYS = ("up", "down")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--links", nargs="+", choices=LINKS, default=list(LINKS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    found = measure(options.rounds, options.nodes, options.links, options.variants)
    print(json.dumps(found, indent=1))
    print(table(found))
