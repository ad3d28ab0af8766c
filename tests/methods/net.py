"""Digests of all that every method makes: what must not change while the code behind it does.

Two clients and a server, without a network, play five rounds. Updates are multiples of 2^-12: sums of them are exact in
any order. `python tests/methods/net.py` tells what differs, to the last bit; with `--write` it writes the file anew,
which is a change of behaviour and must be a conscious one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import fedsparq
from fedsparq import Layout, Method, Payload, Update
from fedsparq.methods import METHODS
from fedsparq.payload.streams import ZSTD_VERSION
from fedsparq.protocols import ModelAccumulator

FILE = Path(__file__).with_name("net.json")
ROUNDS, CLIENTS = 5, 2
SHARES = (1.0, 0.5)

SMALL = Layout.of({"conv": (16, 8, 3, 3), "bias": (16,), "none": (0,), "fc": (40, 50), "scale": ()})
LARGE = Layout.of({"embedding": (1100, 1000), "bias": (1000,)})
"""More coordinates than one chunk has, and than are coded by context."""

RENAMED: dict[str, str] = {}
"""Arrays that were renamed since the file was written: the name in the file to today's. Reviewed by hand."""

LAST_BITS, A_CHOICE = 0.01, 0.2
"""How far norms may differ: because of last bits, or because last bits made a random level or a tie fall otherwise."""
LOOSE = {
    "demo": LAST_BITS,  # products of float64 matrices
    "drive": LAST_BITS,  # a scale from sums that are added in the CPU's order
    "eden": LAST_BITS,  # as drive
    "fedsparq-adaptive rounding=nearest drift=left-out": LAST_BITS,  # a drift from sums in the CPU's order
    "fedsparq-private": A_CHOICE,  # a step from sums in the CPU's order decides how each value is rounded at random
    "fetchsgd": A_CHOICE,  # sketches are added up in the CPU's order, and the largest estimates are near ties
    "powersgd": LAST_BITS,  # products of float64 matrices
    "uniform": LAST_BITS,  # a step from sums that are added in the CPU's order
}
"""Cases, or methods, that differ between kinds of CPU: only sizes and norms are compared, with this tolerance."""
LOOSE_ARRAYS = ("state.compressor.efficiency", "state.compressor.lagrange")
"""Arrays that come from logarithms and divisions in any case: last bits differ between kinds of CPU."""


class Case(NamedTuple):
    """A method with options on a model."""

    method: str
    options: Mapping[str, Any]
    layout: Layout

    @property
    def name(self) -> str:
        options = "".join(f" {key}={value}" for key, value in self.options.items())
        return f"{self.method}{options}{' large' if self.layout is LARGE else ''}"

    def tolerance(self, array: str) -> float:
        """How far the size and norm of an array may be from the file's; 0: its digest must be the same."""
        of_case = LOOSE.get(self.name, LOOSE.get(self.method, 0.0))
        return of_case or (LAST_BITS if array in LOOSE_ARRAYS else 0.0)


VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("fedsparq", {"rounding": "stochastic"}),
    ("fedsparq", {"scope": "global", "residual": "kept-only"}),
    ("fedsparq", {"residual": "off"}),
    ("fedsparq-adaptive", {"rounding": "nearest", "drift": "left-out"}),
    ("fedsparq-adaptive", {"bits": 0.1, "stale": "let-go"}),
    ("fedsparq-adaptive", {"budget": "300 B"}),
    ("stc", {"scope": "layer"}),
    ("uniform", {"scope": "layer"}),
    ("float16", {"rounding": "stochastic"}),
    ("qsgd", {"norm": "max", "bucket": 100}),
    ("dgc", {"clip_norm": 0.5, "warmup": 2}),
    ("drive", {"scale": "least-error"}),
    ("fedfq", {"solver": "anneal"}),
    ("ef21", {"new": 1.0}),
)
CASES = (
    *(Case(name, {}, SMALL) for name in METHODS),
    *(Case(name, options, SMALL) for name, options in VARIANTS),
    *(Case(name, {}, LARGE) for name in ("fedsparq", "fedsparq-adaptive", "fedpaq", "top-10", "random-10")),
)

Entry = list[Any]
"""An array of a round: its digest, and its size and norm where the digest depends on the CPU."""


def plays(case: Case) -> dict[str, Any]:
    """What the case makes: its identity, and each array of each round by the share that was acknowledged."""
    method = fedsparq.method(case.method, **case.options)
    assert method.identity is not None
    identity = [method.identity.name, method.identity.version, dict(sorted(method.identity.options.items()))]
    shares = SHARES if case.layout is SMALL else SHARES[1:]
    return {"identity": identity, "rounds": {str(share): _play(method, case, share) for share in shares}}


def _play(method: Method, case: Case, share: float) -> dict[str, list[Entry]]:
    found = dict[str, list[Entry]]()
    for arrays in _rounds(method, case.layout, share):
        for name, values in arrays.items():
            more = _size_and_norm(values) if case.tolerance(name) else []
            found.setdefault(name, []).append([_digest(values), *more])
    return found


