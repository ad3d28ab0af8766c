"""How time, memory and traffic of a round grow with parameters, clients and the share that is kept.

For each size of model, on one thread: what a client does (compress and encode) and what the server does for each
client (decode and add), in nanoseconds a parameter, and bytes a parameter. Then whole rounds of a server that asks many
clients of one small model: the time it takes for each, and its memory. Larger models are in billion.py.

    python benchmarks/growth.py
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from codec import laplace

import fedsparq
from fedsparq import Layout

SIZES = (10**5, 10**6, 10**7, 10**8)
CLIENTS = (100, 1000, 10_000)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {}),
    "10 %": ("fedsparq", {"multiplier": float(-np.log(0.1))}),
    "1 %": ("fedsparq", {"multiplier": float(-np.log(0.01))}),
    "adaptive": ("fedsparq-adaptive", {"bits": 0.3}),
}
_LAYER = 10**6

_ROUND = """
import json, sys, time
import numpy as np
import fedsparq
from fedsparq.federate.messages import Reply
clients, layout = int(sys.argv[1]), fedsparq.Layout.of({"fc1": (128, 784), "fc2": (10, 128)})
method = fedsparq.method("fedsparq", multiplier=float(-np.log(0.1)))
update = np.random.default_rng(0).laplace(size=layout.size).astype(np.float32)
blob = fedsparq.encode(method.compress(update, method.init(layout), np.random.default_rng(0))[0])
server = fedsparq.Server(layout, method, fedsparq.Model(np.zeros(layout.size, np.float32)))
seconds = []
for number in range(1, 4):
    reply = Reply(number, method.identity.digest, 10, blob).encode()
    start = time.perf_counter()
    server.open_round(range(clients))
    for client in range(clients):
        server.broadcast(client)
        assert server.receive(client, reply).taken
    server.close_round()
    seconds.append(time.perf_counter() - start)
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([min(seconds), int(peak.split()[1]) / 1024, len(blob)]))
"""


def measure() -> dict[str, Any]:
    return {f"{size:.0e}".replace("e+0", "e"): _model(size) for size in SIZES} | {
        f"{clients:,} clients": _clients(clients) for clients in CLIENTS
    }


def _model(size: int) -> dict[str, Any]:
    """Layers of a million coordinates, or one."""
    layers = max(1, size // _LAYER)
    layout = Layout.of({f"layer{i}": (size // layers,) for i in range(layers)})
    update, result = laplace(layout, np.random.default_rng(0)), dict[str, Any]()
    repetitions = max(3, min(50, 10**8 // size))
    for label, (name, options) in METHODS.items():
        method, total = fedsparq.method(name, **options), np.zeros(layout.size, np.float32)
        state = method.init(layout)
        for number in range(3):  # the adaptive method looks closer at messages of the first rounds
            state = method.compress(update, state, np.random.default_rng(number))[1]

        def send(method: fedsparq.Method = method, state: fedsparq.State = state) -> bytes:
            return fedsparq.encode(method.compress(update, state, np.random.default_rng(1), threads=1)[0], threads=1)

        blob = send()

        def receive(blob: bytes = blob, total: np.ndarray[Any, Any] = total) -> None:
            fedsparq.decode(blob, layout).add_to(total, threads=1)

        result[label] = {
            "client ns a parameter": 1e9 * _best(send, repetitions) / size,
            "server ns a parameter": 1e9 * _best(receive, repetitions) / size,
            "bytes a parameter": len(blob) / size,
        }
    return result


def _clients(clients: int) -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", _ROUND, str(clients)], capture_output=True, text=True, check=True)
    seconds, peak, size = json.loads(done.stdout)
    return {"microseconds a client": 1e6 * seconds / clients, "peak memory MB": peak, "bytes a reply": size}


def _best(step: Callable[[], object], repetitions: int) -> float:
    taken = []
    for _ in range(repetitions):
        start = time.perf_counter()
        step()
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    print(json.dumps(measure(), indent=2))
