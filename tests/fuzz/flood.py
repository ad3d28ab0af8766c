"""A program: hostile messages for one reader of foreign bytes, in a process whose time and memory are limited.

    python flood.py TARGET=COUNT... SEED FILE

It prints a line for each target: how many messages `passed` checksum and header, how many were `taken`, and whatever
was raised that is no refusal. A message that takes more than some seconds of the processor ends it by a signal; which
it was is in the file named last.
"""

from __future__ import annotations

import json
import logging
import resource
import signal
import sys
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from mutations import hostile
from targets import TARGETS, check_server_unchanged

SECONDS = 5.0
"""Of the processor's time, for one message: a hang, not a slow machine."""
MEMORY = 3 << 30
"""Beyond what a process has before it reads anything: the models are of some kilobytes."""


def main(name: str, count: int, seed: int, file: Path) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    target, rng, found, raised = TARGETS[name], np.random.default_rng([seed, len(name)]), Counter[str](), set[str]()
    seeds = target.seeds()
    for message in seeds:
        target.check(message)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, resource.RLIM_INFINITY))
    for _ in range(count):
        message = hostile(target, seeds, rng)
        file.write_bytes(message)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found["taken"] += target.check(message)
        except Exception as error:
            found["raised"] += 1
            raised.add(f"{type(error).__name__}: {error} {message.hex()[:200]}"[:400])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        found["passed"] += target.holds(message)
    check_server_unchanged()
    print(json.dumps({"target": name, "messages": count, **found, "errors": sorted(raised)[:9]}), flush=True)


if __name__ == "__main__":
    *asked, seed, file = sys.argv[1:]
    for each in asked:
        name, count = each.split("=")
        main(name, int(count), int(seed), Path(file))
