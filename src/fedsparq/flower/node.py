"""One message on a node: the app is called with plain arrays, and what it learned leaves compressed."""

from __future__ import annotations

import gc
import math
from dataclasses import dataclass, field, replace
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.supercore import log

from fedsparq.engines.blobs import wrap
from fedsparq.errors import WireError
from fedsparq.federate.acknowledge import Resolve, acknowledge
from fedsparq.federate.messages import FullWanted, Reply
from fedsparq.federate.model import Model
from fedsparq.federate.norm_clip import clip_norm
from fedsparq.federate.state import ClientState
from fedsparq.flower.app import evaluates_with
from fedsparq.flower.attachment import attached, attachment
from fedsparq.flower.blobs import Beside, with_beside
from fedsparq.flower.given import Given, difference, given_by, span_of, template_of
from fedsparq.flower.header import KEY, Header
from fedsparq.flower.privacy import clip, clip_of, is_noisy
from fedsparq.flower.records import exact_of, examples, only_arrays, same, to_record
from fedsparq.flower.stores import Held, NodeStore, store_for
from fedsparq.method import Method
from fedsparq.protocols import ClientRule
from fedsparq.wire import encode

BEHIND = "fedsparq behind: "
"""How an error begins that says which round a node has answered already."""

_NUMBERING = "numbering"
"""The array of a state that says which numbering its round is of."""

LARGE = 1 << 25
"""From so many parameters on, what the app left behind is collected: PyTorch's optimizers refer to themselves, and
their moments, twice the model's size, would stay while it is compressed."""

_MOST_EXAMPLES = 2**32 - 1


class AppFailedError(Exception):
    """The app answered with an error of its own, or with what cannot be compressed: its answer goes as it is."""

    def __init__(self, reply: Message) -> None:
        super().__init__()
        self.reply = reply


