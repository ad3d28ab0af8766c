"""A server as one file: everything it needs to go on from the last closed round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsparq.compress.state import State
from fedsparq.errors import RunError
from fedsparq.federate.archive import ArchiveError, pack, unpack
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.messages import Receipt
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
        "counted": {client: [receipt.round, receipt.digest] for client, receipt in state.counted.items()},
        "norm_limit": state.norm_limit,
        "downlink": {
            "round": downlink.round,
            "rounds": downlink.state.rounds if downlink.state else 0,
            "held": downlink.held,
        },
    }
    write_safely(path, pack(about, tensors))


def load_server(server: Server, path: Path) -> None:
    """Put a server back to where `save_server` found it."""
    try:
        about, tensors = unpack(path.read_bytes())
    except OSError as error:
        raise RunError(f"the checkpoint {path} cannot be read: {error.strerror or error}") from error
    except ArchiveError as error:
        raise RunError(f"the checkpoint {path} cannot be read: {error}; remove it to start the run anew") from error
    if (about.get("version"), about.get("layout")) != (VERSION, f"{server.layout.digest:016x}"):
        raise RunError(f"the checkpoint {path} is of another version or for another model; start the run anew")
    counted = {int(client): Receipt(*receipt) for client, receipt in about["counted"].items()}
    state = ServerState(_model("model", tensors), tensors["velocity"], about["round"], counted, about["norm_limit"])
    server.restore(state, _downlink(server.downlink, about["downlink"], tensors))


def _downlink(now: Downlink, about: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Downlink:
    """A downlink with the same settings as it is `now`, and the state of the checkpoint."""
    downlink = Downlink(now.layout, now.method, now.seed, now.halve_first)
    if downlink.method is None or "public" not in tensors:
        return downlink
    downlink.public = _model("public", tensors)
    downlink.round = about["round"]
    downlink.changes = {int(k.removeprefix("change.")): v.tobytes() for k, v in tensors.items() if k[:7] == "change."}
    downlink.held = {int(client): number for client, number in about["held"].items()}
    if about["rounds"]:
        residual = downlink.method.init(now.layout).residual
        memory = {k.removeprefix("downlink."): v for k, v in tensors.items() if k.startswith("downlink.")}
        downlink.state = State(now.layout, about["rounds"], residual, memory)
    return downlink


def _model_tensors(name: str, model: Model) -> dict[str, NDArray[np.generic]]:
    tensors: dict[str, NDArray[np.generic]] = {name: model.vector}
    if model.exact is not None:
        tensors |= {f"{name}.buffers": model.exact.buffers, f"{name}.counters": model.exact.counters}
    return tensors


def _model(name: str, tensors: dict[str, NDArray[Any]]) -> Model:
    exact = None
    if f"{name}.buffers" in tensors:
        exact = Exact(tensors[f"{name}.buffers"], tensors[f"{name}.counters"])
    return Model(tensors[name], exact)
