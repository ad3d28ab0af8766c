"""The client's side: a Flower mod that hands the app plain arrays and sends its update compressed."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Error, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fedsparq.errors import FedSparQError, OptionError, UnknownMethodError, UpdateError, WireError
from fedsparq.federate.client import Client, Evaluate, Ignore, Resend, Train, Trained
from fedsparq.federate.exact import NamedModel
from fedsparq.federate.messages import Broadcast, Seen
from fedsparq.federate.validation import Validation
from fedsparq.flower.advice import check_runs
from fedsparq.flower.records import (
    KEY,
    clip_of,
    examples,
    extra_of,
    of_extra,
    only_arrays,
    to_record,
    without_frame,
    wrap,
)
from fedsparq.flower.stores import store_for
from fedsparq.method import Identity, Method
from fedsparq.methods.registry import aggregator as aggregator_named
from fedsparq.methods.registry import check_portable, federated_method, left_to_federations, resolver
from fedsparq.methods.registry import method as method_named
from fedsparq.methods.registry import optimizer as optimizer_named
from fedsparq.protocols import Aggregator, Optimizer

SET_UP = "fedsparq set-up: "
"""How an error begins that no further round will mend."""

BEHIND = "fedsparq behind: "
"""How an error begins that says that a node has answered a later round already."""

LARGE = 1 << 25
"""From so many parameters on, what the app left behind is collected: PyTorch's optimizers refer to themselves, and
their moments, twice the model's size, would stay while it is compressed."""

_MAX_EXAMPLES = 2**32 - 1

_PROMISES = ("epsilon", "delta", "sampling", "example_clip", "secure_sums")
"""What is asked of a whole run, not of a method."""

OLD_API = (
    "this client app is of Flower's old API (client_fn, NumPyClient): answer messages by a function under @app.train, "
    "see https://flower.ai/docs/framework/how-to-upgrade-to-message-api.html"
)


def compress(
    method: str | Method | None = None,
    *,
    state: str | Path | None = None,
    seed: int = 0,
    runs: Sequence[str] = (),
    error_feedback: bool = True,
    **options: Any,
) -> Mod:
    """Return a mod that compresses what a client sends: ``app = ClientApp(mods=[compress()])``.

    The server decides on the method. One named here must be the server's, options included, but for those that are left
    to the federation (`drift` and `stale` of `fedsparq-adaptive`); without a name the server's is taken, if it is one
    of the package's, registered in this process or installed. A method of your own is named here
    as ``package.module:function``: a name that only a server says is never imported.

    ``state`` is a folder for what the node must remember; without it, the SuperNode's `--node-config` may name one as
    `fedsparq-state`. ``runs`` names the client rules that the app itself applies in training, where a method has one
    that no mod can apply. With ``error_feedback=False`` nothing is kept for later rounds, clipped or corrected: for
    apps whose updates have noise of their own in them (`LocalDpMod`). A server whose strategy is not `FedSparQ` gets
    plain arrays, as without the mod. On a single function, ``@app.train(mods=[compress()])``, it works for that
    function. It must be the outermost of an app's mods.
    """
    expected = portable(method, options) if method is not None or options else None
    left_open = left_to_federations(expected) - {*options} if expected and isinstance(method, str) else frozenset()
    folder = Path(state) if state is not None else None

    def fedsparq_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        try:
            content, data = without_frame(message.content)
            if data is None:
                if message.metadata.message_type.startswith(MessageType.TRAIN):
                    log(WARNING, "fedsparq: the server did not compress this message; the reply is sent as it is")
                return call_next(message, context)
            broadcast = Broadcast.decode(data)
            if expected is not None:
                _check_same(expected, left_open, broadcast.method)
            resolve = resolver(expected.name) if expected else resolver()
            check_runs(resolve(broadcast.method), runs, "compress(...)")
            store = store_for(context, broadcast, folder)
            number = context.node_config.get("partition-id", context.node_id)
            number = number if isinstance(number, int) else context.node_id
            client = Client(number, None, None, store, resolve, seed, error_feedback=error_feedback)
            with store.locked():
                return _Turn(message, content, context, call_next, client, broadcast).answer()
        except KeyError as error:
            if "fitins." not in str(error):
                raise
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, SET_UP + OLD_API), reply_to=message)
        except FedSparQError as error:
            log(ERROR, "fedsparq: %s", error)
            prefix = SET_UP if isinstance(error, OptionError | UpdateError | UnknownMethodError) else "fedsparq: "
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"{prefix}{error}"), reply_to=message)

    return fedsparq_mod


