"""What a client makes of the server's word on its last reply: what did not count goes back into the residual.

States that may move only by what counted (`FeedbackTraits.needs_acks`, `ClientRule.heard`) move here, and a lost reply
moves nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from fedsparq.errors import WireError
from fedsparq.federate.messages import Broadcast, Reply, reply_digest
from fedsparq.federate.model import Model
from fedsparq.federate.state import ClientState, alike
from fedsparq.layout import Layout, Vector
from fedsparq.method import Identity, Method
from fedsparq.wire import decode

Resolve = Callable[[Identity], Method]
"""Makes the method that an identity names, or raises WireError."""


def acknowledge(
    state: ClientState | None,
    broadcast: Broadcast,
    method: Method,
    layout: Layout,
    resolve: Resolve,
    model: Model | None = None,
) -> tuple[ClientState, str]:
    """The state to go on from, now that the server has told which reply it counted last; and what there is to say.

    `model` is the broadcast's, for rules that learn by how much the model changed.
    """
    last = broadcast.acknowledged
    if last is None and method.traits.needs_acks:
        raise WireError(f"the server does not tell which replies counted, which {method.label!r} must know")
    fresh = ClientState(method.init(layout), broadcast.method)
    if last is not None:
        fresh = replace(fresh, acknowledged=last)
    if state is None:
        number = last.round if last is not None else 0
        return fresh, f"no state, though a reply to round {number} was counted: residual lost" if number else ""
    former: Method | None = method
    if state.method != broadcast.method:
        former = None
        with suppress(WireError):
            former = resolve(state.method)
    if former not in (None, method) and not state.fits(former.init(layout)):
        return fresh, f"state does not fit its method {state.method.name!r}: left aside"
    if last is None:
        after, remark = replace(state, in_flight=b"", waiting=()), ""
    else:
        flight = {(Reply.decode(reply).round, reply_digest(reply)): reply for reply in state.undecided}
        counted = {each.reply: each.share for each in (*broadcast.also_counted, last) if each.round}
        before = state.acknowledged
        unknown = [
            reply for reply in counted if reply not in flight and reply[0] >= before.round and reply != before.reply
        ]
        if unknown:
            # The server counted a reply that was not made from this state. Part of this residual went out with it: to
            # send it again would count it twice.
            older = f"state of round {state.round} is an older copy: it knows nothing of the reply to round"
            return fresh, f"{older} {unknown[0][0]} that was counted; residual dropped"
        after, remarks = replace(state, in_flight=b"", waiting=()), []
        moved = None if model is None or state.model is None else model.vector - state.model.vector
        acknowledge_one = partial(_acknowledge_one, layout=layout, method=former)
        if last != before and last.reply not in flight and last.round <= before.round:
            remarks.append(f"the server went back from counted round {before.round} to {last.round}")
        for (number, digest), reply in flight.items():
            if number in broadcast.pending and (number, digest) not in counted:
                after = replace(after, waiting=(*after.waiting, reply))
                continue
            change = moved if number == state.round else None
            after, said = acknowledge_one(
                after, number, reply, counted.get((number, digest), 0.0), change, broadcast.round
            )
            remarks += [said] if said else []
        after, remark = replace(after, acknowledged=last), "; ".join(remarks)
    return (after, remark) if after.method == fresh.method else _moved(after, fresh, method, remark)


def _acknowledge_one(
    state: ClientState,
    number: int,
    reply: bytes,
    share: float,
    change: Vector | None,
    now: int,
    *,
    layout: Layout,
    method: Method | None,
) -> tuple[ClientState, str]:
    """The state after a reply of which this share was counted: what did not count is owed again."""
    part = f" beyond {share:.3g} of it" if share else ""
    remark = f"reply to round {number} was not counted{part}" if share < 1 else ""
    if method is None:
        gone = f", and its method {state.method.name!r} is not known here any more: it is lost"
        return state, f"{remark}{gone}" if remark else ""
    owed = method.traits.conserves_mass and share < 1
    if not owed and not method.traits.needs_acks:
        return state, remark
    payload = decode(Reply.decode(reply).blob, layout)
    compression = method.acknowledge(state.compression, payload, share, change, now - number, state.reach)
    return replace(state, compression=compression), f"{remark}: put back into the residual" if owed else remark


def _moved(state: ClientState, fresh: ClientState, method: Method, remark: str) -> tuple[ClientState, str]:
    """The state under another method: what was not sent yet is kept if that method can send it."""
    residual, kept = state.compression.residual, fresh.compression.residual
    fresh = replace(fresh, waiting=state.waiting)
    text = f"method changed: {state.method.difference(fresh.method)}"
    if residual is not None and kept is not None and method.traits.conserves_mass and alike("residual", residual, kept):
        feedback = fresh.compression.feedback | {"residual": residual}
        fresh = replace(fresh, compression=replace(fresh.compression, feedback=feedback))
        text += ": residual kept"
    elif residual is not None:
        text += ": residual dropped"
    return fresh, "; ".join(filter(None, (remark, text)))
