"""What a client sends in a secure sum, and how long a round takes: ours beside Flower's SecAgg+, on one model.

    python benchmarks/secure_sums.py [clients]

SecAgg+ is Flower's own client code, its stages called in order; what a client sends is the length of the serialized
records. All clients make keys and shares; one of them masks, since all send the same number of bytes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord
from flwr.common import ndarrays_to_parameters

from fedsparq import Layout, method
from fedsparq.federate.client import Client, Trained
from fedsparq.federate.masked import MaskedClient, play_masked
from fedsparq.federate.model import Model
from fedsparq.federate.rounds import Delivery, Traffic
from fedsparq.federate.server import Server
from fedsparq.federate.store import MemoryStore
from fedsparq.lab.specs.privacy import PrivacySpec
from fedsparq.methods import resolver

LAYOUT = Layout.of({"fc1.weight": (128, 784), "fc1.bias": (128,), "fc2.weight": (10, 128), "fc2.bias": (10,)})
NEIGHBOURS = 64
flower: Any = import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")


def ours(clients: int, folder: Path) -> dict[str, float]:
    chosen = method("fedsparq-private")
    server = Server(LAYOUT, chosen, Model(np.zeros(LAYOUT.size, np.float32)))
    update = np.random.default_rng(0).laplace(0, 0.01, LAYOUT.size).astype(np.float32)

    def client(number: int) -> MaskedClient:
        own = Client(number, LAYOUT, lambda *_: Trained(update, 10), MemoryStore(), resolver())
        return MaskedClient(own, folder / str(number))

    members = [client(number) for number in range(clients)]
    traffic = Traffic()
    terms = PrivacySpec(secure_sums=True).terms(chosen, LAYOUT, "benchmark", 1, clients)
    inside = 0.0

    def ask(requests: Any) -> Any:
        nonlocal inside
        for number, request in requests.items():
            begun = time.perf_counter()
            answer = members[number].answer(request)
            inside += time.perf_counter() - begun
            yield Delivery(number, answer)

    begun = time.perf_counter()
    outcome = play_masked(server, terms, list(range(clients)), ask, traffic, set())
    whole = time.perf_counter() - begun
    assert len(outcome.counted) == clients
    return {
        "bytes up per client": traffic.up / clients,
        "bytes down per client": traffic.down / clients,
        "seconds per client": inside / clients,
        "seconds of the server": whole - inside,
    }


def secagg_plus(clients: int) -> dict[str, float]:
    shares = min(NEIGHBOURS, clients - 1) + 1
    terms: dict[str, Any] = {"sample_num": clients, "share_num": shares, "threshold": shares // 2 + 1}
    terms |= {"clipping_range": 8.0, "target_range": 4194304, "mod_range": 4294967296, "max_weight": 1000.0}
    sent = [0] * shares
    states = [flower.SecAggPlusState() for _ in range(shares)]  # one client and its neighbours
    spent = 0.0

    def count(number: int, record: dict[str, Any]) -> dict[str, Any]:
        sent[number] += len(ConfigRecord(record).deflate())
        return record

    keys: dict[str, Any] = {}
    for number, state in enumerate(states):
        state.nid = number
        keys[str(number)] = list(count(number, flower._setup(state, ConfigRecord(dict(terms)))).values())
    sealed: dict[int, bytes] = {}
    for number, state in enumerate(states):
        said = count(number, flower._share_keys(state, ConfigRecord(keys)))
        if number:
            sealed[number] = dict(zip(said["dsts"], said["ctxts"], strict=True))[0]
    arrays = [np.zeros(tensor.shape, np.float32) for tensor in LAYOUT.parameters]
    begun = time.perf_counter()
    request = ConfigRecord({"srcs": list(sealed), "ctxts": list(sealed.values())})
    count(0, flower._collect_masked_vectors(states[0], request, 10, ndarrays_to_parameters(arrays)))
    count(0, flower._unmask(states[0], ConfigRecord({"active_nids": list(range(shares)), "dead_nids": []})))
    spent += time.perf_counter() - begun
    return {"bytes up per client": sent[0], "seconds per client": spent}


def measure(clients: int = 100) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        mine = ours(clients, Path(folder))
    theirs = secagg_plus(clients)
    fewer = theirs["bytes up per client"] / mine["bytes up per client"]
    return {
        "parameters": LAYOUT.size,
        "clients": clients,
        "fedsparq-private, secure sums": mine,
        "Flower's SecAgg+": theirs,
        "times fewer bytes": fewer,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
