"""Everything that reads bytes of others, each as a target: sound messages to start from, how checksums are forged, and
a check that takes a message and says whether it was taken. A check fails on anything but a refusal in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import file_targets as files
import flower_targets as flower
import forging
import node_targets as nodes
import numpy as np
import sound_messages as sound
import sum_targets as sums
from sound_messages import LAYOUT, SERVED, SERVER, STATEFUL, broadcasts, new_client, new_server

from fedsparq.errors import FedSparQError, RunError, WireError
from fedsparq.federate.checkpoint import load_server
from fedsparq.federate.messages import Reply
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState, StateError
from fedsparq.federate.store import MemoryStore
from fedsparq.federate.validation import ABSURD
from fedsparq.payload import Payload
from fedsparq.secure import messages as secure
from fedsparq.wire import decode
from fedsparq.wire.inspect import inspect

BEFORE = SERVER.state.model.vector.tobytes(), SERVER.state.model.buffers


def check_blob(message: bytes) -> bool:
    try:
        payload = decode(message, LAYOUT)
    except WireError:
        return False
    check_payload(payload)
    inspect(message, LAYOUT)
    return True


def check_payload(payload: Payload) -> None:
    """What was taken is sound."""
    indices, dense = payload.indices.astype(np.int64), payload.dense()
    assert payload.kept == indices.size <= LAYOUT.size
    assert (np.diff(indices) > 0).all()
    assert indices.size == 0 or 0 <= indices[0] <= indices[-1] < LAYOUT.size
    assert np.isfinite(dense).all()
    assert payload.buffers is None or np.isfinite(payload.buffers.statistics).all()


def check_reply(message: bytes) -> bool:
    """To a server: the model stays as it was unless a round is closed, and this one never is."""
    verdict = SERVER.receive(0, message)
    if verdict.taken:
        reply = Reply.decode(message)
        payload = decode(reply.blob, LAYOUT)
        check_payload(payload)
        assert np.abs(payload.dense()).max() <= ABSURD
        assert payload.buffers is not None
        assert np.abs(payload.buffers.statistics).max() <= ABSURD
        assert reply.examples > 0
        SERVER.open_round([0, 1])
    return verdict.taken


def check_server_unchanged() -> None:
    assert SERVER.state.model.vector.tobytes() == BEFORE[0]
    assert SERVER.state.model.buffers is BEFORE[1]
    assert SERVER.state.counted == {}


def check_broadcast(message: bytes) -> bool:
    """To a client: what is refused leaves its state alone; what is taken keeps all numbers finite."""
    store = sound.store_after_two_rounds()
    before = store.states[0]
    try:
        answer = new_client(store).answer(message)
    except FedSparQError:
        assert store.states[0] is before
        return False
    if store.states[0] is before:
        return False
    residual = store.states[0].compression.residual
    assert residual is None or np.isfinite(residual).all()
    assert answer.message is not None
    return True


def check_state(data: bytes) -> bool:
    """A client's file: set aside in words, or a state from which the client goes on to a sound reply."""
    try:
        state = ClientState.decode(data, LAYOUT)
    except StateError:
        return False
    store, name = MemoryStore({0: state}), state.method.name
    try:
        with np.errstate(all="ignore"):
            answer = new_client(store).answer(sound.third_broadcast(name if name in STATEFUL else STATEFUL[0]))
    except FedSparQError:
        return False
    if store.states[0] is not state and answer.message:
        check_payload(decode(Reply.decode(answer.message).blob, LAYOUT))
    return not any("left aside" in remark for remark in answer.remarks)


def check_checkpoint(data: bytes) -> bool:
    """The server's file: an error in words and a server as it was, or a server that plays another round."""
    path, made = sound.scratch() / "forged", [new_server(served) for served in SERVED]
    path.write_bytes(data)
    for server in made:
        before = server.state
        try:
            load_server(server, path)
        except RunError:
            assert server.state is before
            continue
        try:
            with np.errstate(all="ignore"):
                server.open_round([0, 1])
                server.broadcast(0)
                server.receive(0, sound.reply_to(server))
                server.close_round()
        except FedSparQError:
            return False
        _check_model(server.state.model)
        return True
    return False


def _check_model(model: Model) -> None:
    assert model.vector.dtype == np.float32
    assert model.vector.shape == (LAYOUT.size,)


def check_secure(message: bytes) -> bool:
    """A message of a secure sum: taken only if it is, byte for byte, what its content is written as."""
    kinds = {kind.kind: kind for kind in vars(secure).values() if hasattr(kind, "decode") and hasattr(kind, "kind")}
    try:
        read = kinds[secure.kind_of(message)].decode(message)
    except (FedSparQError, KeyError):
        return False
    assert read.encode() == message
    return True


@dataclass(frozen=True)
class Target:
    """One reader of bytes."""

    seeds: Callable[[], Sequence[bytes]]
    forge: Callable[[bytes], bytes]
    holds: Callable[[bytes], bool]
    """Whether checksum and header are right."""
    check: Callable[[bytes], bool]

    @property
    def is_file(self) -> bool:
        """Its facts and arrays are tampered with one by one; other kinds are mutated byte by byte before forging."""
        return self.forge is forging.forge_archive


TARGETS = {
    "update": Target(sound.blobs, forging.forge_blob, forging.blob_holds, check_blob),
    "reply": Target(sound.replies, forging.forge_reply, forging.reply_holds, check_reply),
    "broadcast": Target(broadcasts, forging.forge_broadcast, forging.broadcast_holds, check_broadcast),
    "acknowledgement": Target(broadcasts, forging.forge_acknowledgement, forging.broadcast_holds, check_broadcast),
    "client-state": Target(sound.states, forging.forge_archive, forging.archive_holds, check_state),
    "checkpoint": Target(sound.checkpoints, forging.forge_archive, forging.archive_holds, check_checkpoint),
    "secure-sum": Target(sound.secure_messages, forging.forge_secure, forging.secure_holds, check_secure),
    "flower-header": Target(flower.headers, flower.forge_header, flower.header_holds, flower.check_header),
    "flower-array": Target(flower.arrays, flower.forge_array, flower.array_holds, flower.check_array),
    "flower-beside": Target(flower.besides, flower.forge_beside, flower.beside_holds, flower.check_beside),
    "flower-answer": Target(nodes.seeds, files.unforged, nodes.always, nodes.check_answer),
    "flower-checkpoint": Target(
        files.flower_checkpoints, forging.forge_archive, forging.archive_holds, files.check_flower_checkpoint
    ),
    "deploy-answer": Target(nodes.seeds, files.unforged, nodes.always, nodes.check_deployed),
    "flower-extra": Target(nodes.extras, files.unforged, nodes.always, nodes.check_extra),
    "held-model": Target(files.held_models, forging.forge_archive, forging.archive_holds, files.check_held),
    "secrets": Target(files.secrets, forging.forge_archive, forging.archive_holds, files.check_secrets),
    "masked-request": Target(sums.requests, sums.forge_request, sums.request_holds, sums.check_request),
    "secure-conversation": Target(sums.seeds, files.unforged, nodes.always, sums.check_sum),
    "stream": Target(files.streams, files.forge_stream, files.stream_holds, files.check_stream),
    "residual": Target(files.residuals, files.unforged, nodes.always, files.check_residual),
    "run-folder": Target(files.run_files, files.unforged, nodes.always, files.check_run_file),
}
