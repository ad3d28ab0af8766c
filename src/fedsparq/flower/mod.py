"""The client's side: a Flower mod that hands the app plain arrays and sends its update compressed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fedsparq.compress.method import method as method_named
from fedsparq.compress.pipeline import Method
from fedsparq.errors import FedSparQError, OptionError, UpdateError, WireError
from fedsparq.federate.client import Answer, Client, Trained
from fedsparq.federate.messages import FullWanted, decode_answer, describe
from fedsparq.federate.model import Model
from fedsparq.flower.header import KEY, Header, without_header
from fedsparq.flower.records import layout_of, to_arrays, to_model, unpack, unwrap, wrap
from fedsparq.flower.stores import store_for
from fedsparq.layout import Layout

SET_UP = "fedsparq set-up: "
"""How an error begins that no further round will mend."""

EXAMPLES = "num-examples"
"""Flower's name for the number of examples an app trained on."""


class _AppFailedError(Exception):
    """The app answered with an error of its own."""


def compress(
    method: str | Method | None = None, *, state: str | Path | None = None, seed: int = 0, **options: Any
) -> Mod:
    """A mod that compresses what a client sends: ``@app.train(mods=[compress("fedsparq")])``.

    The server decides on the method. One named here must be the server's, options included; without a name the server's
    is taken. ``state`` is a folder for what the node must remember; without it, the SuperNode's `--node-config`
    may name one as `fedsparq-state`. A server whose strategy is not `Compressed` gets plain arrays, as without the mod.
    """
    expected = method_named(method, **options) if isinstance(method, str) else method
    if options and not isinstance(method, str):
        raise OptionError(f"the options {', '.join(options)} need the name of the method they are for")
    folder = Path(state) if state is not None else None

    def fedsparq_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        content, header = without_header(message.content)
        if header is None:
            if message.metadata.message_type.startswith(MessageType.TRAIN):
                log(WARNING, "fedsparq: the server's strategy does not compress; the reply is sent as it is")
            return call_next(message, context)
        app = _App(message, content, context, call_next)
        try:
            return app.answer(Header.decode(header), expected, folder, seed)
        except _AppFailedError:
            return app.reply or message
        except FedSparQError as error:
            log(ERROR, "fedsparq: %s", error)
            prefix = SET_UP if isinstance(error, OptionError | UpdateError) else "fedsparq: "
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"{prefix}{error}"), reply_to=message)

    return fedsparq_mod


@dataclass
class _App:
    """The user's app, as the training step of one of our clients."""

    message: Message
    content: RecordDict
    context: Context
    call_next: ClientAppCallable
    reply: Message | None = field(default=None, init=False)

    def answer(self, header: Header, expected: Method | None, folder: Path | None, seed: int) -> Message:
        asked = header.broadcast.method
        if expected is not None and describe(expected) != describe(asked):
            raise OptionError(
                f"this client compresses with {expected.label!r}, the server with {asked.label!r}; "
                "name the same method and options on both sides, or none in compress()"
            )
        key, arrays = only_arrays(self.content)
        packed = unwrap(arrays)
        if packed is None:
            layout = layout_of(arrays)
            blobs: tuple[bytes, ...] = (to_model(arrays, layout).encode(layout),)
        else:
            layout, blobs = unpack(packed)
        number = self.context.node_config.get("partition-id", self.context.node_id)
        client = Client(
            number if isinstance(number, int) else self.context.node_id,
            layout,
            lambda model, method, number: self._train(key, layout, model),
            store_for(self.context, header.session, folder),
            seed,
        )
        return self._packed(key, client.respond(replace(header.broadcast, blobs=blobs)))

    def _train(self, key: str, layout: Layout, model: Model) -> Trained:
        """Call the app with plain arrays; what it returns, less what it was given, is the update."""
        self.message.content = RecordDict({**self.content, key: to_arrays(model, layout)})
        self.reply = self.call_next(self.message, self.context)
        if self.reply.has_error():
            raise _AppFailedError
        after = to_model(only_arrays(self.reply.content)[1], layout)
        return Trained(np.subtract(after.vector, model.vector), examples(self.reply.content), after.exact)

    def _packed(self, key: str, answer: Answer) -> Message:
        for remark in answer.remarks:
            log(INFO, "fedsparq: %s", remark)
        if answer.message is None:
            raise WireError(answer.remarks[-1])
        remarks = {KEY: ConfigRecord({"remarks": list(answer.remarks)})} if answer.remarks else {}
        if self.reply is None:
            if not isinstance(decode_answer(answer.message), FullWanted):
                raise WireError("this round was answered already")
            return Message(RecordDict({key: wrap(answer.message), **remarks}), reply_to=self.message)
        sent_key = only_arrays(self.reply.content)[0]
        self.reply.content = RecordDict({**self.reply.content, sent_key: wrap(answer.message), **remarks})
        return self.reply


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays in a message, and its key."""
    records = content.array_records
    if len(records) != 1:
        raise WireError(f"a message for training must hold one ArrayRecord, the model; this one holds {len(records)}")
    return next(iter(records.items()))


def examples(content: RecordDict) -> int:
    """How many examples the app says it trained on; 1 where it does not say."""
    for record in content.metric_records.values():
        value = record.get(EXAMPLES)
        if isinstance(value, int | float):
            if not 0 <= value < 2**32:
                raise WireError(f"{EXAMPLES} is {value}; it must be a number of examples from 0 to {2**32 - 1}")
            return int(value)
    return 1