@dataclass
class _Turn:
    """The work on one message."""

    message: Message
    content: RecordDict
    context: Context
    call_next: ClientAppCallable
    client: Client
    broadcast: Broadcast
    remarks: list[str] = field(default_factory=list)

    def answer(self) -> Message:
        broadcast, (key, record) = self.broadcast, only_arrays(self.content)
        if self.message.metadata.message_type.startswith(MessageType.TRAIN) == broadcast.evaluate:
            raise WireError("a request to train came as one to evaluate, or the other way round")
        given = NamedModel.of(record) if broadcast.plain else None
        if given is not None:
            given.check_plain(record)
        opened = self.client.open(broadcast, given)
        self.remarks += opened.remarks
        if isinstance(opened, Resend):
            sent_key, about = of_extra(opened.extra) if opened.extra else (key, RecordDict())
            return self._reply(RecordDict({**about, sent_key: wrap(opened.reply)}))
        if isinstance(opened, Ignore) and opened.answered:
            raise WireError(f"{BEHIND}{opened.answered}: the message of round {broadcast.round} is out of date")
        if isinstance(opened, Evaluate):
            reply = self._called(key, opened.named)
            if reply.has_content():
                proof = Seen(broadcast.round, broadcast.model_version).encode()
                reply.content = RecordDict({**reply.content, KEY: ConfigRecord({"proof": proof})})
            return reply
        if not isinstance(opened, Train):
            raise WireError(opened.remarks[-1])
        return self._train(key, opened)

    def _train(self, key: str, opened: Train) -> Message:
        reply = self._called(key, opened.named)
        if reply.has_error() or len(reply.content.array_records) != 1:
            return reply
        named, (sent_key, after) = opened.named, only_arrays(reply.content)
        if named.layout.size >= LARGE:
            gc.collect()
        named.named_spec.check(after)
        update, ties = named.difference(after)
        about = RecordDict({name: each for name, each in reply.content.items() if name != sent_key})
        trained = Trained(
            update,
            min(int(examples(reply.content)), _MAX_EXAMPLES),
            exact={name: after[name] for name in named.named_spec.exact},
            ties=ties,
            clip=clip_of(self.content) if self.client.error_feedback else math.inf,
            extra=extra_of(sent_key, about),
        )
        state, remarks = self.client.finish(opened, trained)
        self.remarks = list(remarks)
        reply.content = self._with_remarks(RecordDict({**about, sent_key: wrap(state.in_flight)}))
        return reply

    def _called(self, key: str, named: NamedModel) -> Message:
        """The app's answer to the message with plain arrays."""
        self.message.content = RecordDict({**self.content, key: to_record(named.arrays())})
        return self.call_next(self.message, self.context)

    def _reply(self, content: RecordDict) -> Message:
        return Message(self._with_remarks(content), reply_to=self.message)

    def _with_remarks(self, content: RecordDict) -> RecordDict:
        for remark in self.remarks:
            log(INFO, "fedsparq: %s", remark)
        said = {KEY: ConfigRecord({"remarks": list(self.remarks)})} if self.remarks else {}
        return RecordDict({**content, **said})


def portable(
    choice: str | Method | None, options: Mapping[str, Any], make: Callable[..., Method] = method_named
) -> Method:
    """The method that was chosen by name or as an object, if a node of Flower's can make the same one."""
    for name in _PROMISES:
        if name in options:
            raise OptionError(
                f"{name} is a promise of a whole run, with its own rounds, clipping and accountant, which an app of "
                "your own cannot keep here. Run it as an experiment of its own (`fedsparq deploy`, docs/PRIVACY.md), "
                "or wrap the strategy in Flower's differential privacy: FedSparQ(DifferentialPrivacy...(...))"
            )
    if isinstance(choice, str):
        choice, options = make(choice, **options), {}
    if options or choice is None:
        raise OptionError(f"the options {', '.join(options)} need the name of the method they are for")
    check_portable(choice, "a Flower node")
    check_unplanned(choice)
    return choice


def whole_method(
    method: str | Method,
    options: dict[str, Any],
    fraction: float,
    aggregator: str | Aggregator | None,
    optimizer: str | Optimizer | None,
    validation: Validation | None,
) -> Method:
    """A method with its server, as this federation has it."""
    aggregator = aggregator_named(aggregator) if isinstance(aggregator, str) else aggregator
    optimizer = optimizer_named(optimizer) if isinstance(optimizer, str) else optimizer

    def make(name: str, **given: Any) -> Method:
        own_server = aggregator is None and optimizer is None and (validation is None or validation.acknowledge)
        return federated_method(name, fraction, **given) if own_server else method_named(name, **given)

    chosen = portable(method, options, make).with_server(aggregator, optimizer)
    check_unplanned(chosen)
    return chosen


def check_unplanned(choice: Method) -> None:
    """Refuse a method whose server plans each round: an app's own messages have no place for the plan, so its clients
    would not clip, and what a private mean or a secure sum promises would not be kept."""
    if choice.traits.plans_rounds:
        raise OptionError(
            f"{choice.label!r} with {type(choice.aggregator).__name__} needs a server that plans each round, and tells "
            "its clients support and clip; an app of your own cannot keep that promise. In Flower it runs as an "
            "experiment of its own: `fedsparq run --engine flower-simulation`, `fedsparq deploy` (docs/PRIVACY.md)"
        )


def _check_same(expected: Method, left_open: frozenset[str], asked: Identity) -> None:
    own = expected.identity or Identity("")
    chosen = {name: value for name, value in asked.options.items() if name in left_open}
    difference = replace(own, options={**own.options, **chosen}).difference(asked)
    if difference:
        detail = f" ({difference})" if own.name == asked.name else ""
        raise OptionError(
            f"this client compresses with {expected.label!r}, the server with {asked.name!r}{detail}; "
            "name the same method and options on both sides, or none in compress()"
        )
