"""The method's own server behind named arrays: replies go in one by one, named arrays come out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from fedsparq.aggregate import Mean
from fedsparq.errors import OptionError, RunError, WireError
from fedsparq.federate.exact import Beside, NamedModel, Ties, to_vector
from fedsparq.federate.exact_mean import ExactMean, statistics_of
from fedsparq.federate.model import Model
from fedsparq.federate.serialized import Record, Serialized
from fedsparq.federate.server import RoundOutcome, Server, ServerState
from fedsparq.federate.state import alike
from fedsparq.federate.validation import Validation
from fedsparq.layout import Arrays, part_of
from fedsparq.method import Method
from fedsparq.payload import Payload


class NamedServer:
    """A server whose model is somebody's named arrays: what is compressed is a vector, exact floats are statistics."""

    def __init__(self, method: Method, validation: Validation) -> None:
        self._method, self._validation = method, validation
        self._exact = ExactMean({}, held=False)
        self._running: Server | None = None
        self._model = NamedModel.of({})

    @property
    def server(self) -> Server:
        if self._running is None:
            raise RunError("no round was configured; configure_train comes before aggregate_train")
        return self._running

    def serve(self, model: NamedModel, saved: Arrays) -> None:
        """Take these arrays for the model. A server that is new goes on from what `saved` gave, where it gave any."""
        self._model = model
        if not model.layout.size:
            kinds = ", ".join(sorted({dtype for _, dtype, _ in model.named_spec.entries})) or "no arrays"
            raise OptionError(
                f"FedSparQ steps float32 and float16 arrays, and this model has {kinds}: cast them, or use FedAvg"
            )
        now = Model(model.vector, statistics_of(model.exact))
        if self._running is not None and self._running.layout.digest == model.layout.digest:
            self._running.state = replace(self._running.state, model=now)
            return
        self._running = Server(model.layout, self._method, now, validation=self._validation)
        if saved:
            self._running.state = self._restored(self._running, saved)

    def _restored(self, server: Server, saved: Arrays) -> ServerState:
        """What `saved` gave; RunError if that is not the state of such a server."""
        state, parts = server.state, dict[str, Arrays]()
        try:
            limit, number = saved["limit"].astype(np.float64).tolist()
            for part, fresh in (("optimizer", state.optimizer), ("aggregator", state.aggregator)):
                parts[part] = part_of(part, saved)
                if not all(alike(name, parts[part][name], each, grows=not each.size) for name, each in fresh.items()):
                    raise ValueError(f"the {part} is not as it begins")
            if not limit >= 0 or not 0 <= number < 2**53:
                raise ValueError(f"a norm limit of {limit} after {number} rounds")
        except (LookupError, TypeError, ValueError) as error:
            raise RunError(f"the checkpoint is not of such a server: {error}") from None
        return replace(
            state, norm_limit=limit, round=int(number), optimizer=parts["optimizer"], aggregator=parts["aggregator"]
        )

    def saved(self) -> Arrays:
        """What a new process needs to go on from here, beside the model."""
        state = self.server.state
        saved = {f"optimizer.{name}": array for name, array in state.optimizer.items()}
        saved |= {f"aggregator.{name}": array for name, array in state.aggregator.items()}
        return saved | {"limit": np.array([state.norm_limit, state.round], np.float64)}

    def open_round(self, clients: Iterable[int]) -> None:
        self.server.open_round(clients)
        late = self._validation.needs_whole_round or not isinstance(self._method.aggregator, Mean)
        self._exact = ExactMean(self._model.exact, held=late)

    def receive(
        self, client: int, payload: Payload, beside: Beside, examples: float, again: Callable[[], Payload] | None = None
    ) -> str:
        """Take a reply into the round; why it was refused, or nothing. `again` decodes its payload another time."""
        exact = {**self._model.exact, **beside.arrays}
        try:
            self._exact.check(exact)
        except WireError as error:
            return str(error)
        statistics = statistics_of(exact)

        def whole(payload: Payload) -> Payload:
            return replace(_tied(payload, beside.ties), buffers=statistics)

        reread = again and (lambda: whole(again()))
        verdict = self.server.receive_payload(client, whole(payload), examples, reread=reread)  # type: ignore[arg-type]
        if verdict.taken:
            self._exact.add(client, exact, examples if self._method.traits.weighs_by_examples else 1.0)
        return verdict.reason

    def receive_plain(self, client: int, record: Record, examples: float) -> str:
        """`receive` for a client that sends its arrays plain."""
        vector = to_vector(record, self._model.layout) - self._model.vector
        exact = {name: record[name] for name in self._model.named_spec.exact}
        return self.receive(client, Payload.full(self._model.layout, vector), Beside(exact), examples)

    def close_round(self) -> tuple[RoundOutcome, dict[int, float], dict[str, Serialized] | None]:
        """What became of the round, by how much each client's reply counted, and the next model, if there is one."""
        server = self.server
        outcome = server.close_round()
        shares = {client: last.share for client, last in server.state.counted.items() if last.round == outcome.round}
        if not outcome.counted:
            return outcome, shares, None
        model = server.state.model
        exact = self._exact.close(outcome.shares, model.buffers)
        return outcome, shares, NamedModel(self._model.layout, self._model.spec, exact, built=model.vector).arrays()


def _tied(payload: Payload, ties: Ties) -> Payload:
    """An update in which tied arrays move together."""
    if not ties:
        return payload
    vector, spans = payload.dense(), {tensor.name: tensor.span for tensor in payload.layout.tensors}
    for name, other in ties:
        vector[spans[name]] = vector[spans[other]]
    return Payload.full(payload.layout, vector)
