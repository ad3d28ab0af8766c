"""A server as one file: everything it needs to go on from the last closed round."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedsparq.compress.state import State
from fedsparq.errors import RunError
from fedsparq.federate.model import Model
from fedsparq.federate.server import Server, ServerState
from fedsparq.federate.store import write_safely
from fedsparq.layout import Exact

VERSION = 1


def save_server(server: Server, path: Path) -> None:
    """Write the state of a server between two rounds; when this returns, it is safe."""
    state, downlink = server.state, server.downlink
    tensors: dict[str, NDArray[np.generic]] = {"velocity": state.velocity, **_model_tensors("model", state.model)}
    if downlink.method is not None and downlink.public is not None:
        tensors |= _model_tensors("public", downlink.public)
        tensors |= {f"change.{number}": np.frombuffer(blob, np.uint8) for number, blob in downlink.changes.items()}
        if downlink.state is not None:
            tensors |= {f"downlink.{name}": array for name, array in downlink.state.memory.items()}
    about = {
        "version": VERSION,
        "layout": f"{server.layout.digest:016x}",
        "round": state.round,
        "counted": state.counted,
        "downlink": {
            "round": downlink.round,
            "rounds": downlink.state.rounds if downlink.state else 0,
            "held": downlink.held,
        },
    }
    write_safely(path, save_tensors(tensors, {"fedsparq": json.dumps(about)}))


def load_server(server: Server, path: Path) -> None:
    """Put a server back to where `save_server` found it."""
    layout = server.layout
    try:
        data = path.read_bytes()
        about = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["fedsparq"])
        tensors = load_tensors(data)
        if (about["version"], about["layout"]) != (VERSION, f"{layout.digest:016x}"):
            raise RunError(f"the checkpoint {path} is of another version or for another model; start the run anew")
        counted = {int(client): int(number) for client, number in about["counted"].items()}
        server.state = ServerState(_model("model", tensors), tensors["velocity"], int(about["round"]), counted)
        _load_downlink(server, about["downlink"], tensors)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the checkpoint {path} cannot be read ({error}); remove it to start the run anew") from error


def _load_downlink(server: Server, about: dict[str, object], tensors: dict[str, NDArray[np.generic]]) -> None:
    downlink = server.downlink
    if downlink.method is None or "public" not in tensors:
        return
    downlink.public = _model("public", tensors)
    downlink.round = int(str(about["round"]))
    downlink.changes = {
        int(k.removeprefix("change.")): v.tobytes() for k, v in tensors.items() if k.startswith("change.")
    }
    held = about["held"]
    downlink.held = {int(client): int(number) for client, number in held.items()} if isinstance(held, dict) else {}
    start = downlink.method.init(server.layout)
    memory = {
        name: tensors[f"downlink.{name}"].astype(np.float64) for name in start.memory if f"downlink.{name}" in tensors
    }
    if downlink.changes:
        downlink.state = State(server.layout, int(str(about["rounds"])), start.residual, memory)


def _model_tensors(name: str, model: Model) -> dict[str, NDArray[np.generic]]:
    tensors: dict[str, NDArray[np.generic]] = {name: model.vector}
    if model.exact is not None:
        tensors |= {f"{name}.buffers": model.exact.buffers, f"{name}.counters": model.exact.counters}
    return tensors


def _model(name: str, tensors: dict[str, NDArray[np.generic]]) -> Model:
    exact = None
    if f"{name}.buffers" in tensors:
        exact = Exact(tensors[f"{name}.buffers"].astype(np.float32), tensors[f"{name}.counters"].astype(np.int64))
    return Model(tensors[name].astype(np.float32), exact)
