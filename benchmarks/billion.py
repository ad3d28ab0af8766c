"""An update of a billion parameters on one machine: time for each, and memory that does not grow with it.

200 layers of equal size in a safetensors file, compressed by `fedsparq` (10 % kept) with its residual, and added to a
model, each in a process of its own; two rounds, so that there is a residual. Peak memory is anonymous memory, looked at
every 10 ms: neither the files nor what the system keeps of them in its cache. Reported are the best of some
repetitions, on one thread and on all.

    python benchmarks/billion.py                 1e7 and 1e9 parameters; needs 25 GB of disk
    python benchmarks/billion.py 1e7 1e8
    python benchmarks/billion.py --kill 1e9      SIGKILL at ten moments instead
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedsparq.cli import main
from fedsparq.large import Message, SafetensorsFile, apply, compress

LAYERS = 200
MULTIPLIER = float(-np.log(0.1))
"""|x| of a Laplace layer is exponential: a tenth reaches this many times its mean."""
SIZES = (10**7, 10**9)
_POLL = 0.01


def measure(sizes: tuple[int, ...] = SIZES) -> dict[str, Any]:
    cases = {}
    for size in sizes:
        with _folder(size) as folder:
            cases[f"{size:.0e}".replace("e+0", "e")] = _measure(size, folder)
    return cases


def kill(size: int) -> dict[str, Any]:
    """SIGKILL at ten moments of a round. Each must leave the old residual and no message, or, where the round was made
    before the signal came, a message and a residual that together are what there was; it is then put back."""
    with _folder(size) as folder:
        _write_update(folder / "update.safetensors", size, 1)
        _round(folder, "first", 1)
        _remember(folder)
        begun = time.perf_counter()
        _started(_compress(folder, "second")).wait()
        seconds = time.perf_counter() - begun
        worst, killed, made = _made_and_put_back(folder), 0, 0
        for moment in np.linspace(0.05, 0.95, 10):
            old = (folder / "residual.safetensors").stat().st_ino
            process = _started(_compress(folder, "second"))
            try:
                process.wait(moment * seconds)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
            killed += process.wait() == -signal.SIGKILL
            if (folder / "residual.safetensors").stat().st_ino == old:
                assert not (folder / "second.fsq").exists()
            else:
                worst, made = max(worst, _made_and_put_back(folder)), made + 1
        worst = max(worst, _made_and_put_back(folder))
        return {"parameters": size, "killed": killed, "made before the signal": made, "largest difference": worst}


def _made_and_put_back(folder: Path) -> float:
    """A round, made now where it was not yet; what of it was lost; and its message put back into the residual."""
    if not (folder / "second.fsq").exists():
        _started(_compress(folder, "second")).wait()
    lost = _difference(folder)
    restored = _started(["restore", str(folder / "second.fsq"), "--residual", str(folder / "residual.safetensors")])
    assert restored.wait() == 0
    (folder / "second.fsq").unlink(missing_ok=True)
    _remember(folder)
    return lost


def _remember(folder: Path) -> None:
    shutil.copy(folder / "residual.safetensors", folder / "before.safetensors")


def _started(words: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "fedsparq", *words], stdout=subprocess.DEVNULL)


def _difference(folder: Path) -> float:
    """By how much update + residual before is not message + residual after, relative to the largest, layer by layer."""
    before, after = (SafetensorsFile(folder / f"{name}.safetensors") for name in ("before", "residual"))
    update, worst = SafetensorsFile(folder / "update.safetensors"), 0.0
    for piece, payload in Message(folder / "second.fsq").payloads(threads=1):
        sent, at = payload.dense(), 0
        for part in piece.parts:
            where = part.name, part.start, part.stop
            owed = update.part(*where).astype(np.float64) + before.part(*where)
            left = owed - sent[at : at + part.size] - after.part(*where)
            worst = max(worst, float(np.abs(left).max(initial=0) / np.abs(owed).max(initial=1e-30)))
            at += part.size
    return worst


def _measure(size: int, folder: Path) -> dict[str, Any]:
    _write_update(folder / "update.safetensors", size, 1)
    repetitions = 5 if size < 10**8 else 1
    result: dict[str, Any] = {"parameters": size, "update bytes": (folder / "update.safetensors").stat().st_size}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        (folder / "residual.safetensors").unlink(missing_ok=True)
        _timed(_compress(folder, "first", threads))
        (folder / "first.fsq").unlink()
        taken = []
        for _ in range(repetitions):
            (folder / "second.fsq").unlink(missing_ok=True)
            taken.append(_timed(_compress(folder, "second", threads)))
        model, new = folder / "update.safetensors", folder / "new.safetensors"
        words = ["apply", str(model), str(folder / "second.fsq"), "-o", str(new), "--threads", str(threads)]
        added = [_timed(words) for _ in range(repetitions)]
        new.unlink()
        result[f"{threads} threads"] = {
            "compress ns a parameter": 1e9 * min(seconds for seconds, _ in taken) / size,
            "compress peak MB": max(peak for _, peak in taken) / 1e6,
            "apply ns a parameter": 1e9 * min(seconds for seconds, _ in added) / size,
            "apply peak MB": max(peak for _, peak in added) / 1e6,
            "message bytes": (folder / "second.fsq").stat().st_size,
        }
    return result


def _round(folder: Path, name: str, threads: int) -> None:
    compress(
        folder / "update.safetensors",
        folder / "residual.safetensors",
        folder / f"{name}.fsq",
        options={"multiplier": MULTIPLIER},
        threads=threads,
    )


def _compress(folder: Path, name: str, threads: int = 1) -> list[str]:
    files = [str(folder / "update.safetensors"), "--residual", str(folder / "residual.safetensors")]
    out = ["-o", str(folder / f"{name}.fsq"), "--option", f"multiplier={MULTIPLIER}", "--threads", str(threads)]
    return ["compress", *files, *out]


def _timed(words: list[str]) -> tuple[float, int]:
    """Seconds of the command, without the start of Python and the loading of compiled code, and its peak anonymous
    memory, with these."""
    os.sync()
    process = subprocess.Popen([sys.executable, __file__, "--worker", *words], stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _anonymous(process.pid))
        time.sleep(_POLL)
    assert process.returncode == 0
    assert process.stdout is not None
    return float(process.stdout.read().split()[-1]), peak


def _work(words: list[str]) -> None:
    """A command in this process, after a small one that warms it up."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder)
        _write_update(small / "update.safetensors", 10 * LAYERS, 0)
        for name in ("first", "second"):
            _round(small, name, 1)
        apply(small / "update.safetensors", [small / "first.fsq"], small / "new.safetensors")
    sys.argv = ["fedsparq", *words]
    start = time.perf_counter()
    with suppress(SystemExit):
        main()
    print(time.perf_counter() - start)


def _anonymous(process: int) -> int:
    try:
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


def _write_update(path: Path, size: int, seed: int) -> None:
    """Laplace layers that differ in scale; made from one of a million coordinates, shifted for each."""
    rng, each = np.random.default_rng(seed), size // LAYERS
    base = rng.laplace(size=min(each, 10**6) + LAYERS).astype(np.float32)
    header = {
        f"layer{i:03}.weight": {"dtype": "F32", "shape": [each], "data_offsets": [4 * each * i, 4 * each * (i + 1)]}
        for i in range(LAYERS)
    }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for i in range(LAYERS):
            scale = np.float32(10 ** rng.uniform(-4, -2))
            file.write((scale * np.resize(base[i:], each)).data)


@contextmanager
def _folder(size: int) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"fedsparq-{size}-", dir=os.environ.get("FEDSPARQ_SCRATCH")))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["--worker"]:
        _work(words[1:])
    elif words[:1] == ["--kill"]:
        print(json.dumps(kill(int(float(words[1]))), indent=2))
    else:
        print(json.dumps(measure(tuple(int(float(word)) for word in words) or SIZES), indent=2))
