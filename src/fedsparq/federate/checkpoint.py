"""A server as one file: everything it needs to go on from the last closed round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fedsparq.archive import ArchiveError, pack, unpack, write_safely
from fedsparq.errors import RunError, WireError
from fedsparq.federate.downlink import Downlink
from fedsparq.federate.server import Server, ServerState
from fedsparq.federate.state import acknowledgement_of, alike, counted_number, model_arrays, model_of
from fedsparq.layout import Arrays, part_of
from fedsparq.method import Identity
from fedsparq.protocols import State

VERSION = 2
_RESIDUAL = "feedback.residual"
"""The one array of the downlink's state that is not saved: it starts at zero in each round."""


def save_server(server: Server, path: Path, note: str = "") -> None:
    """Write the state of a server between two rounds, and a note of the caller's; when this returns, it is safe."""
    state, downlink = server.state, server.downlink
    tensors = model_arrays("model", state.model)
    tensors |= _prefixed("optimizer", state.optimizer) | _prefixed("aggregator", state.aggregator)
    if downlink.method is not None and downlink.public is not None:
        tensors |= model_arrays("public", downlink.public)
        tensors |= {f"change.{number}": np.frombuffer(blob, np.uint8) for number, blob in downlink.changes.items()}
        if downlink.state is not None:
            own = downlink.state.arrays()
            tensors |= _prefixed("downlink", {name: array for name, array in own.items() if name != _RESIDUAL})
    about = {
        "version": VERSION,
        "layout": f"{server.layout.digest:016x}",
        "method": _identity(server).encode().decode(),
        "server_parts": _server_parts(server),
        "round": state.round,
        "counted": {client: [last.round, last.digest, last.share] for client, last in state.counted.items()},
        "norm_limit": state.norm_limit,
        "note": note,
        "downlink": {"round": downlink.round, "begun": downlink.state is not None, "held": downlink.held},
    }
    write_safely(path, pack(about, tensors), private=True)


def load_server(server: Server, path: Path) -> str:
    """Put a server back to where `save_server` found it; the note that was saved with it."""
    try:
        about, tensors = unpack(path.read_bytes())
    except OSError as error:
        raise RunError(f"the checkpoint {path} cannot be read: {error.strerror or error}") from error
    except ArchiveError as error:
        raise RunError(f"the checkpoint {path} cannot be read: {error}; remove it to start the run anew") from error
    if about.get("version") != VERSION:
        raise RunError(
            f"the checkpoint {path} has format {about.get('version')}, and this version of FedSparQ reads format "
            f"{VERSION}: go on with the version that wrote it, or start the run anew in another folder"
        )
    if about.get("layout") != f"{server.layout.digest:016x}":
        raise RunError(f"the checkpoint {path} is for another model; start the run anew in another folder")
    try:
        return _restore(server, about, tensors, path)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"the checkpoint {path} is not what a server writes: {error}; start the run anew") from None


def _restore(server: Server, about: dict[str, Any], tensors: Arrays, path: Path) -> str:
    _check_method(server, about, path)
    model = model_of("model", tensors, server.layout)
    if model is None:
        raise RunError(f"the checkpoint {path} holds no model; start the run anew")
    if not np.isfinite(model.vector).all():
        raise ValueError("its model is not finite")
    if not about["norm_limit"] >= 0:
        raise ValueError(f"a norm limit of {about['norm_limit']} is not possible")
    method = server.method
    state = ServerState(
        model,
        _part("optimizer", tensors, method.optimizer.init(server.layout)),
        _part("aggregator", tensors, method.aggregator.init(server.layout)),
        counted_number(about["round"]),
        {int(client): acknowledgement_of(last) for client, last in about["counted"].items()},
        about["norm_limit"],
    )
    server.restore(state, _downlink(server.downlink, about["downlink"], tensors))
    return str(about.get("note", ""))


def _check_method(server: Server, about: dict[str, Any], path: Path) -> None:
    try:
        difference = Identity.decode(about["method"].encode()).difference(_identity(server))
    except WireError:
        difference = "a method that cannot be read"
    if difference:
        raise RunError(f"the checkpoint {path} is of another method: now {difference}; go back, or start the run anew")
    for saved, now in zip(about["server_parts"], _server_parts(server), strict=True):
        if saved != now:
            raise RunError(f"the checkpoint {path} is of {saved}, not of {now}: go back to it, or start the run anew")


def _identity(server: Server) -> Identity:
    return server.method.identity or Identity("")


def _server_parts(server: Server) -> list[str]:
    """The kinds of the parts whose states are saved; a method's name says nothing of parts that were exchanged."""
    kinds = type(server.method.aggregator), type(server.method.optimizer)
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]


def _downlink(now: Downlink, about: dict[str, Any], tensors: Arrays) -> Downlink:
    """A downlink with the same settings as it is `now`, and the state of the checkpoint."""
    downlink = Downlink(now.layout, now.method, now.seed, now.halve_first)
    downlink.public = model_of("public", tensors, now.layout)
    if downlink.method is None or downlink.public is None:
        return downlink
    downlink.round = counted_number(about["round"])
    downlink.refresh()
    downlink.changes = {int(number): blob.tobytes() for number, blob in part_of("change", tensors).items()}
    downlink.held = {int(client): counted_number(number) for client, number in about["held"].items()}
    if about["begun"]:
        fresh = downlink.method.init(now.layout)
        expected = {name: array for name, array in fresh.arrays().items() if name != _RESIDUAL}
        arrays = fresh.arrays() | _part("downlink", tensors, expected)
        downlink.state = State.of_arrays(now.layout, arrays, len(fresh.rules))
    return downlink


def _prefixed(part: str, arrays: Arrays) -> Arrays:
    return {f"{part}.{name}": array for name, array in arrays.items()}


def _part(part: str, arrays: Arrays, expected: Arrays) -> Arrays:
    """What of a file's arrays belongs to a part; ValueError unless all are there that it begins with."""
    own = part_of(part, arrays)
    for name, array in expected.items():
        if not alike(name, own[name], array, grows=not array.size):
            raise ValueError(f"{part}.{name} is {own[name].dtype}{list(own[name].shape)}, or not possible")
    return own
