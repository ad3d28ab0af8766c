"""The client's side: a Flower mod that hands the app plain arrays and sends its update compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import ERROR, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, MessageType
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from flwr.supercore import log

from fedsparq.errors import FedSparQError, OptionError, UnknownMethodError, UpdateError
from fedsparq.flower.header import Header, without_header
from fedsparq.flower.node import AppFailedError, Turn
from fedsparq.flower.rules import check_runs
from fedsparq.method import Identity, Method
from fedsparq.methods.registry import check_portable, left_to_federations, resolver
from fedsparq.methods.registry import method as method_named

SET_UP = "fedsparq set-up: "
"""How an error begins that no further round will mend."""

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
    **options: Any,
) -> Mod:
    """A mod that compresses what a client sends: ``@app.train(mods=[compress("fedsparq")])``.

    The server decides on the method. One named here must be the server's, options included, but for those that are left
    to the federation (`drift` and `stale` of `fedsparq-adaptive`); without a name the server's is taken, if it is one
    of the package's, registered in this process or installed. A method of your own is named here
    as ``package.module:function``: a name that only a server says is never imported.

    ``state`` is a folder for what the node must remember; without it, the SuperNode's `--node-config` may name one as
    `fedsparq-state`. ``runs`` names the client rules that the app itself applies in training, where a method has one
    that no mod can apply. On ``@app.evaluate`` it takes evaluation's messages compressed. A server whose strategy is
    not `Compressed` gets plain arrays, as without the mod. It must be the first of an app's mods.
    """
    expected = portable(method, options) if method is not None or options else None
    left_open = left_to_federations(expected) - {*options} if expected and isinstance(method, str) else frozenset()
    folder = Path(state) if state is not None else None

    def fedsparq_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        content, data = without_header(message.content)
        if data is None:
            if message.metadata.message_type.startswith(MessageType.TRAIN):
                log(WARNING, "fedsparq: the server did not compress this message; the reply is sent as it is")
            return call_next(message, context)
        try:
            header = Header.decode(data)
            if expected is not None:
                _check_same(expected, left_open, header.broadcast.method)
            resolve = resolver(expected.name) if expected else resolver()
            chosen = resolve(header.broadcast.method)
            check_runs(chosen, runs, "compress(...)")
            turn = Turn(message, content, context, call_next, header, chosen, resolve, folder, seed, fedsparq_mod)
            return turn.answer()
        except AppFailedError as failed:
            return failed.reply
        except KeyError as error:
            if "fitins." not in str(error):
                raise
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, SET_UP + OLD_API), reply_to=message)
        except FedSparQError as error:
            log(ERROR, "fedsparq: %s", error)
            prefix = SET_UP if isinstance(error, OptionError | UpdateError | UnknownMethodError) else "fedsparq: "
            return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, f"{prefix}{error}"), reply_to=message)

    return fedsparq_mod


def portable(
    choice: str | Method | None, options: Mapping[str, Any], make: Callable[..., Method] = method_named
) -> Method:
    """The method that was chosen by name or as an object, if a node of Flower's can make the same one."""
    for name in _PROMISES:
        if name in options:
            raise OptionError(
                f"{name} is a promise of a whole run, with its own rounds, clipping and accountant, which an app of "
                "your own cannot keep here. Run it as an experiment of its own (`fedsparq deploy`, docs/PRIVACY.md), "
                "or wrap the strategy in Flower's differential privacy: Compressed(DifferentialPrivacy...(...))"
            )
    if isinstance(choice, str):
        choice, options = make(choice, **options), {}
    if options or choice is None:
        raise OptionError(f"the options {', '.join(options)} need the name of the method they are for")
    check_portable(choice, "a Flower node")
    check_unplanned(choice)
    return choice


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