@dataclass
class Turn:
    """The work on one message."""

    message: Message
    content: RecordDict
    context: Context
    call_next: ClientAppCallable
    header: Header
    method: Method
    resolve: Resolve
    folder: Path | None
    seed: int
    mod: Any
    remarks: list[str] = field(default_factory=list)

    def answer(self) -> Message:
        header = self.header
        channel = header.broadcast.layout_digest
        store = store_for(self.context, header.session, self.folder, header.federation, channel)
        with store.locked():
            if self.message.metadata.message_type.startswith(MessageType.TRAIN):
                return self._train(store)
            return self._evaluate(store)

    def _evaluate(self, store: NodeStore) -> Message:
        key, record = only_arrays(self.content)
        given = given_by(record, self.header, store)
        if given is None:
            return self._whole_wanted(key)
        self._hold(given, store)
        reply = self._called(key, given.record or to_record(given.template, given.vector, given.exact))
        content = RecordDict({**reply.content, KEY: ConfigRecord({"version": self.header.version})})
        reply.content = content
        return reply

    def _train(self, store: NodeStore) -> Message:
        key, record = only_arrays(self.content)
        broadcast = self.header.broadcast
        template = template_of(record, self.header)
        layout = template.layout
        if broadcast.layout_digest != layout.digest:
            raise WireError("the message's arrays are not those that its header names: both sides need one version")
        loaded = store.load(self._number, layout)
        self.remarks += [loaded.remark] if loaded.remark else []
        state = self._renumbered(loaded.state, store)
        if state and state.round == broadcast.round and state.in_flight:
            return self._again(state)
        if state and state.round >= broadcast.round:
            raise WireError(f"{BEHIND}{state.round}: the message of round {broadcast.round} is out of date")
        given = given_by(record, self.header, store)
        if given is None:
            return self._whole_wanted(key)
        noisy = is_noisy(self.call_next)
        method = _without_feedback(self.method) if noisy else self.method
        if noisy and self.method.init(layout).residual is not None:
            log(WARNING, "fedsparq: after LocalDpMod nothing is kept for later: its noise must not pile up")
            state = state and replace(state, compression=replace(state.compression, feedback={}), in_flight=b"")
        model = Model(given.vector) if method.traits.needs_model_change else None
        state, remark = acknowledge(state, broadcast, method, layout, self.resolve, model)
        self.remarks += [remark] if remark else []
        self._hold(given, store)
        state, given = replace(state, model=model), given.once()
        return self._work(key, given, state, method, store, math.inf if noisy else clip_of(self.content))

    def _work(
        self, key: str, given: Given, state: ClientState, method: Method, store: NodeStore, limit: float
    ) -> Message:
        broadcast, layout, compression = self.header.broadcast, given.template.layout, state.compression
        if any(type(rule).start is not ClientRule.start for rule in method.rules):
            given = replace(given, record=None, built=method.start(given.vector, compression))
        reply = self._called(key, given.record or to_record(given.template, given.vector, given.exact))
        if len(reply.content.array_records) != 1:
            raise AppFailedError(reply)
        if layout.size >= LARGE:
            gc.collect()
        sent_key, after = only_arrays(reply.content)
        given.template.check(after)
        update, ties = difference(layout, list(given.parts()), after)
        for name, _ in ties:
            update[span_of(layout, name)] = 0
        update, compression = method.end(update, method.begin(compression, broadcast.round))
        rng = np.random.default_rng([self.seed, broadcast.round, self._number, 1])
        payload, compression = method.compress(update, compression, rng)
        payload, compression, parted = clip_norm(broadcast.norm_limit, payload, compression, method)
        exact = exact_of(after, given.template.exact)
        payload, compression, exact, clipped = clip(limit, payload, compression, given.exact, exact)
        if parted:
            self.remarks.append(f"update above the norm limit {broadcast.norm_limit:.3g}: a part of it sent")
        if clipped:
            log(INFO, "fedsparq: with what was owed, the update was clipped again to %.4g", limit)
        weight = min(int(examples(reply.content)), _MOST_EXAMPLES)
        made = Reply(broadcast.round, broadcast.method.digest, weight, encode(payload)).encode()
        beside = Beside({n: a for n, a in exact.items() if not same(a, given.exact[n])}, ties)
        about = RecordDict({name: each for name, each in reply.content.items() if name != sent_key})
        kept = replace(
            state,
            compression=compression,
            round=broadcast.round,
            waiting=state.waiting,
            in_flight=made,
            memory={_NUMBERING: np.array([self.header.numbering], np.uint64)},
            attachment=attachment(sent_key, about, beside.encode()),
        )
        store.save(self._number, kept)
        reply.content = self._content(sent_key, about, with_beside(made, beside))
        return reply

    def _content(self, key: str, about: RecordDict, record: ArrayRecord) -> RecordDict:
        for remark in self.remarks:
            log(INFO, "fedsparq: %s", remark)
        said = ConfigRecord({"remarks": list(self.remarks)} if self.remarks else {})
        if self.header.version and not self.header.base and evaluates_with(self.mod):
            said["evaluates"] = True
        return RecordDict({**about, key: record, **({KEY: said} if said else {})})

    def _renumbered(self, state: ClientState | None, store: NodeStore) -> ClientState | None:
        """The state, its round 0 where its number is of another numbering than the broadcast's.

        It is saved so at once: files are named by their rounds, and the newest must not be taken for an older one.
        """
        own = np.array([self.header.numbering], np.uint64)
        if state is None or np.array_equal(state.memory.get(_NUMBERING, np.zeros(1, np.uint64)), own):
            return state
        state = replace(state, round=0, memory={_NUMBERING: own})
        store.save(self._number, state)
        return state

    def _again(self, state: ClientState) -> Message:
        """The same message again gets the same reply again, though the app is not called."""
        self.remarks.append("broadcast came again: same reply sent again")
        key, about, beside = attached(state.attachment)
        record = with_beside(state.in_flight, Beside.decode(beside, 1 << 40))
        return Message(self._content(key, about, record), reply_to=self.message)

    def _whole_wanted(self, key: str) -> Message:
        self.remarks.append("model not at hand: whole model asked for")
        wanted = FullWanted(self.header.broadcast.round).encode()
        return Message(self._content(key, RecordDict(), wrap(wanted)), reply_to=self.message)

    def _called(self, key: str, record: ArrayRecord) -> Message:
        self.message.content = RecordDict({**self.content, key: record})
        reply = self.call_next(self.message, self.context)
        if reply.has_error():
            raise AppFailedError(reply)
        return reply

    def _hold(self, given: Given, store: NodeStore) -> None:
        header = self.header
        if header.version and (not header.base or header.base != header.version):
            vector = given.vector if header.broadcast.hold else np.empty(0, np.float32)
            store.save_held(Held(header.version, given.template, vector, given.exact))

    @property
    def _number(self) -> int:
        number = self.context.node_config.get("partition-id", self.context.node_id)
        return number if isinstance(number, int) else self.context.node_id


def _without_feedback(method: Method) -> Method:
    return replace(method, feedback="off").named(method.identity)
