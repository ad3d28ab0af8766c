"""Makes src/fedsparq/lab/tasks/mnist_mini.npz: 10,000 + 2,000 real MNIST images, equally many of each digit.

Needs the full set (see `fedsparq datasets`). Run from anywhere:  python scripts/make_mnist_mini.py
The choice and the order are fixed by the seed, and the file comes out the same each time.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedsparq.lab.tasks import load

SEED = 2511
PER_DIGIT = {"train": 1_000, "test": 200}
TARGET = Path(__file__).resolve().parents[1] / "src" / "fedsparq" / "tasks" / "mnist_mini.npz"


def choose(labels: NDArray[np.int64], per_digit: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """The same number of each digit, in random order."""
    chosen = [rng.choice(np.flatnonzero(labels == digit), per_digit, replace=False) for digit in range(10)]
    return rng.permutation(np.concatenate(chosen))


def save(path: Path, arrays: dict[str, NDArray[np.uint8]]) -> None:
    """An .npz as small as deflate makes it, without the time of writing in it."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, array in arrays.items():
            member = io.BytesIO()
            np.save(member, array, allow_pickle=False)
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, member.getvalue(), compresslevel=9)


def main() -> None:
    full = load.load("mnist")
    rng = np.random.default_rng(SEED)
    arrays: dict[str, NDArray[np.uint8]] = {}
    for name, (images, labels) in (("train", full.train), ("test", full.test)):
        chosen = choose(labels, PER_DIGIT[name], rng)
        arrays[f"{name}_images"] = np.ascontiguousarray(images[chosen, 0])
        arrays[f"{name}_labels"] = labels[chosen].astype(np.uint8)
    save(TARGET, arrays)
    print(f"{TARGET}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