def _rounds(method: Method, layout: Layout, share: float) -> Iterator[dict[str, list[NDArray[Any]]]]:
    """After each round the arrays by name, those of all clients together.

    All calls of the method stand here: this is what to change when its interface does.
    """
    model, server, optimizer = _update(layout, 0), method.aggregator.init(layout), method.optimizer.init(layout)
    states = [method.init(layout) for _ in range(CLIENTS)]
    for number in range(1, ROUNDS + 1):
        found, payloads = dict[str, list[NDArray[Any]]](), list[Payload]()
        plan, accumulator = method.plan(layout, server), method.aggregator.open(layout, server)
        if isinstance(accumulator, ModelAccumulator):
            accumulator.begin(model, None, number)
        for client, before in enumerate(states):
            state = method.begin(before, number)
            start = method.start(model, state)
            update, state = method.end(_update(layout, number, client), state)
            rng = np.random.default_rng([number, client])
            payload, states[client] = method.compress(update, state.with_plan(plan), rng)
            blob = fedsparq.encode(payload)
            payloads.append(fedsparq.decode(blob, layout))
            assert payloads[-1].dense().tobytes() == payload.dense().tobytes()
            assert all(isinstance(values, method.traits.value_kinds) for values in payloads[-1].values)
            accumulator.add(Update(client, payloads[-1], client + 1))
            _collect(found, "message", {"bytes": np.frombuffer(blob, np.uint8)})
            _collect(found, "message", {"indices": payload.indices, "values": payload.dense()[payload.indices]})
            _collect(found, "client", {"start": start, "update": update})
        aggregate = accumulator.close()
        before_step, server = model, aggregate.state
        if aggregate.mean is not None:
            model, optimizer = method.optimizer.step(model, aggregate.mean, optimizer)
            _collect(found, "server", {"mean": aggregate.mean})
        change = model - before_step
        for client, payload in enumerate(payloads):
            if method.traits.needs_acks or (method.traits.conserves_mass and share < 1):
                states[client] = method.acknowledge(states[client], payload, share, change, 1, 0.125)
            _collect(found, "state", states[client].arrays())
        _collect(found, "server", {"model": model, "shares": np.array(list(aggregate.shares.values()))})
        _collect(found, "optimizer", optimizer)
        _collect(found, "aggregator", server)
        yield found


def _collect(found: dict[str, list[NDArray[Any]]], part: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """What the server says of a round is no state: it is left out."""
    for name, array in arrays.items():
        if ".plan." not in f".{name}":
            found.setdefault(f"{part}.{name}", []).append(np.asarray(array))


def _update(layout: Layout, number: int, client: int = -1) -> NDArray[np.float32]:
    """Multiples of 2^-12 below 2, most of them small; a part of them is the client's in each round."""
    parts = np.zeros(layout.size, np.int64)
    for seed in ([number, client + 1], [99, client + 1]):
        draws = np.random.default_rng(seed).integers(-20, 21, size=(3, layout.size))
        parts += draws.prod(axis=0) // 4
    return (parts * 2.0**-12).astype(np.float32)


def _digest(values: list[NDArray[Any]]) -> str:
    """Of numbers, types and shapes."""
    digest = hashlib.sha256()
    for array in values:
        digest.update(f"{array.dtype.str} {array.shape} ".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:10]


def _size_and_norm(values: list[NDArray[Any]]) -> list[float]:
    flat = np.concatenate([array.reshape(-1).astype(np.float64) for array in values])
    return [flat.size, float(f"{np.sqrt(np.square(flat).sum()):.6g}")]


def written() -> dict[str, Any]:
    """What the file holds, with today's names."""
    data: dict[str, Any] = json.loads(FILE.read_text())
    for case in data["cases"].values():
        for share, arrays in case["rounds"].items():
            case["rounds"][share] = {RENAMED.get(name, name): found for name, found in arrays.items()}
    return data


def _write() -> None:
    cases = {case.name: plays(case) for case in CASES}
    lines = [f'{{"zstd": {json.dumps(list(ZSTD_VERSION))}, "cases": {{']
    for at, (name, case) in enumerate(cases.items()):
        lines.append(f'{json.dumps(name)}: {{"identity": {json.dumps(case["identity"])}, "rounds": {{')
        for number, (share, arrays) in enumerate(case["rounds"].items()):
            body = ",\n".join(f"  {json.dumps(key)}: {json.dumps(found)}" for key, found in arrays.items())
            lines.append(f'"{share}": {{\n{body}\n}}' + ("," if number + 1 < len(case["rounds"]) else ""))
        lines.append("}}" + ("," if at + 1 < len(cases) else ""))
    FILE.write_text("\n".join([*lines, "}}", ""]))


def _compare() -> None:
    before = written()["cases"]
    for case in CASES:
        for share, arrays in plays(case)["rounds"].items():
            old = before[case.name]["rounds"][share]
            differ = [name for name in sorted({*arrays, *old}) if arrays.get(name) != old.get(name)]
            if differ:
                print(f"{case.name}, share {share}: {', '.join(differ)}")


if __name__ == "__main__":
    _write() if sys.argv[1:] == ["--write"] else _compare()
