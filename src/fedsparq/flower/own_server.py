"""The method's own server behind Flower's records: replies go in as they arrived, named arrays come out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from flwr.app import Array, ArrayRecord

from fedsparq.aggregate import Mean
from fedsparq.errors import OptionError, RunError, WireError
from fedsparq.federate.model import Model
from fedsparq.federate.server import RoundOutcome, Server
from fedsparq.federate.validation import Validation
from fedsparq.flower.arrivals import Arrived
from fedsparq.flower.exact_mean import ExactMean, statistics_of
from fedsparq.flower.records import examples, only_arrays, to_record, to_vector
from fedsparq.flower.stream import Base
from fedsparq.layout import Arrays
from fedsparq.method import Method
from fedsparq.payload import Payload


class OwnServer:
    """A server whose model is Flower's: what is compressed is a vector, floats beside it are the model's statistics."""

    def __init__(self, method: Method, validation: Validation) -> None:
        self._method, self._validation = method, validation
        self._base, self._exact = Base(ArrayRecord()), ExactMean({}, held=False)
        self._running: Server | None = None

    @property
    def norm_limit(self) -> float:
        return self._server.state.norm_limit

    def serve(self, arrays: ArrayRecord, saved: Arrays) -> None:
        """Take these arrays for the model. A server that is new goes on from what `saved` gave, where it gave any."""
        self._base = base = Base(arrays)
        if not base.layout.size:
            kinds = ", ".join(sorted({array.dtype for array in arrays.values()})) or "no arrays"
            raise OptionError(
                f"FedSparQ steps float32 and float16 arrays, and this model has {kinds}: cast them, or use FedAvg"
            )
        model = Model(base.vector, statistics_of(base.exact))
        if self._running is not None and self._running.layout.digest == base.layout.digest:
            self._running.state = replace(self._running.state, model=model)
            return
        self._running = Server(base.layout, self._method, model, validation=self._validation)
        if saved:
            limit, number = (float(each) for each in saved["limit"])
            self._running.state = replace(
                self._running.state,
                optimizer=_part("optimizer.", saved),
                aggregator=_part("aggregator.", saved),
                norm_limit=limit,
                round=int(number),
            )

    def saved(self) -> Arrays:
        """What a new process needs to go on from here, beside the model."""
        state = self._server.state
        saved = {f"optimizer.{name}": array for name, array in state.optimizer.items()}
        saved |= {f"aggregator.{name}": array for name, array in state.aggregator.items()}
        return saved | {"limit": np.array([state.norm_limit, state.round], np.float64)}

    def open_round(self, nodes: Iterable[int]) -> None:
        self._server.open_round(nodes)
        late = self._validation.needs_whole_round or not isinstance(self._method.aggregator, Mean)
        self._exact = ExactMean(self._base.exact, held=late)

    def take(self, arrived: Arrived) -> str:
        """Take a reply into the round; why it was refused, or nothing."""
        assert arrived.sent is not None
        node, content = arrived.sent.node, arrived.reply.content
        try:
            weight = examples(content)
            payload, exact = self._update(arrived)
            self._exact.check(exact)
            payload = replace(payload, buffers=statistics_of(exact))
        except WireError as error:
            return str(error)
        verdict = self._server.receive_payload(node, payload, weight)  # type: ignore[arg-type]
        if not verdict.taken:
            return verdict.reason
        self._exact.add(node, exact, weight if self._method.traits.weighs_by_examples else 1.0)
        return ""

    def close_round(self) -> tuple[RoundOutcome, dict[int, float], ArrayRecord | None]:
        """What became of the round, by how much each node's reply counted, and the next model, if there is one."""
        server = self._server
        outcome = server.close_round()
        counted = server.state.counted.items()
        shares = {node: last.share for node, last in counted if last.round == outcome.round}
        if not outcome.counted:
            return outcome, shares, None
        model = server.state.model
        exact = self._exact.close(outcome.shares, model.buffers)
        return outcome, shares, to_record(self._base.template, model.vector, exact)

    def _update(self, arrived: Arrived) -> tuple[Payload, Mapping[str, Array]]:
        """A reply's update, and the arrays beside it as the node has them now."""
        base = self._base
        if arrived.payload is None or arrived.beside is None:
            record = only_arrays(arrived.reply.content)[1]
            vector = to_vector(record, base.layout) - base.vector
            return Payload.full(base.layout, vector), {name: record[name] for name in base.template.exact}
        return _untied(arrived.payload, arrived.beside.ties), base.exact | dict(arrived.beside.arrays)

    @property
    def _server(self) -> Server:
        if self._running is None:
            raise RunError("no round was configured; configure_train comes before aggregate_train")
        return self._running


def _part(prefix: str, arrays: Arrays) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _untied(payload: Payload, ties: tuple[tuple[str, str], ...]) -> Payload:
    """An update in which tied arrays move together."""
    if not ties:
        return payload
    vector, spans = payload.dense(), {tensor.name: tensor.span for tensor in payload.layout.tensors}
    for name, other in ties:
        vector[spans[name]] = vector[spans[other]]
    return Payload.full(payload.layout, vector)
